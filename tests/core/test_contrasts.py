"""Paired contrasts against tables, hand counts and limits."""

import itertools
import math

import numpy as np
import pytest

from raycomp.core.intervals import contrast, holm, mean_by, wilcoxon


def test_intervals_and_p_against_tables() -> None:
    for num, t, power in [
        (2, 12.7062, 1.3764),
        (4, 3.1824, 0.9785),
        (16, 2.1314, 0.8662),
        (101, 1.9840, 0.8452),
    ]:
        drawn_S = np.random.default_rng(num).standard_normal(num)
        unit_S = (drawn_S - drawn_S.mean()) / drawn_S.std(ddof=1) * math.sqrt(num)
        found = contrast(unit_S + t)
        assert (found.low, found.high) == pytest.approx((0, 2 * t), abs=1e-4)
        assert found.p == pytest.approx(0.05, rel=1e-4)
        assert found.detectable == pytest.approx(t + power, abs=1e-4)


def test_a_contrast_that_cannot_be_tested_and_one_that_cannot_vary() -> None:
    assert math.isnan(contrast([1.0]).p) and contrast([1.0]).value == 1
    assert math.isnan(contrast([]).value)
    assert contrast([0.0, 0.0]).p == 1 and contrast([1.0, 1.0]).p == 0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_means_of_blocks() -> None:
    assert mean_by(np.array([1.0, 5.0, 3.0, 7.0]), np.array([2, 0, 2, 0])).tolist() == [6.0, 2.0]


def slow_wilcoxon(moved: list[float]) -> float:
    """Return p by signing the ranks in every way."""
    sizes = [abs(one) for one in moved]
    ranks = [sum(b < a for b in sizes) + (1 + sum(b == a for b in sizes)) / 2 for a in sizes]
    total = sum(rank for rank, one in zip(ranks, moved, strict=True) if one > 0)
    ways = [sum(way) for way in itertools.product(*((0, rank) for rank in ranks))]
    tails = sum(way <= total for way in ways), sum(way >= total for way in ways)
    return min(1.0, 2 * min(tails) / len(ways))


def test_signed_ranks_equal_every_way_of_signing() -> None:
    for moved in [
        [1.0, 2.0, 3.0, 4.0, 5.0],
        [0.5, -0.5, 0.5, 0.5, -2.0, 3.0, 3.0],
        [-1.0, -1.0, -1.0, 2.0, 2.0, -7.0, 0.1, 0.2, 0.3, 9.0],
        [3.0],
        [1.0, -1.0],
    ]:
        p = slow_wilcoxon(moved)
        assert wilcoxon([0.0, *moved, 0.0]) == pytest.approx(p, rel=1e-12)
        assert wilcoxon([-one for one in moved]) == pytest.approx(p, rel=1e-12)


def test_signed_ranks_of_many_are_those_of_the_normal_limit() -> None:
    rng = np.random.default_rng(3)
    moved_N = np.round(rng.normal(0.1, 1.0, 401), 1)
    moved_N = moved_N[moved_N != 0][:300]
    exact, more = wilcoxon(moved_N), wilcoxon(np.concatenate([moved_N, moved_N]))
    size_N = np.abs(moved_N)
    rank_N = np.array([(size_N < one).sum() + (1 + (size_N == one).sum()) / 2 for one in size_N])
    z = abs(rank_N[moved_N > 0].sum() - rank_N.sum() / 2) / math.sqrt((rank_N**2).sum() / 4)
    assert exact == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.02)
    assert more < exact


def test_signed_ranks_without_a_difference() -> None:
    assert wilcoxon([0.0, 0.0]) == wilcoxon([]) == 1.0
    with pytest.raises(ValueError, match=r"difference\[1\]=nan"):
        wilcoxon([1.0, math.nan])
