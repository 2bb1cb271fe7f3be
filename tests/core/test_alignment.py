"""Attribution against slow loops and limits; alignment against torch's own cosine and against itself."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, normalize

from raycomp.core.alignment import (
    Moments,
    aggregate_drops,
    find_ranks,
    is_suspect,
    normalise,
    pair_cosine,
    pair_drop,
    profile_pas,
)
from raycomp.words import AGGREGATES


def draw_drops(seed: int, num_samples: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Drops as CLIP's, with exact zeros, phrases without a nonce (NaN) and samples without a phrase."""
    rng = np.random.default_rng(seed)
    offset = np.concatenate([[0], np.cumsum(rng.integers(0, 6, num_samples))])
    drop = (rng.standard_normal(offset[-1]) * 0.02).astype(np.float32)
    drop[rng.random(len(drop)) < 0.1] = 0
    drop[rng.random(len(drop)) < 0.2] = np.nan
    return drop, offset


def slow_aggregate(drops: list[float], how: str) -> float:
    drops = [drop for drop in drops if not math.isnan(drop)]
    if not drops:
        return math.nan
    return {
        "mean": math.fsum(drops) / len(drops),
        "min": min(drops),
        "max": max(drops),
        "fraction_supported": sum(drop > 0 for drop in drops) / len(drops),
    }[how]


def test_aggregates_equal_a_loop_bit_by_bit():
    for how in AGGREGATES:
        drop, offset = draw_drops(0)
        got = aggregate_drops(drop, offset, how)
        want = [slow_aggregate(drop[a:b].tolist(), how) for a, b in itertools.pairwise(offset)]
        assert got.dtype == np.float32
        assert np.isnan(got).any()
        np.testing.assert_array_equal(got, np.array(want, dtype=np.float32))
    with pytest.raises(ValueError, match=r"attribute\.aggregate='median': must be one of"):
        aggregate_drops(drop, offset, "median")
    for wrong in ([0, 2, 1], [0, 10**6], [-1, 3], []):
        with pytest.raises(ValueError, match="at most the number of phrases"):
            aggregate_drops(drop, np.array(wrong, dtype=np.int64), "mean")
    fits, swapped = np.float32([[0.3], [0.2]]), np.float32([[0.1, 0.4], [0.2, 0.25]])
    np.testing.assert_array_equal(pair_drop(fits, swapped) > 0, [[True, False], [False, False]])


def test_moments_of_pieces_equal_the_whole():
    for shift in [0.0, 1e6]:
        value = np.random.default_rng(3).standard_normal(3000) + shift
        whole = Moments.of(value)
        np.testing.assert_allclose([whole.mean, whole.std], [value.mean(), value.std()], rtol=1e-12)
        a, b, c, d = (Moments.of(piece) for piece in np.split(value, [0, 1, 2000]))
        for merged in (Moments().merge(a).merge(b).merge(c).merge(d), a.merge(b).merge(c.merge(d))):
            assert merged.count == 3000
            np.testing.assert_allclose([merged.mean, merged.m2], [whole.mean, whole.m2], rtol=1e-9)
    assert Moments().merge(Moments()) == Moments.of(np.zeros(0)) == Moments() and Moments().std == 0
    assert Moments.of(np.full(999, 0.1)) == Moments(999, 0.1, 0.0)
    with pytest.raises(ValueError, match="not finite"):
        Moments.of(np.array([0.0, np.nan]))


def test_cosine_equals_torch():
    for num_dims in [1, 3, 512, 768]:
        rng = torch.Generator().manual_seed(0)
        image, text = torch.randn((2, 50, num_dims), generator=rng, dtype=torch.float64)
        found = pair_cosine(image.float(), text.float())
        torch.testing.assert_close(found.double(), cosine_similarity(image, text), atol=5e-7, rtol=0)
        torch.testing.assert_close(normalise(image).double(), normalize(image), atol=5e-7, rtol=0)
    assert torch.equal(pair_cosine(image, torch.zeros_like(image)), torch.zeros(50))
    with pytest.raises(ValueError, match=r"images \(50, 768\) and texts \(1, 768\)"):
        pair_cosine(image, text[:1])


def test_a_row_does_not_depend_on_its_batch():
    for dtype in [torch.float32, torch.bfloat16, torch.float16]:
        rng = torch.Generator().manual_seed(1)
        image, text = torch.randn((2, 300, 512), generator=rng).to(dtype)
        whole = pair_cosine(image, text)
        assert whole.dtype == torch.float32
        for size in (1, 2, 3, 31, 128):
            parts = [pair_cosine(i, t) for i, t in zip(image.split(size), text.split(size), strict=True)]
            assert torch.equal(torch.cat(parts), whole)
        transposed = pair_cosine(image.T.contiguous().T, text)
        assert torch.equal(transposed, whole)


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


def test_what_does_not_vary_has_no_correlation():
    rng = np.random.default_rng(1)
    found = profile_pas(np.ones(50), rng.normal(size=50), np.ones((50, 3)), np.ones(50), rng.normal(size=50))
    assert math.isnan(found.alignment.value) and math.isnan(found.displacement.value)
    assert found.text.value == 0, "what does not vary explains nothing"
    few_N = np.arange(3.0)
    assert all(math.isnan(one.value) for one in profile_pas(few_N, few_N, np.ones((3, 3)), few_N, few_N))


def test_ranks_are_plain_counts():
    rng = np.random.default_rng(0)
    image, phrase, sample = (rng.normal(size=(num, 8)) for num in (20, 20, 50))
    sample[3] = 7 * image[5]  # the photo itself, of another length, is not better than itself

    def cosine(a, b) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    want = [
        np.mean([cosine(other, p) > cosine(own, p) + 1e-9 for other in sample])
        for own, p in zip(image, phrase, strict=True)
    ]
    found = find_ranks(*map(torch.tensor, (image, phrase, sample)))
    np.testing.assert_allclose(found, want, atol=1e-6)


def test_what_is_not_finite_has_no_rank():
    bad = torch.tensor([[1.0, 0.0], [float("nan"), 0.0]])
    rank = find_ranks(bad, torch.ones(2, 2), torch.eye(2))
    assert np.isfinite(rank[0]) and np.isnan(rank[1])
    assert not is_suspect(rank, np.ones(2), 4.0)[1]
