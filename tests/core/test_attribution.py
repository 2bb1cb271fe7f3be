"""Attribution against slow loops and limits; alignment against torch's own cosine and against itself."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, normalize

from raycomp.core.alignment import normalise, pair_cosine
from raycomp.core.attribution import Moments, aggregate_drops, pair_drop
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


def test_bad_aggregates_and_offsets_are_named():
    drop = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"attribute\.aggregate='median': must be one of"):
        aggregate_drops(drop, np.array([0, 3]), "median")
    for offset in ([0, 2, 1], [0, 4], [-1, 3], []):
        with pytest.raises(ValueError, match="at most the number of phrases, 3"):
            aggregate_drops(drop, np.array(offset, dtype=np.int64), "mean")


def test_drop_is_positive_where_the_counterfactual_fits_worse():
    alignment = np.float32([[0.3], [0.2]])
    counterfactual = np.float32([[0.1, 0.3], [0.2, 0.25]])
    drop = pair_drop(alignment, counterfactual)
    assert drop.dtype == np.float32
    np.testing.assert_array_equal(drop > 0, [[True, False], [False, False]])
    np.testing.assert_array_equal(drop, alignment - counterfactual)


def test_moments_of_pieces_equal_the_whole():
    for shift in [0.0, 1e6]:
        rng = np.random.default_rng(3)
        value = rng.standard_normal(3000) + shift
        whole = Moments.of(value)
        np.testing.assert_allclose([whole.mean, whole.std], [value.mean(), value.std()], rtol=1e-12)
        pieces = [Moments.of(piece) for piece in np.split(value, [0, 1, 17, 17, 2000])]
        left = Moments()
        for piece in pieces:
            left = left.merge(piece)
        right = pieces[0].merge(pieces[1]).merge(pieces[2].merge(pieces[3].merge(pieces[4]))).merge(pieces[5])
        for merged in (left, right):
            assert merged.count == 3000
            np.testing.assert_allclose([merged.mean, merged.m2], [whole.mean, whole.m2], rtol=1e-9)
        again = Moments()
        for piece in pieces:
            again = again.merge(piece)
        assert again == left


def test_moments_of_nothing_and_of_equal_values():
    assert Moments().merge(Moments()) == Moments.of(np.zeros(0)) == Moments()
    assert Moments().std == 0
    assert Moments.of(np.full(999, 0.1)) == Moments(999, 0.1, 0.0)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not finite"):
            Moments.of(np.array([0.0, bad]))


def test_cosine_equals_torch():
    for num_dims in [1, 3, 512, 640, 768]:
        rng = torch.Generator().manual_seed(0)
        image, text = torch.randn((2, 50, num_dims), generator=rng, dtype=torch.float64)
        want = cosine_similarity(image, text)
        got = pair_cosine(image.float(), text.float())
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, atol=5e-7, rtol=0)
        torch.testing.assert_close(normalise(image).double(), normalize(image), atol=5e-7, rtol=0)


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


def test_cosine_limits():
    x = torch.randn((20, 512), generator=torch.Generator().manual_seed(2))
    ones = torch.ones(20)
    torch.testing.assert_close(pair_cosine(x, 7 * x), ones, atol=3e-7, rtol=0)
    torch.testing.assert_close(pair_cosine(x, -x), -ones, atol=3e-7, rtol=0)
    assert torch.equal(pair_cosine(x, torch.zeros_like(x)), 0 * ones)
    assert pair_cosine(x[:0], x[:0]).shape == (0,)
    with pytest.raises(ValueError, match=r"images \(20, 512\) and texts \(1, 512\)"):
        pair_cosine(x, x[:1])
