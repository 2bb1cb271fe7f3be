"""Which examples are correct, the intervals of such scores, and contrasts of trainings paired by seed.

N examples or differences, ``unit_N`` the unit of each (its image), as any values that can be compared for
equality; S splits or seeds, G units. An example has the scores of P true captions (positives) and Q false
ones (negatives); a larger score is a better fit. Strict: a tie is wrong, and is reported. Baselines are
evaluated by the same functions.

Ranks: Q queries (images or texts), K targets (texts, images or classes), D dims; B queries of a tile. Every
query and every target belongs to an item: the right targets of a query are those of its own item.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from raycomp import words
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
    """Return the mean of ``right_N``, or with ``split_N`` the mean of the splits' means; with its two columns
    of splits and classes, the mean over splits of the means over classes.

    The interval is Wilson's, with the number of independent examples whose mean would vary as much as that of
    the units (never more than examples; if all are right or all wrong, as many as units). The mean of splits
    has 1.96 standard errors on either side, each split with two more right and two more wrong examples: a few
    examples that are all right do not give certainty. NaN without examples.
    """
    if not len(right_N):
        return Share(*[float("nan")] * 4)
    right_N, at_S = np.asarray(right_N, np.float64), _list_splits(len(right_N), split_N)
    times_S, value_S = np.array([(times, right_N[at].mean()) for times, at in at_S]).T
    effective_S = np.array([_count_effective(right_N[at], unit_N[at]) for _, at in at_S])
    smooth_S = (value_S * effective_S + 2) / (effective_S + 4)
    parts = float((times_S**2 * smooth_S * (1 - smooth_S) / effective_S).sum()) / len(at_S) ** 2
    variance = parts + _compute_common(right_N, unit_N, at_S)
    value, half = float((times_S * value_S).mean()), Z_95 * math.sqrt(variance)
    ends = max(0.0, value - half), min(1.0, value + half)
    if len(at_S) == 1:
        ends = wilson(value, float(effective_S[0]))
    return Share(value, *ends, min(1.0, POWER_80 * math.sqrt(2 * variance)))


def _list_splits(num: int, split_N: np.ndarray | None) -> list[tuple[float, np.ndarray]]:
    """Return each split's weight, 1 on average, and its examples' indices; None is one split of them all."""
    if split_N is None:
        return [(1.0, np.arange(num))]
    axis = 0 if split_N.ndim > 1 else None
    one_S, which_N, count_S = np.unique(split_N, axis=axis, return_inverse=True, return_counts=True)
    at_S = np.split(np.argsort(which_N.ravel(), kind="stable"), np.cumsum(count_S)[:-1])
    outer_S, num_O = np.unique(one_S.reshape(len(at_S), -1)[:, 0], False, True, True)[1:]
    return list(zip(len(at_S) / (len(num_O) * num_O[outer_S]), at_S, strict=True))


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


def _compute_common(value_N: np.ndarray, unit_N: np.ndarray, at_S: Sequence[tuple]) -> float:
    """Return the additional variance of the mean of splits, because units are in several splits at once."""
    if len(at_S) == 1:
        return 0.0
    moved_N, split_N = np.zeros(len(value_N)), np.zeros(len(value_N), int)
    for split, (times, at) in enumerate(at_S):
        moved_N[at] = times * (value_N[at] - value_N[at].mean()) / (len(at) * len(at_S))
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
    difference = float(np.mean([times * moved_N[at].mean() for times, at in at_S]))
    only_first, only_second = int((moved_N < 0).sum()), int((moved_N > 0).sum())
    num_units = len(np.unique(unit_N))
    p = mcnemar(only_first, only_second) if num_units == len(moved_N) else nan
    if num_units == 1 or not only_first + only_second:
        return Paired(difference, nan, nan, only_first, only_second, p, 1.0, nan)
    parts = 0.0
    for times, moved_M, unit_M in ((times, moved_N[at], unit_N[at]) for times, at in at_S):
        num, mean = len(moved_M), float(moved_M.mean())
        apart = (float((moved_M**2).sum()) + 2) / (num + 2)
        least = (apart - (mean * num / (num + 2)) ** 2) / (num + 2)
        is_one = len(np.unique(unit_M)) == 1
        own = (mean - difference) ** 2 if is_one else clustered_variance((moved_M - mean) / num, unit_M)
        parts += times**2 * max(least, own)
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


# Scores held in memory at once.
_TILE = 1 << 22


class Ranks(NamedTuple):
    """The results of Q queries."""

    rank_Q: np.ndarray
    """1 + the number of other items' targets that score at least as high as the best own one; int32."""
    ties_Q: np.ndarray
    """Number of those with the same score; int32."""
    margin_Q: np.ndarray
    """The best own score less the best other score; float32."""
    rival_Q: np.ndarray
    """The target with the best other score, the first of several; int64."""


def rank_items(query_QD: np.ndarray, target_KD: np.ndarray, item_Q: np.ndarray, item_K: np.ndarray) -> Ranks:
    """Rank all targets for every query by their inner product; NaN counts as a tie.

    Products are computed in float64 and compared in float32, so equal embeddings tie in any order and tile of
    multiplication. Every query has a target of its own item and one of another.
    """
    target_DK = np.asarray(target_KD, np.float64).T
    num_rows = max(1, _TILE // max(1, len(item_K)))
    parts = []
    for start in range(0, max(1, len(item_Q)), num_rows):
        rows = slice(start, start + num_rows)
        score_BK = (np.asarray(query_QD[rows], np.float64) @ target_DK).astype(np.float32)
        is_own_BK = item_Q[rows, None] == item_K
        best_B1 = np.where(is_own_BK, score_BK, -np.inf).max(1, keepdims=True)
        score_BK[is_own_BK] = -np.inf
        not_below_B = np.count_nonzero(~(score_BK < best_B1), axis=1).astype(np.int32)
        above_B = np.count_nonzero(score_BK > best_B1, axis=1).astype(np.int32)
        rival_B = score_BK.argmax(1)
        margin_B = best_B1[:, 0] - np.take_along_axis(score_BK, rival_B[:, None], 1)[:, 0]
        parts.append((1 + not_below_B, not_below_B - above_B, margin_B, rival_B))
    return Ranks(*map(np.concatenate, zip(*parts, strict=True)))


def count_hits(rank_Q: np.ndarray, ties_Q: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which queries rank their own among the first k (1, 0; float64), and which only ties prevent."""
    right_Q = rank_Q <= k
    return right_Q.astype(np.float64), ~right_Q & (rank_Q - ties_Q <= k)


def chance_of_hit(num_own: int, num_targets: int, k: int) -> float:
    """Return the probability that one of ``num_own`` of ``num_targets`` targets is in a random first k."""
    return 1 - math.comb(num_targets - num_own, k) / math.comb(num_targets, k)


def mean_directions(text_CKD: np.ndarray) -> np.ndarray:
    """Return the mean of every class's K texts, scaled to length 1: float64 (C, D).

    The weights of a zero-shot classifier (Radford et al. 2021, arXiv:2103.00020, section 3.1.4); texts have
    length 1.
    """
    mean_CD = np.mean(text_CKD, axis=1, dtype=np.float64)
    return mean_CD / np.maximum(np.linalg.norm(mean_CD, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def number_duplicates(row_ND: np.ndarray) -> np.ndarray:
    """Return a number from 0 for each row; rows that are equal, bit by bit, share it; int64 (N,)."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in row_ND], np.int64)


Scores = Sequence[Sequence[float]]


class Verdict(NamedTuple):
    """One metric of N examples."""

    right_N: np.ndarray
    """1, 0, or 1/2 where a tie counts half; float64."""
    tie_N: np.ndarray
    """Whether the deciding scores are equal; bool."""
    chance_N: np.ndarray
    """The expected value for scores in random order; float64."""


class Pair(NamedTuple):
    """An item of two images with a caption each, by the rows of a table of choices: each row's only negative
    is the other row's caption."""

    first: int
    second: int


def judge_choices(positives: Scores, negatives: Scores, half_ties: bool = False) -> dict[str, Verdict]:
    """Return the metrics of choices, which have at least one positive and one negative each.

    ``accuracy``: the first positive above all negatives. Where every example has several positives, also
    ``augmented_accuracy``, all positives above all negatives (Kamath et al. 2024, arXiv:2409.17958; ITT of
    SugarCrepe++, arXiv:2406.11171), and ``brittleness``, the share with a negative strictly between two
    positives. With ``half_ties`` a tie counts 1/2, as for a baseline whose scores are whole numbers.
    """
    first_N = np.array([scores[0] for scores in positives], np.float64)
    least_N = np.array([min(scores) for scores in positives], np.float64)
    false_N = np.array([max(scores) for scores in negatives], np.float64)
    num_true_N = np.array([len(scores) for scores in positives])
    num_false_N = np.array([len(scores) for scores in negatives])
    found = {words.ACCURACY: _compare(first_N, false_N, 1 / (1 + num_false_N), half_ties)}
    if len(num_true_N) and (num_true_N > 1).all():
        # How often all true captions rank before all false ones.
        counts = zip(num_true_N + num_false_N, num_true_N, strict=True)
        chance_N = np.array([1 / math.comb(num_texts, num_true) for num_texts, num_true in counts])
        found[words.AUGMENTED_ACCURACY] = _compare(least_N, false_N, chance_N, half_ties)
        # Brittleness: a negative lies between two positives; none does if these are adjacent in joint order.
        rows = []
        for true, false in zip(positives, negatives, strict=True):
            low, high = min(true), max(true)
            is_between = any(low < score < high for score in false)
            chance = 1 - (1 + len(false)) / math.comb(len(true) + len(false), len(true))
            rows.append((float(is_between), not is_between and bool({low, high} & {*false}), chance))
        found[words.BRITTLENESS] = Verdict(*map(np.array, zip(*rows, strict=True)))
    return found


def _compare(true_N: np.ndarray, false_N: np.ndarray, chance_N: np.ndarray, half_ties: bool) -> Verdict:
    tie_N = true_N == false_N
    return Verdict((true_N > false_N) + tie_N * (0.5 * half_ties), tie_N, chance_N)


def judge_texts(text_scores: Scores, num_positives: int) -> Verdict:
    """Return whether true captions are nearer to each other than to any false one (TOT).

    SugarCrepe++ (arXiv:2406.11171). Each example's scores are the cosines of all pairs of its texts,
    positives first, the upper triangle row by row.
    """
    right, tie, chance = [], [], []
    for scores in text_scores:
        kinds = _count_positives(len(scores), num_positives)
        own = [score for score, kind in zip(scores, kinds, strict=True) if kind == 2]
        other = [score for score, kind in zip(scores, kinds, strict=True) if kind == 1]
        right.append(float(min(own) > max(other)))
        tie.append(min(own) == max(other))
        chance.append(1 / math.comb(len(own) + len(other), len(own)))
    return Verdict(np.array(right), np.array(tie, bool), np.array(chance))


@lru_cache(maxsize=64)
def _count_positives(num_pairs: int, num_positives: int) -> list[int]:
    """Return how many of each pair's two texts are positives."""
    num_texts = round((1 + math.sqrt(1 + 8 * num_pairs)) / 2)
    return [int(i < num_positives) + int(j < num_positives) for i, j in combinations(range(num_texts), 2)]


def judge_pairs(positives: Scores, negatives: Scores, pairs: Sequence[Pair]) -> dict[str, Verdict]:
    """Return the metrics of items of two images and two captions (Winoground, arXiv:2204.03162).

    ``text``: for both images the own caption is scored higher; ``image``: for both captions the own image is;
    ``group``: both. The scores are those of the rows that ``pairs`` names, one positive and one negative
    each.
    """
    own = np.array([[positives[i][0], positives[j][0]] for i, j in pairs], np.float64).reshape(-1, 2)
    # For each image the other caption; reversed, for each caption the other image.
    other = np.array([[negatives[i][0], negatives[j][0]] for i, j in pairs], np.float64).reshape(-1, 2)
    won = {words.TEXT_SCORE: own > other, words.IMAGE_SCORE: own > other[:, ::-1]}
    tied = {words.TEXT_SCORE: own == other, words.IMAGE_SCORE: own == other[:, ::-1]}
    won[words.GROUP_SCORE], tied[words.GROUP_SCORE] = (
        np.concatenate([found[words.TEXT_SCORE], found[words.IMAGE_SCORE]], 1) for found in (won, tied)
    )
    verdicts = {}
    for name, chance in ((words.TEXT_SCORE, 1 / 4), (words.IMAGE_SCORE, 1 / 4), (words.GROUP_SCORE, 1 / 6)):
        only_tie_N = (won[name] | tied[name]).all(1) & tied[name].any(1)
        right_N = np.asarray(won[name].all(1), np.float64)
        verdicts[name] = Verdict(right_N, only_tie_N, np.full(len(pairs), chance))
    return verdicts
