"""What an update needs of a curation besides its scores: ``state/``, row for row with ``scores/``.

``json`` is the text of the sample's own json. ``alignment`` and ``image_embedding`` are those of rows that
lost them because an earlier row has their uid. Removed rows have none of these.
"""

import posixpath
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.data.files import link_file
from raycomp.data.folder import Folder
from raycomp.data.manifest import STATE
from raycomp.data.parquet import read_columns, read_schema, write_table
from raycomp.data.written import Written
from raycomp.run.tasks import map_files
from raycomp.words import ALIGNMENT, IMAGE_EMBEDDING, JSON, POSITION, REMOVED, STATUS

SHARDS, OUTPUTS = "shards.json", "outputs.json"
"""The input's shards, and the keys of the written ones."""
LOST = "lost"
"""Folder below ``work`` with what later occurrences of a uid lost, by the names of the scores files."""


class StateFile(NamedTuple):
    """The files that the state of one scores file is made of."""

    scores: str
    aligned: str
    earlier: Written | None = None
    """The state of the same rows in the curation that they are taken over from."""
    is_whole: bool = False
    """Whether all of these rows are as they were there."""


def state_schema(scores: pa.Schema) -> pa.Schema:
    """Return the columns of a state file; ``scores``: those of the scores file."""
    return pa.schema(
        [
            (JSON, pa.string()),
            *(scores.field(name) for name in (ALIGNMENT, IMAGE_EMBEDDING)),
        ]
    )


def write_states(files: list[StateFile], out: Folder, work: Folder) -> None:
    """Write ``state/``. Files of an earlier attempt stay."""
    there = {*out.list_names(STATE)}
    names = [posixpath.basename(file.scores) for file in files]
    left = [file for file, name in zip(files, names, strict=True) if name not in there]
    for _ in map_files(_write_state, left, out, work, label=STATE):
        pass


def _write_state(file: StateFile, out: Folder, work: Folder) -> None:
    name = posixpath.basename(file.scores)
    if file.earlier is not None and file.is_whole:
        link_file(file.earlier, out.at(STATE, name))
        return
    schema = state_schema(read_schema(file.scores))
    statuses = read_columns(file.scores, [STATUS])[STATUS].to_pylist()
    is_removed_N = np.array([status == REMOVED for status in statuses], bool)
    texts = read_columns(file.earlier.uri if file.earlier else file.aligned, [JSON])[JSON].to_pylist()
    texts = [None if is_removed else text for text, is_removed in zip(texts, is_removed_N, strict=True)]
    columns = [pa.array(texts, pa.string()), *_read_lost(work, name, len(texts), schema)]
    write_table(pa.table(columns, schema=schema), out.at(STATE, name), schema)


def _read_lost(work: Folder, name: str, num_rows: int, schema: pa.Schema) -> list[pa.Array]:
    """Return alignment and embedding of the rows that lost them, null elsewhere."""
    names = (ALIGNMENT, IMAGE_EMBEDDING)
    if not work.exists(LOST, name):
        return [pa.nulls(num_rows, schema.field(one).type) for one in names]
    lost = read_columns(work.at(LOST, name))
    row_N = np.full(num_rows, -1)
    row_N[lost[POSITION].to_numpy()] = np.arange(len(lost))
    places = pa.array(row_N, mask=row_N < 0)
    return [lost[one].combine_chunks().take(places) for one in names]
