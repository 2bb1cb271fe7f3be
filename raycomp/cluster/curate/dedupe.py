"""Find rows whose uid stood before, over the whole corpus, with little memory.

A row counts if it has an alignment. The first by (sorted shard, position) stays; later ones lose alignment
and embedding, so they are no part of the corpus. A later one with the first one's image and caption gets the
status ``duplicate_uid``, any other ``uid_conflict``: it is a sample of its own that nothing can name.
"""

import hashlib
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.cluster.tasks import map_tasks
from raycomp.core.selection import bucket_of, find_firsts, parse_uids
from raycomp.loops.tables import add_columns
from raycomp.shards.parquet import read_columns, write_table
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    DUPLICATE_UID,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    STATUS,
    UID,
    UID_CONFLICT,
)

_ROWS_PER_BUCKET = 4_000_000
_ENTRY = np.dtype([("uid", "<u8", 2), ("content", "<u8"), ("ordinal", "<i4"), ("position", "<i4")])
_FOUND = np.dtype([("ordinal", "<i4"), ("position", "<i4"), ("is_conflict", "?")])


def mark_duplicates(aligned: list[str], num_rows: int) -> Counter[str]:
    """Rewrite the files that hold later occurrences; return how many rows have either status.

    Safe to repeat: what an earlier try marked is counted. ``num_rows`` sizes the buckets that are spooled to
    a temporary folder, 32 bytes per row. Memory holds one bucket, and 9 bytes per duplicate found.
    """
    num_buckets = max(1, -(-num_rows // _ROWS_PER_BUCKET))
    marked: Counter[str] = Counter()
    found = [np.empty(0, _FOUND)]
    with tempfile.TemporaryDirectory() as folder:
        numbered = list(enumerate(aligned))
        for entries, earlier in map_tasks(_read_entries, numbered, label="deduplicate"):
            _spool(Path(folder), entries, num_buckets)
            marked.update(earlier)
        for path in sorted(Path(folder).iterdir()):
            found.append(_find_later(np.fromfile(path, _ENTRY)))
    later = np.sort(np.concatenate(found), order=("ordinal", "position"))
    ordinals, starts = np.unique(later["ordinal"], return_index=True)
    jobs = list(zip([aligned[ordinal] for ordinal in ordinals], np.split(later, starts)[1:], strict=True))
    return sum(map_tasks(_blank, jobs, label="deduplicate"), marked)


def _read_entries(numbered: tuple[int, str]) -> tuple[np.ndarray, Counter[str]]:
    """Return entries of the rows of a file that have an alignment, and how many were marked before."""
    ordinal, uri = numbered
    table = read_columns(uri, [UID, STATUS, ALIGNMENT, IMAGE_SHA256, CAPTION])
    earlier = Counter(s for s in table[STATUS].to_pylist() if s in (DUPLICATE_UID, UID_CONFLICT))
    row_M = np.flatnonzero(table[ALIGNMENT].is_valid().to_numpy())
    table = table.take(pa.array(row_M))
    entries = np.empty(len(table), _ENTRY)
    entries["uid"], entries["ordinal"], entries["position"] = parse_uids(table[UID]), ordinal, row_M
    entries["content"] = _hash_content(table)
    return entries, earlier


def _hash_content(table: pa.Table) -> np.ndarray:
    """Return uint64 of each row's image, where its hash is known, and caption."""
    pairs = zip(table[IMAGE_SHA256].to_pylist(), table[CAPTION].to_pylist(), strict=True)
    hashes = (hashlib.blake2b(f"{image}\0{text}".encode(), digest_size=8).digest() for image, text in pairs)
    return np.frombuffer(b"".join(hashes), "<u8")


def _spool(folder: Path, entries: np.ndarray, num_buckets: int) -> None:
    bucket_N = bucket_of(entries["uid"], num_buckets)
    for bucket in np.unique(bucket_N):
        with open(folder / f"{bucket:06d}", "ab") as file:
            entries[bucket_N == bucket].tofile(file)


def _find_later(entries: np.ndarray) -> np.ndarray:
    """Return the rows of a bucket that are not the first of their uid."""
    first_N = find_firsts(entries["uid"], entries["ordinal"], entries["position"])
    row_M = np.flatnonzero(first_N != np.arange(len(entries)))
    later = np.empty(len(row_M), _FOUND)
    later["ordinal"], later["position"] = entries["ordinal"][row_M], entries["position"][row_M]
    later["is_conflict"] = entries["content"][row_M] != entries["content"][first_N[row_M]]
    return later


def _blank(job: tuple[str, np.ndarray]) -> Counter[str]:
    """Mark rows of one file; return how many got which status."""
    uri, later = job
    table = read_columns(uri)
    is_later = np.zeros(len(table), bool)
    is_later[later["position"]] = True
    mask = pa.array(is_later)
    statuses = table[STATUS].to_pylist()
    marks = [UID_CONFLICT if is_conflict else DUPLICATE_UID for is_conflict in later["is_conflict"]]
    for position, mark in zip(later["position"], marks, strict=True):
        statuses[position] = mark
    columns = {
        STATUS: pa.array(statuses, pa.string()),
        ALIGNMENT: pc.if_else(mask, pa.scalar(None, pa.float32()), table[ALIGNMENT]),
        IMAGE_EMBEDDING: _blank_lists(table[IMAGE_EMBEDDING].combine_chunks(), is_later),
    }
    write_table(add_columns(table, columns), uri, table.schema.remove_metadata())
    return Counter(marks)


def _blank_lists(lists: pa.FixedSizeListArray, is_later: np.ndarray) -> pa.Array:
    keep = np.where(is_later, -1, np.arange(len(lists)))
    return lists.take(pa.array(keep, mask=keep < 0))
