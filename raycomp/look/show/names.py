"""Find samples by what a person has of them: a key, a file name, a url or a caption."""

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.curation.marks import list_marked
from raycomp.data.parquet import read_columns, read_schema
from raycomp.data.runs import SUBSET_KINDS, list_negatives
from raycomp.language.sources import normalise_caption
from raycomp.table import Table
from raycomp.words import CAPTION, KEY, UID, URL

MOST_LISTED = 20
_COLUMNS = (UID, KEY, URL, CAPTION)
_LETTERS = 80


def find_samples(run: dict[str, Any], source: str, text: str) -> pa.Table:
    """Return uid, key, url and caption, as far as a run has them, of the samples that ``text`` names.

    The first of these that names any counts: a key or url, the file name of a key, with or without its
    extension, a whole caption, whatever its case and spaces, a part of a caption.
    """
    files = list_negatives(run, source) if run["kind"] == "negatives" else []
    uris = [file.uri for file in list_marked(run, source)] if run["kind"] in SUBSET_KINDS else files
    tables = [_read(uri) for uri in uris]
    for fits in _list_ways(text):
        found = [table.filter(fits(table)) for table in tables]
        if any(map(len, found)):
            return pa.concat_tables(found)
    return pa.table({UID: pa.array([], pa.string())})


def _read(uri: str) -> pa.Table:
    names = read_schema(uri).names
    return read_columns(uri, [name for name in _COLUMNS if name in names])


def _list_ways(text: str) -> Sequence[Callable[[pa.Table], pa.ChunkedArray | pa.Array]]:
    """Return the ways in which a text names rows, the strictest first; each is a mask over a table."""
    name, caption = posixpath.basename(text), normalise_caption(text)

    def has_name(key: str) -> bool:
        own = re.sub(r"#\d+$", "", posixpath.basename(key))  # a further caption of an image
        return name in (own, posixpath.splitext(own)[0]) or posixpath.splitext(name)[0] == own

    return (
        lambda table: _mask(table, (KEY, URL), lambda value: value == text),
        lambda table: _mask(table, (KEY,), lambda value: bool(name) and has_name(value)),
        lambda table: _mask(table, (CAPTION,), lambda value: normalise_caption(value) == caption != ""),
        lambda table: _mask(
            table, (CAPTION,), lambda value: bool(caption) and caption in normalise_caption(value)
        ),
    )


def _mask(table: pa.Table, columns: Sequence[str], fits: Callable[[str], bool]) -> pa.Array:
    """Return whether one of the columns fits, null does not; bool [N]."""
    found = pa.array([False] * len(table))
    for name in columns:
        if name in table.column_names:
            values = table[name].to_pylist()
            found = pc.or_(
                found, pa.array([value is not None and fits(value) for value in values], pa.bool_())
            )
    return found


def list_samples(found: pa.Table, text: str) -> str:
    """Return the samples that a text names, when they are several."""
    names = [name for name in (UID, KEY, CAPTION) if name in found.column_names]
    rows = [
        tuple(value if value is None else value[:_LETTERS] for value in row.values())
        for row in found.select(names).slice(0, MOST_LISTED).to_pylist()
    ]
    shown = f"the first {MOST_LISTED} of {len(found):,}" if len(found) > MOST_LISTED else f"{len(found)}"
    return f"{shown} samples fit {text!r}; name one by its uid\n\n{Table('', tuple(names), rows).to_text()}"
