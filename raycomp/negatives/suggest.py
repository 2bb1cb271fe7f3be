"""The engine ``suggest``: rules find places of a caption and words for them, a language model chooses.

The whole caption is scored with each word in its place, so the model needs neither a prompt nor a server.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from raycomp.data.arrow import FAULTS, add_columns
from raycomp.negatives.judges import find_gaps
from raycomp.negatives.write import ADD_SIMILARITY
from raycomp.schema import NEGATIVE_TYPE
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
    kept, faults, similarities = [], [], []
    has_similarity = ADD_SIMILARITY in table.column_names
    names = (NEGATIVES, SUGGESTION, FAULTS, *[ADD_SIMILARITY] * has_similarity)
    for rows, gaps, reasons, *similarity in _list_rows(table, *names):
        stays = _find_likeliest(rows, gaps)
        kept.append([rows[place] for place in stays])
        lost = [one["op"] for place, one in enumerate(rows) if place not in stays]
        faults.append([*reasons, *[f"{op}: {UNLIKELY}" for op in lost]])
        similarities += [[of_row[place] for place in stays] for of_row in similarity]
    columns = {
        NEGATIVES: pa.array(kept, pa.list_(NEGATIVE_TYPE)),
        FAULTS: pa.array(faults, pa.list_(pa.string())),
    }
    if has_similarity:
        columns[ADD_SIMILARITY] = pa.array(similarities, table[ADD_SIMILARITY].type)
    return add_columns(table.drop_columns([SUGGESTION]), columns)


def _find_likeliest(rows: Sequence[dict], gaps: Sequence[float]) -> list[int]:
    """Return the places in the list of those that stay, in its order."""
    taken: Counter[tuple] = Counter()
    stays = []
    for place in sorted(range(len(rows)), key=lambda place: (gaps[place], place)):
        one = rows[place]
        slot = (one["op"], one["kind"], one["concepts"][0] if one["op"] == REPLACE else None)
        taken[slot] += 1
        if taken[slot] <= MOST_PER_PLACE:
            stays.append(place)
    return sorted(stays)


def _list_rows(table: pa.Table, *names: str) -> Any:
    return zip(*(table[name].to_pylist() for name in names), strict=True)
