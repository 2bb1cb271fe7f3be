"""Correctness of each example: from the scores of captions, and from ranks among all targets.

Q queries (images or texts), K targets (texts, images or classes), D dims; B queries of a tile. Every query
and every target belongs to an item: the right targets of a query are those of its own item.

N examples, each with the scores of P true captions (positives) and Q false ones (negatives); a larger score
is a better fit. Strict: a tie is wrong, and is reported. Baselines are evaluated by the same functions.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raycomp import words

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
        found[words.BRITTLENESS] = _find_between(positives, negatives)
    return found


def _compare(true_N: np.ndarray, false_N: np.ndarray, chance_N: np.ndarray, half_ties: bool) -> Verdict:
    tie_N = true_N == false_N
    return Verdict((true_N > false_N) + tie_N * (0.5 * half_ties), tie_N, chance_N)


def _find_between(positives: Scores, negatives: Scores) -> Verdict:
    right, tie, chance = [], [], []
    for true, false in zip(positives, negatives, strict=True):
        low, high = min(true), max(true)
        is_between = any(low < score < high for score in false)
        right.append(float(is_between))
        tie.append(not is_between and bool({low, high} & {*false}))
        # No negative is between them if all positives are adjacent in the joint order.
        chance.append(1 - (1 + len(false)) / math.comb(len(true) + len(false), len(true)))
    return Verdict(np.array(right), np.array(tie), np.array(chance))


def judge_texts(text_scores: Scores, num_positives: int) -> Verdict:
    """Return whether true captions are nearer to each other than to any false one (TOT).

    SugarCrepe++ (arXiv:2406.11171). Each example's scores are the cosines of all pairs of its texts,
    positives first, the upper triangle row by row.
    """
    right, tie, chance = [], [], []
    for scores in text_scores:
        num_texts = round((1 + math.sqrt(1 + 8 * len(scores))) / 2)
        pairs = zip(*np.triu_indices(num_texts, 1), strict=True)
        kinds = [int(i < num_positives) + int(j < num_positives) for i, j in pairs]
        own = [score for score, kind in zip(scores, kinds, strict=True) if kind == 2]
        other = [score for score, kind in zip(scores, kinds, strict=True) if kind == 1]
        right.append(float(min(own) > max(other)))
        tie.append(min(own) == max(other))
        chance.append(1 / math.comb(len(own) + len(other), len(own)))
    return Verdict(np.array(right), np.array(tie, bool), np.array(chance))


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
