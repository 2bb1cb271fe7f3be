"""The engine ``suggest``: rules find places of a caption and words for them, a language model chooses.

The whole caption is scored with each word in its place, so the model needs neither a prompt nor a server.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from raycomp.data.arrow import add_columns
from raycomp.negatives.judges import find_gaps
from raycomp.negatives.write import drop_candidates
from raycomp.words import CAPTION, NEGATIVES, REPLACE

SUGGESTION = "suggestion"
"""Passed between the stages: log p(caption) - log p(negative) of each of a row's negatives, in nats."""
UNLIKELY = "unlikely"
"""Reason of rejection: other words are likelier in its place."""
MOST_PER_PLACE = 2


def suggest(table: pa.Table, find_likelihoods: Callable[[Sequence[str]], Any]) -> pa.Table:
    """Add the gaps of all candidates; a score does not depend on the other rows."""
    rows = _list_rows(table, CAPTION, NEGATIVES)
    gaps = [find_gaps(caption, negatives, find_likelihoods) for caption, negatives in rows]
    return add_columns(table, {SUGGESTION: pa.array(gaps, pa.list_(pa.float64()))})


def keep_likeliest(table: pa.Table) -> pa.Table:
    """Keep the likeliest candidates of each place of a caption; the others are counted.

    A place of a REPLACE is the concept that is replaced; SWAPs of one kind compete, and so do ADDs.
    """
    rows = _list_rows(table, NEGATIVES, SUGGESTION)
    stays = [_find_likeliest(negatives, gaps) for negatives, gaps in rows]
    kept = drop_candidates(table, stays, lambda one: f"{one['op']}: {UNLIKELY}")
    return kept.drop_columns([SUGGESTION])


def _find_likeliest(rows: Sequence[dict], gaps: Sequence[float]) -> list[bool]:
    """Return which candidates of a caption stay."""
    taken: Counter[tuple] = Counter()
    stays = [False] * len(rows)
    for place in sorted(range(len(rows)), key=lambda place: (gaps[place], place)):
        one = rows[place]
        slot = (one["op"], one["kind"], one["concepts"][0] if one["op"] == REPLACE else None)
        taken[slot] += 1
        stays[place] = taken[slot] <= MOST_PER_PLACE
    return stays


def _list_rows(table: pa.Table, *names: str) -> Any:
    return zip(*(table[name].to_pylist() for name in names), strict=True)
