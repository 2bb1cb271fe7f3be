"""How sure a benchmark's figures are: examples of one image stand or fall together, and so count together.

N examples, ``unit_N`` what each is of (its image), as any values that compare equal; G units; S seeds.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raycomp.core.metrics import Z_95

# Of a two-sided test at 5 % with a power of 80 %: 1.960 + 0.842 standard errors.
POWER_80 = Z_95 + 0.8416212335729143


class Share(NamedTuple):
    """A mean of values between 0 and 1, its 95 % interval, and what could be told from it."""

    value: float
    low: float
    high: float
    detectable: float
    """The least difference that a comparison of two models on these examples would find in 80 % of cases, at
    5 % two-sided, were they as good as this and right independently of one another; models are right
    together, so less is found."""


def find_share(right_N: np.ndarray, unit_N: np.ndarray, split_N: np.ndarray | None = None) -> Share:
    """Return the mean of ``right_N``, or with ``split_N`` the mean of the splits' means.

    The interval is Wilson's with as many independent examples as would vary as much as the units do (never
    more than examples; where all are right or all wrong, as many as units). NaN without examples.
    """
    if not len(right_N):
        return Share(*[float("nan")] * 4)
    value, mean_N, weight_N = _weigh(right_N, split_N)
    effective = _count_effective(right_N - mean_N, weight_N, value, unit_N)
    low, high = wilson(value, effective)
    # As if two more were right and two more wrong: at 0 and 1 nothing would seem to vary.
    smoothed = (value * effective + 2) / (effective + 4)
    detectable = POWER_80 * math.sqrt(2 * smoothed * (1 - smoothed) / effective)
    return Share(value, low, high, min(1.0, detectable))


def _count_effective(rest_N: np.ndarray, weight_N: np.ndarray, value: float, unit_N: np.ndarray) -> float:
    """Return how many independent examples have a mean that varies as this one does."""
    alone = float(((rest_N * weight_N) ** 2).sum())
    if not alone:
        return min(1 / float((weight_N**2).sum()), len(np.unique(unit_N)))
    variance = max(alone, clustered_variance(rest_N * weight_N, unit_N))
    return max(1.0, value * (1 - value) / variance)


def clustered_variance(moved_N: np.ndarray, unit_N: np.ndarray) -> float:
    """Return the variance of a sum of parts, each about 0, independent between units; 0 for one unit."""
    _, which_N = np.unique(unit_N, return_inverse=True)
    sum_G = np.bincount(which_N, moved_N)
    return float(len(sum_G) / max(1, len(sum_G) - 1) * (sum_G**2).sum()) if len(sum_G) > 1 else 0.0


def wilson(share: float, whole: float) -> tuple[float, float]:
    """Return the 95 % interval of a share of ``whole`` independent examples, by Wilson's score."""
    square = Z_95**2 / whole
    middle = share + square / 2
    half = math.sqrt(square * share * (1 - share) + square**2 / 4)
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


class Paired(NamedTuple):
    """Two models on the same examples: the second minus the first."""

    difference: float
    low: float
    high: float
    only_first: int
    """Examples that the first alone has right,"""
    only_second: int
    """and the second alone."""
    p: float
    """McNemar's exact test, two-sided, of examples as if each had an image of its own."""
    p_units: float
    """Of the difference against its standard error over units, two-sided."""
    detectable: float
    """The least difference that examples which vary as these do would show in 80 % of cases."""


def compare_paired(
    first_N: np.ndarray, second_N: np.ndarray, unit_N: np.ndarray, split_N: np.ndarray | None = None
) -> Paired:
    """Compare two models' right and wrong (1 and 0, or 1/2) on the same N examples; NaN without examples.

    With ``split_N`` the difference is the mean of the splits'. The interval takes the standard error over
    units. Where that is 0 there is none, and ``p_units`` is 1.
    """
    moved_N = np.asarray(second_N, np.float64) - np.asarray(first_N, np.float64)
    if not len(moved_N):
        nan = float("nan")
        return Paired(nan, nan, nan, 0, 0, nan, nan, nan)
    difference, mean_N, weight_N = _weigh(moved_N, split_N)
    error = math.sqrt(clustered_variance((moved_N - mean_N) * weight_N, unit_N))
    only_first, only_second = int((moved_N < 0).sum()), int((moved_N > 0).sum())
    ends = (max(-1.0, difference - Z_95 * error), min(1.0, difference + Z_95 * error))
    return Paired(
        difference,
        *(ends if error else (float("nan"),) * 2),
        only_first,
        only_second,
        mcnemar(only_first, only_second),
        math.erfc(abs(difference) / error / math.sqrt(2)) if error else 1.0,
        POWER_80 * error if error else float("nan"),
    )


def _weigh(value_N: np.ndarray, split_N: np.ndarray | None) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the mean of the splits' means; of every example its split's mean, and its weight in that."""
    if split_N is None:
        split_N = np.zeros(len(value_N), int)
    _, split_N, count_S = np.unique(split_N, return_inverse=True, return_counts=True)
    mean_S = np.bincount(split_N, value_N) / count_S
    return float(mean_S.mean()), mean_S[split_N], 1 / (len(count_S) * count_S[split_N])


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p of so uneven a split among the examples that models judge differently.

    The binomial test, exact; 1 where there is no such example. McNemar 1947.
    """
    num, few = only_first + only_second, min(only_first, only_second)
    logs = [math.lgamma(num + 1) - math.lgamma(k + 1) - math.lgamma(num - k + 1) for k in range(few + 1)]
    tail = math.fsum(math.exp(log - num * math.log(2)) for log in logs)
    return min(1.0, 2 * tail)


def hierarchical_interval(
    blocks: Sequence[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator, num_draws: int = 2000
) -> tuple[float, float, float]:
    """Return the mean over blocks of the means over seeds and examples, and the ends of its 95 % interval.

    A block is (value_SN, unit_N): S seeds judged on the same N examples, values of any sign. In every draw
    each block's seeds, and crossed with them its units, are drawn anew with replacement (Owen 2007, the
    pigeonhole bootstrap: a little too wide); the blocks stay. Percentiles of ``num_draws``.
    """
    drawn_R = np.zeros(num_draws)
    value = 0.0
    for value_SN, unit_N in blocks:
        _, which_N = np.unique(unit_N, return_inverse=True)
        count_G = np.bincount(which_N)
        sum_SG = np.stack([np.bincount(which_N, row_N) for row_N in np.asarray(value_SN, np.float64)])
        num_seeds, num_units = sum_SG.shape
        seed_RS = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), num_draws)
        unit_RG = rng.multinomial(num_units, np.full(num_units, 1 / num_units), num_draws)
        sum_R = ((seed_RS @ sum_SG) * unit_RG).sum(1)
        drawn_R += sum_R / (num_seeds * (unit_RG @ count_G)) / len(blocks)
        value += float(value_SN.mean()) / len(blocks)
    low, high = np.percentile(drawn_R, [2.5, 97.5])
    return value, float(low), float(high)
