"""Planted faults judged by what a choice keeps: rules at one budget, and what a rule favours beside faults.

The AUC of ``fault_table`` compares scores over whole rankings; here the subsets are compared that come of
them. N rows; ``kept_N`` and ``pool_N`` are bool, the pool being the rows that the second gate of cpi ranks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raycomp.core.metrics import Z_95, drawn_interval, share_interval
from raycomp.worlds.faults import NO_FAULT
from raycomp.worlds.scenes import SHAPES

ALL_FAULTS = "all faults"
MANY_PHRASES = 5


@dataclass(frozen=True)
class KeptShare:
    """``part`` of ``whole`` rows, and the ends of the share's 95 % interval."""

    part: float
    """A mean over all draws where a draw keeps the rows, so not always a whole number."""
    whole: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """NaN where there are no rows."""
        return self.part / self.whole if self.whole else float("nan")


@dataclass(frozen=True)
class KindCount:
    """How many rows of one kind there are, and how many of them each rule keeps."""

    what: str
    num_rows: int
    num_pooled: int
    by_rule: dict[str, KeptShare]
    """Intervals after Wilson: over other worlds, with the gates where they are."""
    drawn: KeptShare
    """As many rows drawn from the pool as cpi keeps, of all possible draws: the mean and the central 95 %
    of a hypergeometric distribution, exact. An interval over draws from this world, not over worlds."""


def count_kept(
    groups: Mapping[str, np.ndarray], kept: Mapping[str, np.ndarray], pool_N: np.ndarray, num_drawn: int
) -> list[KindCount]:
    """Return one row per group, a name and its rows as bool [N], with what each rule keeps of it.

    ValueError where more are to be drawn than the pool has.
    """
    rows = []
    for what, group_N in groups.items():
        whole, pooled = int(group_N.sum()), int((group_N & pool_N).sum())
        parts = {rule: int((group_N & kept_N).sum()) for rule, kept_N in kept.items()}
        shares = {rule: KeptShare(part, whole, *share_interval(part, whole)) for rule, part in parts.items()}
        mean, low, high = drawn_interval(int(pool_N.sum()), pooled, num_drawn)
        drawn = KeptShare(mean, whole, low / max(whole, 1), high / max(whole, 1))
        rows.append(KindCount(what, whole, pooled, shares, drawn))
    return rows


def group_faults(fault_N: Sequence[str] | np.ndarray) -> dict[str, np.ndarray]:
    """Return the rows of each planted fault, by name, and of all of them."""
    fault_N = np.asarray(fault_N, dtype=str)
    faults = sorted(set(fault_N.tolist()) - {NO_FAULT})
    return {**{fault: fault_N == fault for fault in faults}, ALL_FAULTS: fault_N != NO_FAULT}


def group_traits(captions: Sequence[str], num_phrases_N: np.ndarray) -> dict[str, np.ndarray]:
    """Return the rows by what their captions speak of: number of things, number of phrases, each shape."""
    shapes = [[word for word in re.findall(r"\w+", caption) if word in SHAPES] for caption in captions]
    num_things_N = np.array([len(found) for found in shapes])
    groups = {f"{count} things": num_things_N == count for count in (2, 3)}
    groups |= {f"{count} phrases": num_phrases_N == count for count in range(1, MANY_PHRASES)}
    groups[f"{MANY_PHRASES} phrases or more"] = num_phrases_N >= MANY_PHRASES
    groups |= {f"a {shape}": np.array([shape in found for found in shapes]) for shape in SHAPES}
    return {what: group_N for what, group_N in groups.items() if group_N.any()}


def compare_kept(first_N: np.ndarray, second_N: np.ndarray) -> tuple[float, float, float]:
    """Return how many more of N rows the first choice keeps than the second, with its 95 % interval.

    Paired, as both choose among the same rows: N times the mean of the rows' own differences, -+ 1.96 of its
    standard errors. A choice is bool, or each row's chance where it is drawn. NaN ends below 2 rows.
    """
    more_N = np.asarray(first_N, np.float64) - np.asarray(second_N, np.float64)
    total = float(more_N.sum())
    if len(more_N) < 2:
        return total, float("nan"), float("nan")
    half = Z_95 * float(np.sqrt(len(more_N) * more_N.var(ddof=1)))
    return total, total - half, total + half
