"""The funnel from rows read to rows kept; it raises an error unless the counts add up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from raycomp.words import (
    AFTER_REASONS,
    CLUSTER_FULL,
    CONTAMINATED,
    DROPPED_ALIGNMENT,
    DROPPED_ATTRIBUTION,
    DROPPED_CONTROL,
    DROPPED_RANDOM,
    DROPPED_UNSCORED,
    EXCLUDED,
    EXCLUDED_AFTER,
    FILTER_NULL,
    FILTER_NULL_AFTER,
    FILTERED,
    FILTERED_AFTER,
    GATE_REASONS,
    KEPT,
    MARK_REASONS,
    NEAR_DUPLICATE,
)

READ = "read"
ALIGNED, _IS_CORPUS = "have an alignment", " (the corpus)"
# The steps that marks add before the corpus, with their reasons.
_MARK_STEPS = (
    ("pass the filter", (FILTERED, FILTER_NULL)),
    ("are not excluded", (EXCLUDED,)),
    ("are not contaminated", (CONTAMINATED,)),
    ("are not near-duplicates", (NEAR_DUPLICATE,)),
    ("are within the cap of their cluster", (CLUSTER_FULL,)),
)
REASON_WORDS = {
    DROPPED_RANDOM: "not drawn",
    DROPPED_ALIGNMENT: "below the alignment gate",
    DROPPED_UNSCORED: "no score for the attribution gate",
    DROPPED_ATTRIBUTION: "below the attribution gate",
    DROPPED_CONTROL: "below the gate of the rule",
    FILTERED: "the filter is false",
    FILTER_NULL: "the filter is null",
    EXCLUDED: "in the exclusion list",
    CONTAMINATED: "contaminated: also in a test set",
    NEAR_DUPLICATE: "near-duplicate of a row that stays",
    CLUSTER_FULL: "above the cap of its cluster",
    FILTERED_AFTER: "past the gates, but the filter is false",
    FILTER_NULL_AFTER: "past the gates, but the filter is null",
    EXCLUDED_AFTER: "past the gates, but in the exclusion list",
}


@dataclass(frozen=True)
class FunnelRow:
    """A step: ``rows`` passed it; ``lost`` counts the others by reason."""

    name: str
    rows: int
    lost: tuple[tuple[str, int], ...] = ()


def make_funnel(reasons: Mapping[str, int]) -> list[FunnelRow]:
    """Return the steps from ``read`` to ``kept`` from the number of rows of each drop reason (and ``kept``).

    A reason that belongs to no gate and no mark is a status, lost before the corpus. Marks follow, then the
    gates in their order. A step that lost no row is omitted, except the last, which leads to ``kept``.
    """
    known = {KEPT, *GATE_REASONS, *MARK_REASONS, *AFTER_REASONS}
    statuses = sorted(set(reasons) - known, key=lambda r: (-reasons[r], r))
    marked = [(name, lost) for name, lost in _MARK_STEPS if any(reasons.get(reason) for reason in lost)]
    stages: list[tuple[str, Sequence[str]]] = [(ALIGNED, statuses), *marked]
    *before, (last, lost_by) = stages
    corpus = f"{last}{_IS_CORPUS}"
    steps: list[tuple[str, Sequence[str]]] = [
        *before,
        (corpus, lost_by),
        ("pass the alignment gate", [DROPPED_ALIGNMENT]),
        ("have a score", [DROPPED_UNSCORED]),
        (KEPT, [DROPPED_RANDOM, DROPPED_ATTRIBUTION, DROPPED_CONTROL, *AFTER_REASONS]),
    ]
    rows = [FunnelRow(READ, sum(reasons.values()))]
    for name, lost_by in steps:
        lost = tuple((reason, reasons[reason]) for reason in lost_by if reasons.get(reason))
        if lost or name in (ALIGNED, corpus, KEPT):
            rows.append(FunnelRow(name, rows[-1].rows - sum(n for _, n in lost), lost))
    return rows


def check_funnel(rows: Sequence[FunnelRow], read: int, kept: int) -> None:
    """Raise ValueError where the steps do not add up from ``read`` to ``kept`` rows."""
    for before, after in pairwise(rows):
        lost = sum(n for _, n in after.lost)
        if before.rows != after.rows + lost:
            raise ValueError(
                f"funnel: {before.rows} {before.name} != {after.rows} {after.name} + {lost} lost"
            )
    if not rows or (rows[0].rows, rows[-1].rows) != (read, kept):
        raise ValueError(f"funnel: must lead from {read} rows read to {kept} kept, not {rows}")


def reason_words(reason: str) -> str:
    """Return the text of a drop reason for readers."""
    return REASON_WORDS.get(reason, reason.replace("_", " "))
