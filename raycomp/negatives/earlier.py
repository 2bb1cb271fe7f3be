"""Take the negatives of an earlier run over where nothing that they depend on has changed.

The inputs of a caption are its uid and text, the other captions of its image, its fold and status, and the
image's embedding where a scorer ranks. ``state/`` keeps a digest of them, row for row with ``negatives/``.
"""

import posixpath
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.data.arrow import OTHERS
from raycomp.data.folder import Folder
from raycomp.data.manifest import read_manifest
from raycomp.data.parquet import read_columns, read_schema, write_table
from raycomp.data.row_bytes import digest_rows
from raycomp.data.runs import TIMES, read_finished
from raycomp.negatives.captions import FOLD, CaptionFile, load_captions
from raycomp.run.tasks import map_files
from raycomp.schema import NEGATIVES_SCHEMA
from raycomp.words import CAPTION, IMAGE_EMBEDDING, POSITION, SHARD, STATUS, UID

STATE, FILES = "state", "files.json"
INPUTS = "inputs"
_OTHERS = ("input", TIMES, "frozen")
"""Entries of a fingerprint that a caption's negatives do not depend on: each row's inputs are compared."""
_DIGEST_BYTES = 16
_ROWS = 10_000
_STATE_SCHEMA = pa.schema([(UID, pa.string()), (INPUTS, pa.binary(_DIGEST_BYTES))])
_WRITTEN = [name for name in NEGATIVES_SCHEMA.names if name != UID]
Earlier = Mapping[str, tuple[str, str]]
"""Negatives and state of an earlier run, by the name of the file of captions."""


class Plan(NamedTuple):
    """What of a run is written anew."""

    sources: list[CaptionFile]
    totals: dict[int, int]
    """Captions to be written, by number of the file."""
    statuses: Counter[str]
    """Of the rows that are taken over."""


def find_earlier(previous: str | None, fingerprint: Mapping[str, Any]) -> Earlier:
    """Return the files of a finished run; empty without one, and if it has other models.

    ``fingerprint``: what the present run depends on.
    """
    if previous is None:
        return {}
    run = read_finished(previous)
    now = {name: value for name, value in fingerprint.items() if name not in _OTHERS}
    if any(run["fingerprint"].get(name) != value for name, value in now.items()):
        return {}
    files = read_manifest(Folder(previous))
    names = Folder(files[f"{STATE}/{FILES}"].uri).read_json()
    return {
        name: (files[f"negatives/{i:05d}.parquet"].uri, files[f"{STATE}/{i:05d}.parquet"].uri)
        for i, name in enumerate(names)
    }


def plan_rows(sources: list[CaptionFile], earlier: Earlier, out: Folder, work: Folder) -> Plan:
    """Compare the inputs of all captions with those of an earlier run; write ``state/``, and to ``work`` the
    earlier negatives of each row, null where it is written anew.

    ``earlier``: empty = all captions are written anew.
    """
    found = list(map_files(_compare_file, sources, earlier, out, work, label="compare"))
    out.write_json([name for name, _, _ in found], STATE, FILES)
    named = [replace(source, rows=_name_rows(work, source.ordinal)) for source in sources]
    totals = {source.ordinal: count for source, (_, count, _) in zip(sources, found, strict=True)}
    return Plan(named, totals, sum((counted for _, _, counted in found), Counter()))


def _name_rows(work: Folder, ordinal: int) -> str:
    return work.at("rows", f"{ordinal:05d}.parquet")


def _compare_file(
    source: CaptionFile, earlier: Earlier, out: Folder, work: Folder
) -> tuple[str, int, Counter[str]]:
    """Return a file's name, how many of its captions are written, and the statuses of the others."""
    tables = list(load_captions(source, _ROWS))
    digests = [one for table in tables for one in _digest(table)]
    uids = [uid for table in tables for uid in table[UID].to_pylist()]
    columns = [pa.array(uids, pa.string()), pa.array(digests, pa.binary(_DIGEST_BYTES))]
    state = pa.table(columns, schema=_STATE_SCHEMA)
    write_table(state, out.at(STATE, f"{source.ordinal:05d}.parquet"), _STATE_SCHEMA)
    name = _name_file(source)
    known = _find_known(digests, *earlier[name]) if name in earlier else _no_rows(len(digests))
    rows = known.add_column(0, UID, state[UID])
    write_table(rows, _name_rows(work, source.ordinal), NEGATIVES_SCHEMA)
    counted = Counter(known[STATUS].drop_null().to_pylist())
    return name, len(digests) - counted.total(), counted


def _digest(table: pa.Table) -> list[bytes]:
    names = [UID, CAPTION, OTHERS, STATUS, FOLD]
    names += [IMAGE_EMBEDDING] if IMAGE_EMBEDDING in table.column_names else []
    return [one[:_DIGEST_BYTES] for one in digest_rows([table[name] for name in names], len(table))]


def _name_file(source: CaptionFile) -> str:
    """Return the name by which a file is found again: its shard's, or its own."""
    if SHARD in read_schema(source.uri).names:
        return read_columns(source.uri, [SHARD])[SHARD][0].as_py()
    return posixpath.basename(source.uri)


def _find_known(digests: list[bytes], negatives: str, state: str) -> pa.Table:
    """Return the earlier results of rows with the same inputs, null for others."""
    place = {one: row for row, one in enumerate(read_columns(state, [INPUTS])[INPUTS].to_pylist())}
    row_N = np.array([place.get(one, -1) for one in digests], np.int64)
    return read_columns(negatives).select(_WRITTEN).take(pa.array(row_N, mask=row_N < 0))


def _no_rows(num_rows: int) -> pa.Table:
    fields = [NEGATIVES_SCHEMA.field(name) for name in _WRITTEN]
    return pa.table([pa.nulls(num_rows, field.type) for field in fields], schema=pa.schema(fields))


def join_earlier(rows_uri: str, written: pa.Table) -> pa.Table:
    """Return all rows of a file: those that are taken over, and those written anew, by their positions."""
    rows = read_columns(rows_uri)
    new = written.select(NEGATIVES_SCHEMA.names).cast(NEGATIVES_SCHEMA)
    row_N = np.arange(len(rows))
    row_N[written[POSITION].to_numpy()] = len(rows) + np.arange(len(written))
    return pa.concat_tables([rows, new]).take(pa.array(row_N))
