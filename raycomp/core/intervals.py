"""Intervals of scores whose examples are correlated, and contrasts of trainings paired by seed.

N examples or differences, ``unit_N`` the unit of each (its image), as any values that can be compared for
equality; S splits or seeds, G units.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raycomp.core.metrics import Z_95, average_ranks, student_95, wilson

# For a two-sided test at 5 % with a power of 80 %: 1.960 + 0.842 standard errors.
POWER_80 = Z_95 + 0.8416212335729143


class Share(NamedTuple):
    """A mean of values between 0 and 1, its 95 % interval, and its minimum detectable difference."""

    value: float
    low: float
    high: float
    detectable: float
    """The minimum detectable difference: a comparison of two models on these examples finds it in 80 % of
    cases, at 5 % two-sided, if both have this accuracy and their errors are independent. Models usually err
    together, so smaller differences are found."""


def compute_share(right_N: np.ndarray, unit_N: np.ndarray, split_N: np.ndarray | None = None) -> Share:
    """Return the mean of ``right_N``, or with ``split_N`` the mean of the splits' means.

    The interval is Wilson's, with the number of independent examples whose mean would vary as much as that of
    the units (never more than examples; if all are right or all wrong, as many as units). The mean of splits
    has 1.96 standard errors on either side, each split with two more right and two more wrong examples: a few
    examples that are all right do not give certainty. NaN without examples.
    """
    if not len(right_N):
        return Share(*[float("nan")] * 4)
    right_N, at_S = np.asarray(right_N, np.float64), _list_splits(len(right_N), split_N)
    value_S = np.array([right_N[at].mean() for at in at_S])
    effective_S = np.array([_count_effective(right_N[at], unit_N[at]) for at in at_S])
    smooth_S = (value_S * effective_S + 2) / (effective_S + 4)
    parts = float((smooth_S * (1 - smooth_S) / effective_S).sum()) / len(at_S) ** 2
    variance = parts + _compute_common(right_N, unit_N, at_S)
    value, half = float(value_S.mean()), Z_95 * math.sqrt(variance)
    ends = max(0.0, value - half), min(1.0, value + half)
    if len(at_S) == 1:
        ends = wilson(value, float(effective_S[0]))
    return Share(value, *ends, min(1.0, POWER_80 * math.sqrt(2 * variance)))


def _list_splits(num: int, split_N: np.ndarray | None) -> list[np.ndarray]:
    """Return the indices of each split's examples; all of them if there are no splits."""
    if split_N is None:
        return [np.arange(num)]
    _, which_N, count_S = np.unique(split_N, return_inverse=True, return_counts=True)
    return np.split(np.argsort(which_N, kind="stable"), np.cumsum(count_S)[:-1])


def _count_effective(right_N: np.ndarray, unit_N: np.ndarray) -> float:
    """Return the number of independent examples whose mean varies as this one does; 1 for one unit."""
    num, value, num_units = len(right_N), float(right_N.mean()), len(np.unique(unit_N))
    alone = float(((right_N - value) ** 2).sum()) / num**2
    if not alone or num_units == 1:
        return float(num_units)
    clustered = clustered_variance((right_N - value) / num, unit_N)
    # The variance estimated from a few units is itself uncertain.
    variance = max(alone, clustered * (student_95(num_units - 1) / Z_95) ** 2) if num_units < num else alone
    return max(1.0, value * (1 - value) / variance)


def _compute_common(value_N: np.ndarray, unit_N: np.ndarray, at_S: Sequence[np.ndarray]) -> float:
    """Return the additional variance of the mean of splits, because units are in several splits at once."""
    if len(at_S) == 1:
        return 0.0
    moved_N, split_N = np.zeros(len(value_N)), np.zeros(len(value_N), int)
    for split, at in enumerate(at_S):
        moved_N[at] = (value_N[at] - value_N[at].mean()) / (len(at) * len(at_S))
        split_N[at] = split
    _, which_N = np.unique(unit_N, return_inverse=True)
    _, part_N = np.unique(which_N * len(at_S) + split_N, return_inverse=True)
    together = float((np.bincount(which_N, moved_N) ** 2).sum())
    return max(0.0, together - float((np.bincount(part_N, moved_N) ** 2).sum()))


def clustered_variance(moved_N: np.ndarray, unit_N: np.ndarray) -> float:
    """Return the variance of a sum of parts, each about 0, independent between units; 0 for one unit."""
    _, which_N = np.unique(unit_N, return_inverse=True)
    sum_G = np.bincount(which_N, moved_N)
    return float(len(sum_G) / max(1, len(sum_G) - 1) * (sum_G**2).sum()) if len(sum_G) > 1 else 0.0


class Paired(NamedTuple):
    """Two models on the same examples: the second minus the first."""

    difference: float
    low: float
    high: float
    only_first: int
    """Examples that only the first has right,"""
    only_second: int
    """and only the second."""
    p: float
    """McNemar's exact test, two-sided, if every example is a unit of its own; else NaN, because the test
    assumes that examples of one unit are independent, which gives too small a p."""
    p_units: float
    """Two-sided p of the difference against its standard error over units, by Student's t."""
    detectable: float
    """The difference that examples with this variance would show in 80 % of cases."""


def compare_paired(
    first_N: np.ndarray, second_N: np.ndarray, unit_N: np.ndarray, split_N: np.ndarray | None = None
) -> Paired:
    """Compare two models' right and wrong (1 and 0, or 1/2) on the same N examples; NaN without examples.

    With ``split_N`` the difference is the mean of the splits'. The interval uses the standard error over
    units, in each split at least that of independent examples with one more example that only either model
    has right (Bonett and Price 2012), and Student's t of as many units. With only one unit, or if no example
    is judged differently, there is no interval, and ``p_units`` is 1.
    """
    from scipy import stats  # slow to import

    moved_N, nan = np.asarray(second_N, np.float64) - np.asarray(first_N, np.float64), float("nan")
    if not len(moved_N):
        return Paired(nan, nan, nan, 0, 0, nan, nan, nan)
    at_S = _list_splits(len(moved_N), split_N)
    difference = float(np.mean([moved_N[at].mean() for at in at_S]))
    only_first, only_second = int((moved_N < 0).sum()), int((moved_N > 0).sum())
    num_units = len(np.unique(unit_N))
    p = mcnemar(only_first, only_second) if num_units == len(moved_N) else nan
    if num_units == 1 or not only_first + only_second:
        return Paired(difference, nan, nan, only_first, only_second, p, 1.0, nan)
    parts = 0.0
    for moved_M, unit_M in ((moved_N[at], unit_N[at]) for at in at_S):
        num, mean = len(moved_M), float(moved_M.mean())
        apart = (float((moved_M**2).sum()) + 2) / (num + 2)
        least = (apart - (mean * num / (num + 2)) ** 2) / (num + 2)
        is_one = len(np.unique(unit_M)) == 1
        own = (mean - difference) ** 2 if is_one else clustered_variance((moved_M - mean) / num, unit_M)
        parts += max(least, own)
    parts /= len(at_S) ** 2
    error, freedom = math.sqrt(parts + _compute_common(moved_N, unit_N, at_S)), num_units - 1
    reach = float(stats.t.ppf(0.975, freedom)) * error
    low, high = max(-1.0, difference - reach), min(1.0, difference + reach)
    p_units = float(2 * stats.t.sf(abs(difference) / error, freedom))
    detectable = min(1.0, reach + float(stats.t.ppf(0.8, freedom)) * error)
    return Paired(difference, low, high, only_first, only_second, p, p_units, detectable)


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p of this imbalance among the examples that the models judge differently.

    The exact binomial test; 1 if there is no such example. McNemar 1947.
    """
    from scipy.stats import binom

    return min(1.0, 2 * float(binom.cdf(min(only_first, only_second), only_first + only_second, 0.5)))


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
