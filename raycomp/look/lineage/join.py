"""The rows of two runs joined by uid, in numpy: some 100 bytes for a row of both.

N and M rows of the first and the second side, J uids that both have.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from raycomp.core.uids import find_keys
from raycomp.look.lineage.sides import Outcomes
from raycomp.words import ALIGNED_STATUSES, KEPT, STATUSES

ABSENT = "not_in_input"
"""The outcome of a uid that is not among the rows of a side."""
REPEAT = 255
"""In place of the other side's outcome: the row's uid counts by another row of its side."""


@dataclass(frozen=True)
class Joined:
    """Two sides, joined by uid: a uid that occurs again in a side counts once there."""

    moves: Counter[tuple[str, str]]
    """uids by their outcomes in the first and the second."""
    names: tuple[tuple[str, ...], tuple[str, ...]]
    """The outcomes of the first and of the second, ABSENT last; codes are places in them."""
    other_N: np.ndarray
    """For each row of the first the code of its outcome in the second, or REPEAT."""
    other_M: np.ndarray
    """For each row of the second the code of its outcome in the first, or REPEAT."""
    repeats: tuple[int, int]
    """Rows of each side whose uid another of its rows has."""
    num_rescored: int
    """uids whose alignments differ, or that only one side has an alignment of."""
    largest: float
    """The largest absolute difference of two alignments; 0 without any."""

    @property
    def num_shared(self) -> int:
        return sum(count for pair, count in self.moves.items() if ABSENT not in pair)

    def count_kept(self) -> tuple[int, int, int]:
        """Return the numbers of uids kept in both, only in the first, only in the second."""
        counts: Counter[tuple[bool, bool]] = Counter()
        for (first, second), count in self.moves.items():
            counts[first == KEPT, second == KEPT] += count
        return counts[True, True], counts[True, False], counts[False, True]


def join_outcomes(first: Outcomes, second: Outcomes) -> Joined:
    """Join two sides by uid. Of a uid's rows in one side the one that has an alignment counts, else the
    first."""
    at_F, at_S = _list_distinct(first), _list_distinct(second)
    other_N = _look_up(first, at_F, second, at_S)
    other_M = _look_up(second, at_S, first, at_F)
    names = (*first.names, ABSENT), (*second.names, ABSENT)
    moves = Counter[tuple[str, str]]()
    pair_F = first.code_N[at_F].astype(np.int64) * (REPEAT + 1) + other_N[at_F]
    for pair, count in zip(*np.unique(pair_F, return_counts=True), strict=True):
        own, other = divmod(int(pair), REPEAT + 1)
        moves[names[0][own], names[1][other]] = int(count)
    new_S = second.code_N[at_S][other_M[at_S] == len(first.names)]
    for code, count in zip(*np.unique(new_S, return_counts=True), strict=True):
        moves[ABSENT, names[1][int(code)]] = int(count)
    repeats = len(first.key_N) - len(at_F), len(second.key_N) - len(at_S)
    place_F = find_keys(second.key_N[at_S], first.key_N[at_F])
    both_F = place_F >= 0
    alignments = first.alignment_N[at_F[both_F]], second.alignment_N[at_S[place_F[both_F]]]
    return Joined(moves, names, other_N, other_M, repeats, *_compare_scores(*alignments))


def _look_up(own: Outcomes, at_F: np.ndarray, other: Outcomes, at_S: np.ndarray) -> np.ndarray:
    """Return for each row of a side the code of its outcome in the other."""
    found_N = np.full(len(own.key_N), REPEAT, np.uint8)
    code_S = np.append(other.code_N[at_S], np.uint8(len(other.names)))
    found_N[at_F] = code_S[find_keys(other.key_N[at_S], own.key_N[at_F])]
    return found_N


def _list_distinct(side: Outcomes) -> np.ndarray:
    """Return the row of each distinct uid, in the order of uids."""
    bad = {*STATUSES} - {*ALIGNED_STATUSES}
    is_bad_N = np.isin(side.code_N, [i for i, name in enumerate(side.names) if name in bad])
    order_N = np.lexsort((is_bad_N, side.key_N))
    sorted_N = side.key_N[order_N]
    is_first_N = np.ones(len(order_N), bool)
    is_first_N[1:] = sorted_N[1:] != sorted_N[:-1]
    return order_N[is_first_N]


def _compare_scores(first_J: np.ndarray, second_J: np.ndarray) -> tuple[int, float]:
    missing_J = np.isnan(first_J), np.isnan(second_J)
    step_J = np.abs(first_J.astype(np.float64) - second_J)
    differs_J = (missing_J[0] != missing_J[1]) | (step_J > 0)
    largest = float(np.nanmax(step_J)) if (~np.isnan(step_J)).any() else 0.0
    return int(differs_J.sum()), largest
