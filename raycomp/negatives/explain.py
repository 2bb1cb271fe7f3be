"""The negatives of one caption, from the files of negatives alone."""

import shlex
from contextlib import suppress
from typing import Any

from raycomp.data.folder import Folder
from raycomp.data.parquet import find_rows, read_columns
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import identify, list_negatives, read_run
from raycomp.table import Table, format_facts
from raycomp.words import CAPTION, NEGATIVE_STATUSES, NEGATIVES, STATUS, STATUSES, UID

_MEANINGS = STATUSES | NEGATIVE_STATUSES | {"ok": "has at least one negative"}
_COLUMNS = ("operations", "calls", "similarity", "image drop", "kind", "concepts", "by", "negative")


def explain_caption(run: dict[str, Any], source: str, uid: str) -> str | None:
    """Return status and negatives of one caption of the run in ``source``, if present.

    Also return its curation's explanation, if the curation is still at its path and readable.
    """
    tables = list_negatives(run, source)
    rows = [row for uri in tables for at in find_rows(uri, UID, uid) for row in _read(uri, at)]
    if not rows:
        return None
    origin = Folder(absolute_uri(run["config"]["input"]))
    reported, curated = [_report(row) for row in rows], None
    with suppress(ValueError, OSError):
        curated = read_run(origin)
    if curated and identify(curated) == run["fingerprint"].get("input"):
        reported.append(f"its scores and gates: raycomp explain {shlex.quote(origin.uri)} {uid}")
    return "\n\n".join(reported)


def _read(uri: str, at: int) -> list[dict[str, Any]]:
    return read_columns(uri, [UID, CAPTION, STATUS, NEGATIVES]).slice(at, 1).to_pylist()


def _report(row: dict[str, Any]) -> str:
    """Return one row's facts and its negatives, in the order in which they were written."""
    status = row[STATUS]
    facts = format_facts({UID: row[UID], CAPTION: row[CAPTION], STATUS: f"{status} ({_MEANINGS[status]})"})
    negatives = [
        (
            *(one[name] for name in ("op", "calls", "similarity", "image_drop", "kind")),
            " -> ".join(one["concepts"]),
            one["source"],
            one["text"],
        )
        for one in row[NEGATIVES]
    ]
    return "\n\n".join([facts, *([Table("", _COLUMNS, negatives).to_text()] if negatives else [])])
