"""What PAS goes with: known correlations, and limits where nothing can be said."""

import math

import numpy as np
import pytest

from raycomp.core.attribution import profile_pas


def test_correlations_and_the_share_that_text_explains():
    rng = np.random.default_rng(0)
    text_N3 = rng.normal(size=(2000, 3))
    alignment_N, own_N = rng.normal(size=(2, 2000))
    pas_N = text_N3 @ [1.0, -1.0, 0.0] + own_N + 0.5 * alignment_N
    drop_P = rng.normal(size=6000)
    found = profile_pas(alignment_N, pas_N, text_N3, drop_P, 2 * drop_P + 2 * rng.normal(size=6000))
    assert found.text.value == pytest.approx(2 / 3.25, abs=0.04) and math.isnan(found.text.low)
    assert found.alignment.value == pytest.approx(np.corrcoef(alignment_N, pas_N)[0, 1])
    assert found.alignment.low < found.alignment.value < found.alignment.high
    assert found.displacement.value == pytest.approx(math.sqrt(0.5), abs=0.03)
    assert found.displacement.num == 6000, "its interval is of 2,000 pairs"
    width = found.displacement.high - found.displacement.low
    assert width == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(1997), rel=0.1)


def test_too_few_pairs_have_no_figures():
    for num in [0, 1, 3]:
        some_N = np.arange(num, dtype=float)
        found = profile_pas(some_N, some_N, np.ones((num, 3)), some_N, some_N)
        assert all(math.isnan(one.value) for one in found)


def test_what_does_not_vary_has_no_correlation():
    rng = np.random.default_rng(1)
    found = profile_pas(np.ones(50), rng.normal(size=50), np.ones((50, 3)), np.ones(50), rng.normal(size=50))
    assert math.isnan(found.alignment.value) and math.isnan(found.displacement.value)
    assert found.text.value == 0, "what does not vary explains nothing"
