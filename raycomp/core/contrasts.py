"""Contrasts of a study: trainings paired by seed, their effects and minimum detectable effects.

S seeds, G units (test images) that all seeds of a block share, C categories, R draws, N differences.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raycomp.core.metrics import average_ranks

_MOST_SIGNED = 400


class Contrast(NamedTuple):
    """The mean of paired differences, and its Student's t test; NaN with fewer than two differences."""

    value: float
    low: float
    high: float
    """Ends of the 95 % interval."""
    p: float
    """Two-sided, for a mean of 0."""
    sd: float
    """Standard deviation of one difference."""
    detectable: float
    """The minimum detectable mean: as many differences of this ``sd`` find it in 80 % of studies, at 5 %
    two-sided: the sum of t's quantiles at 97.5 and 80 %, in standard errors."""
    num: int


def contrast(difference_S: Sequence[float] | np.ndarray) -> Contrast:
    """Test whether differences that are independent of each other have a mean of 0, by a paired t test."""
    from scipy import stats  # slow to import

    difference_S = np.asarray(difference_S, np.float64)
    num, nan = len(difference_S), float("nan")
    value = float(difference_S.mean()) if num else nan
    if num < 2:
        return Contrast(value, nan, nan, nan, nan, nan, num)
    sd, freedom = float(difference_S.std(ddof=1)), num - 1
    error, reach = sd / math.sqrt(num), float(stats.t.ppf(0.975, freedom))
    p = float(2 * stats.t.sf(abs(value) / error, freedom)) if error else float(value == 0)
    detectable = (reach + float(stats.t.ppf(0.8, freedom))) * error
    return Contrast(value, value - reach * error, value + reach * error, p, sd, detectable, num)


def mean_by(value_S: np.ndarray, block_S: np.ndarray) -> np.ndarray:
    """Return the mean of each block's values, blocks in rising order: the differences between blocks."""
    _, which_S = np.unique(block_S, return_inverse=True)
    return np.bincount(which_S, value_S) / np.bincount(which_S)


def holm(p_M: Sequence[float]) -> list[float]:
    """Return p values adjusted for multiple tests: Holm (1979) rejects those below 0.05 at 5 %.

    The chance of any false rejection is then at most 5 %, for any set of true hypotheses.
    """
    adjusted, most = [0.0] * len(p_M), 0.0
    for place, i in enumerate(sorted(range(len(p_M)), key=lambda i: p_M[i])):
        most = max(most, min(1.0, (len(p_M) - place) * p_M[i]))
        adjusted[i] = most
    return adjusted


def bootstrap_seeds(
    blocks: Sequence[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator, num_draws: int = 2000
) -> tuple[float, float, float]:
    """Return the mean over all seeds of the mean over categories, and the ends of its 95 % interval.

    A block is (sum_SGC, count_GC): the sums of S seeds that share their test images, by image and category,
    and the number of examples. Every draw resamples with replacement all seeds, from any block, and, crossed
    with them, the images of each block. The ends are percentiles of ``num_draws``.
    """
    parts, drawn = [], []
    for sum_SGC, count_GC in blocks:
        num = len(count_GC)
        parts.append((sum_SGC.sum(1) / count_GC.sum(0)).mean(1))
        unit_RG = rng.multinomial(num, np.full(num, 1 / num), num_draws).astype(np.float64)
        count_RC = unit_RG @ count_GC
        shares = [(unit_RG @ sum_GC / np.maximum(count_RC, 1)).mean(1) for sum_GC in sum_SGC]
        drawn.append(np.stack(shares, axis=1))
    value_S, drawn_RS = np.concatenate(parts), np.concatenate(drawn, axis=1)
    num_seeds = len(value_S)
    seed_RS = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), num_draws)
    low, high = np.percentile((drawn_RS * seed_RS).sum(1) / num_seeds, [2.5, 97.5])
    return float(value_S.mean()), float(low), float(high)


def wilcoxon(difference_N: Sequence[float] | np.ndarray) -> float:
    """Return the two-sided p of the hypothesis that independent, symmetric differences have centre 0.

    Wilcoxon's signed ranks (1945) of differences that are not 0; 1 without any. Equal sizes share the mean of
    their ranks. Up to 400 differences p counts all sign assignments of these ranks, so it is exact with ties;
    above, it is that of a normal with their variance. ValueError on NaN.
    """
    difference_N = np.asarray(difference_N, np.float64)
    if np.isnan(difference_N).any():
        raise ValueError(f"difference[{int(np.isnan(difference_N).argmax())}]=nan: must be a number")
    moved_N = difference_N[difference_N != 0]
    if not len(moved_N):
        return 1.0
    # scipy's wilcoxon has no exact p for ties. This uses twice the rank, which is whole.
    double_N = (2 * average_ranks(np.abs(moved_N))).astype(np.int64)
    total = int(double_N[moved_N > 0].sum())
    if len(moved_N) > _MOST_SIGNED:
        reach = abs(total - double_N.sum() / 2) / math.sqrt((double_N.astype(np.float64) ** 2).sum() / 4)
        return math.erfc(reach / math.sqrt(2))
    chance = np.zeros(int(double_N.sum()) + 1)
    chance[0] = 1.0
    for rank in double_N.tolist():
        chance[rank:] = chance[rank:] / 2 + chance[:-rank] / 2
        chance[:rank] /= 2
    tail = min(chance[: total + 1].sum(), chance[total:].sum())
    return min(1.0, 2 * float(tail))
