"""Rank of the right target among all targets; ties count as lost, and are counted.

Q queries (images or texts), K targets (texts, images or classes), D dims; B queries of a tile. Every query
and every target belongs to an item: the right targets of a query are those of its own item.
"""

import math
from typing import NamedTuple

import numpy as np

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
    parts = [
        _rank_tile(
            (np.asarray(query_QD[start : start + num_rows], np.float64) @ target_DK).astype(np.float32),
            item_Q[start : start + num_rows, None] == item_K,
        )
        for start in range(0, max(1, len(item_Q)), num_rows)
    ]
    return Ranks(*map(np.concatenate, zip(*parts, strict=True)))


def _rank_tile(score_BK: np.ndarray, is_own_BK: np.ndarray) -> Ranks:
    best_B1 = np.where(is_own_BK, score_BK, -np.inf).max(1, keepdims=True)
    score_BK[is_own_BK] = -np.inf
    not_below_B = np.count_nonzero(~(score_BK < best_B1), axis=1)
    above_B = np.count_nonzero(score_BK > best_B1, axis=1)
    rival_B = score_BK.argmax(1)
    margin_B = best_B1[:, 0] - np.take_along_axis(score_BK, rival_B[:, None], 1)[:, 0]
    return Ranks(
        (1 + not_below_B).astype(np.int32), (not_below_B - above_B).astype(np.int32), margin_B, rival_B
    )


def find_hits(rank_Q: np.ndarray, ties_Q: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
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


def find_duplicates(row_ND: np.ndarray) -> np.ndarray:
    """Return a number from 0 for each row; rows that are equal, bit by bit, share it; int64 (N,)."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in row_ND], np.int64)
