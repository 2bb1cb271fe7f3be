"""Which concepts moved: their shares among the kept rows of each run, tested and ranked."""

from typing import NamedTuple

import numpy as np

from raycomp.core.contrasts import holm
from raycomp.core.shifts import BOTH, GAINED, LOST, find_shifts
from raycomp.look.lineage.changes import GROUPS, Changes

LEAST = 10
"""A concept is tested where at least so many changed rows have it, or would at its common share."""
LEVEL = 0.05


class Moved(NamedTuple):
    """One concept; shares are of the kept rows whose phrases are known."""

    concept: str
    type: str
    """noun, or kind of phrase."""
    share_first: float
    share_second: float
    difference: float
    """The second's share minus the first's."""
    low: float
    high: float
    kept_in_both: int
    """Rows with the concept that both keep,"""
    only_first: int
    only_second: int
    p: float
    p_holm: float
    """p after Holm's correction for all concepts that are tested."""

    @property
    def side(self) -> int:
        """1 where the concept is more frequent in the second after the correction, -1 less, 0 neither."""
        return int(np.sign(self.difference)) * int(self.p_holm < LEVEL)


def rank_concepts(changes: Changes) -> list[Moved]:
    """Return the tested concepts, the smallest p first, ties by the size of the difference.

    Holm's correction (1979): the chance that any concept is called moved which is not is at most 5 %, however
    the concepts depend on each other, and words of one caption do. A rate of false discoveries would allow
    some false ones in the list, and a reader looks at single words.
    """
    counts = [changes.concepts[group].counts if group in changes.concepts else {} for group in GROUPS]
    names = sorted(set().union(*counts))
    if not names:
        return []
    count_3V = np.array([[own.get(name, 0) for name in names] for own in counts])
    size_3 = np.array([changes.parsed[group] for group in GROUPS])
    at_V = np.flatnonzero(_has_enough(count_3V, size_3))
    found = find_shifts(count_3V[:, at_V], size_3)
    p_V = [float(p) for p in found.p]
    lines = []
    for i, (v, adjusted) in enumerate(zip(at_V.tolist(), holm(p_V), strict=True)):
        kind, concept = names[v]
        first, second, difference, low, high = (float(part[i]) for part in found[:5])
        both, lost, gained = (int(count_3V[group, v]) for group in (BOTH, LOST, GAINED))
        counted = both, lost, gained, p_V[i], adjusted
        lines.append(Moved(concept, kind, first, second, difference, low, high, *counted))
    return sorted(lines, key=lambda line: (line.p, -abs(line.difference), line.type, line.concept))


def _has_enough(count_3V: np.ndarray, size_3: np.ndarray) -> np.ndarray:
    """Return which concepts are tested: enough changed rows have them, or would if they were as frequent
    there as in the kept rows."""
    num_changed = size_3[LOST] + size_3[GAINED]
    common_V = (2 * count_3V[BOTH] + count_3V[LOST] + count_3V[GAINED]) / max(
        1, 2 * size_3[BOTH] + num_changed
    )
    return np.maximum(count_3V[LOST] + count_3V[GAINED], common_V * num_changed) >= LEAST
