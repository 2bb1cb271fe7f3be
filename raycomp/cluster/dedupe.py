"""Find rows whose uid stood before, over the whole corpus, with little memory.

A row counts if it has an alignment. The first by (sorted shard, position) stays; later ones get the status
``duplicate_uid`` and lose alignment and embedding, so they are no part of the corpus.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.cluster.session import map_tasks
from raycomp.core.selection import bucket_of, find_duplicates, parse_uids
from raycomp.loops.tables import add_columns
from raycomp.schema import ALIGNMENT, DUPLICATE_UID, IMAGE_EMBEDDING, STATUS, UID
from raycomp.shards.scores import read_columns, write_table

_ROWS_PER_BUCKET = 4_000_000
_ENTRY = np.dtype([("uid", "<u8", 2), ("ordinal", "<i4"), ("position", "<i4")])


def mark_duplicates(aligned: list[str], num_rows: int) -> int:
    """Rewrite the files that hold later occurrences; return how many rows were marked. Safe to repeat.

    ``num_rows`` sizes the buckets that are spooled to a temporary folder, 24 bytes per row. Memory holds one
    bucket, and 8 bytes per duplicate found.
    """
    num_buckets = max(1, -(-num_rows // _ROWS_PER_BUCKET))
    found: list[np.ndarray] = []
    with tempfile.TemporaryDirectory() as folder:
        for ordinal, (uid_N2, position_N) in enumerate(map_tasks(_read_uids, aligned, label="deduplicate")):
            _spool(Path(folder), uid_N2, ordinal, position_N, num_buckets)
        for path in sorted(Path(folder).iterdir()):
            entries = np.fromfile(path, _ENTRY)
            later = entries[find_duplicates(entries["uid"], entries["ordinal"], entries["position"])]
            found.append(np.stack([later["ordinal"], later["position"]], axis=1))
    later_F2 = np.concatenate(found) if found else np.empty((0, 2), np.int32)
    later_F2 = later_F2[np.lexsort((later_F2[:, 1], later_F2[:, 0]))]
    ordinals, starts = np.unique(later_F2[:, 0], return_index=True)
    positions = np.split(later_F2[:, 1], starts)[1:]
    jobs = [(aligned[ordinal], rows) for ordinal, rows in zip(ordinals, positions, strict=True)]
    return sum(map_tasks(_blank, jobs, label="deduplicate"))


def _read_uids(uri: str) -> tuple[np.ndarray, np.ndarray]:
    """Return uid and row number of the rows that have an alignment."""
    table = read_columns(uri, [UID, ALIGNMENT])
    row_M = np.flatnonzero(table[ALIGNMENT].is_valid().to_numpy())
    return parse_uids(table[UID].take(pa.array(row_M))), row_M


def _spool(folder: Path, uid_N2: np.ndarray, ordinal: int, position_N: np.ndarray, num_buckets: int) -> None:
    entries = np.empty(len(uid_N2), _ENTRY)
    entries["uid"], entries["ordinal"], entries["position"] = uid_N2, ordinal, position_N
    bucket_N = bucket_of(uid_N2, num_buckets)
    for bucket in np.unique(bucket_N):
        with open(folder / f"{bucket:06d}", "ab") as file:
            entries[bucket_N == bucket].tofile(file)


def _blank(job: tuple[str, np.ndarray]) -> int:
    """Mark rows of one file as duplicates."""
    uri, positions = job
    table = read_columns(uri)
    is_later = np.zeros(len(table), bool)
    is_later[positions] = True
    mask = pa.array(is_later)
    statuses = table[STATUS].to_pylist()
    columns = {
        STATUS: pa.array([DUPLICATE_UID if d else s for s, d in zip(statuses, is_later, strict=True)]),
        ALIGNMENT: pc.if_else(mask, pa.scalar(None, pa.float32()), table[ALIGNMENT]),
        IMAGE_EMBEDDING: _blank_lists(table[IMAGE_EMBEDDING].combine_chunks(), is_later),
    }
    write_table(add_columns(table, columns), uri, table.schema.remove_metadata())
    return len(positions)


def _blank_lists(lists: pa.FixedSizeListArray, is_later: np.ndarray) -> pa.Array:
    keep = np.where(is_later, -1, np.arange(len(lists)))
    return lists.take(pa.array(keep, mask=keep < 0))
