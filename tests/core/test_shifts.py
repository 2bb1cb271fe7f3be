"""The test of shares in two subsets: against a loop over rows, its limits, and its rate of false alarms."""

import math

import numpy as np
import pytest
from scipy import stats

from raycomp.core.intervals import holm
from raycomp.core.metrics import BOTH, GAINED, LOST, measure_shifts


def count(has_NV: np.ndarray, first_N: np.ndarray, second_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    groups = {BOTH: first_N & second_N, LOST: first_N & ~second_N, GAINED: second_N & ~first_N}
    return (
        np.array([has_NV[groups[group]].sum(0) for group in range(3)]),
        np.array([groups[group].sum() for group in range(3)]),
    )


def test_it_is_the_sum_over_rows():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        has_NV = rng.random((300, 5)) < rng.random(5)
        first_N, second_N = rng.random(300) < 0.6, rng.random(300) < 0.3 + 0.1 * seed
        found = measure_shifts(*count(has_NV, first_N, second_N))
        for v in range(5):
            first = has_NV[first_N, v].mean()
            second = has_NV[second_N, v].mean()
            common = (has_NV[first_N, v].sum() + has_NV[second_N, v].sum()) / (first_N.sum() + second_N.sum())
            squares = expected = 0.0
            for row in range(300):
                weight = second_N[row] / second_N.sum() - first_N[row] / first_N.sum()
                squares += weight**2 * (has_NV[row, v] - common) ** 2
                expected += weight**2 * common * (1 - common)
            error = math.sqrt(max(squares, expected))
            assert found.first[v] == pytest.approx(first) and found.second[v] == pytest.approx(second)
            assert found.difference[v] == pytest.approx(second - first)
            assert found.high[v] - found.low[v] == pytest.approx(2 * 1.959963984540054 * error)
            assert found.p[v] == pytest.approx(2 * stats.norm.sf(abs(second - first) / error))


def test_a_rare_word_in_subsets_of_one_size_is_mcnemars():
    count_3V = np.array([[50], [12], [30]])
    found = measure_shifts(count_3V, np.array([10**7, 10**5, 10**5]))
    assert found.p[0] == pytest.approx(2 * stats.norm.sf(18 / math.sqrt(42)), rel=1e-3)


def test_no_changed_row_is_no_change():
    found = measure_shifts(np.array([[5, 0], [0, 0], [0, 0]]), np.array([9, 0, 0]))
    assert (found.p == 1).all() and (found.difference == 0).all()
    empty = measure_shifts(np.array([[0], [3], [0]]), np.array([0, 9, 0]))
    assert np.isnan(empty.difference).all() and (empty.p == 1).all()


@pytest.mark.slow
def test_random_subsets_give_about_alpha_before_the_correction_and_none_after():
    """Words of all frequencies; about 5 % have p < 0.05, and Holm's correction leaves none."""
    for shares in [(0.5, 0.5), (0.6, 0.3)]:
        rng = np.random.default_rng(3)
        below, tested, left = 0, 0, 0
        for _ in range(20):
            has_NV = rng.random((2000, 200)) < rng.uniform(0.02, 0.5, 200)
            first_N, second_N = (rng.random(2000) < share for share in shares)
            p = measure_shifts(*count(has_NV, first_N, second_N)).p
            below, tested = below + int((p < 0.05).sum()), tested + len(p)
            left += any(one < 0.05 for one in holm(p.tolist()))
        assert 0.035 < below / tested < 0.06
        assert left <= 3
