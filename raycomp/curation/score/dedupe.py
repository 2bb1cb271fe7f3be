"""Find rows with repeated uids over the whole corpus: tasks over ranges of files and buckets of uids.

A row counts if it has an alignment. The first by (sorted shard, position) stays. Later ones lose alignment
and embedding, so they are not part of the corpus. A later row with the first row's image and caption gets the
status ``duplicate_uid``; any other gets ``uid_conflict``: it is a separate sample without a unique name.

Letters: S ranges of files, B buckets of uids, N rows. Edges are the starts of the parts of a file, and its
end.
"""

import hashlib
import posixpath
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.core.selection import bucket_of, find_firsts, parse_uids
from raycomp.curation.score.reuse import LOST, forget_whole
from raycomp.curation.select.filters import blank_column
from raycomp.data.files import Folder
from raycomp.data.parquet import add_columns, read_columns, write_table
from raycomp.run.waves import map_tasks
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    DUPLICATE_UID,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    POSITION,
    STATUS,
    UID,
    UID_CONFLICT,
)

_ROWS_PER_BUCKET = 4_000_000
# Files of a range: few enough for one task, many enough that a bucket reads few ranges.
_FILES_PER_STRETCH = 16
_MOST_STRETCHES = 1024
_AT_ONCE = 8
_FOLDER = "dedupe"
_ENTRY = np.dtype([("uid", "<u8", 2), ("content", "<u8"), ("ordinal", "<i4"), ("position", "<i4")])
_FOUND = np.dtype([("ordinal", "<i4"), ("position", "<i4"), ("is_conflict", "?")])


class Stretch(NamedTuple):
    """Consecutive files."""

    number: int
    first: int
    """Ordinal of the first file."""
    uris: Sequence[str]


def mark_duplicates(
    aligned: list[str], num_rows: int, work: Folder, rows_per_bucket: int = _ROWS_PER_BUCKET
) -> Counter[str]:
    """Rewrite the files that hold later occurrences; return how many rows have either status.

    Safe to repeat: marks of an earlier attempt are counted. Ranges of files partition their rows by bucket of
    uids, 32 bytes a row below ``work``. Buckets find later rows and partition them by range. Ranges mark
    them. The driver receives only the offsets of the parts in each file. ``num_rows`` sizes the buckets.
    """
    num_buckets = max(1, -(-num_rows // rows_per_bucket))
    size = max(_FILES_PER_STRETCH, -(-len(aligned) // _MOST_STRETCHES))
    starts = range(0, len(aligned), size)
    stretches = [Stretch(number, start, aligned[start : start + size]) for number, start in enumerate(starts)]
    marked: Counter[str] = Counter()
    edges = []
    for edge_B, earlier in map_tasks(_part_rows, stretches, num_buckets, work, label="deduplicate"):
        edges.append(edge_B)
        marked.update(earlier)
    edge_SB, buckets = np.stack(edges), range(num_buckets)
    found = map_tasks(_find_later, buckets, stretches, edge_SB, work, label="deduplicate")
    edge_BS = np.stack(list(found))
    again = [stretches[i] for i in np.flatnonzero(np.diff(edge_BS).any(axis=0))]
    marked = sum(map_tasks(_mark_stretch, again, edge_BS, work, label="deduplicate"), marked)
    work.remove(_FOLDER)
    return marked


def _part_rows(stretch: Stretch, num_buckets: int, work: Folder) -> tuple[np.ndarray, Counter[str]]:
    """Write entries of a range's rows that have an alignment, by bucket.

    Returns its edges, [B + 1], and the number of rows marked before.
    """
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        read = list(threads.map(_read_entries, enumerate(stretch.uris, stretch.first)))
    entries = np.concatenate([entries for entries, _ in read])
    bucket_N = bucket_of(entries["uid"], num_buckets)
    order_N = np.argsort(bucket_N, kind="stable")
    work.write_bytes(entries[order_N].tobytes(), _FOLDER, f"rows-{stretch.number:05d}")
    edge_B = np.searchsorted(bucket_N[order_N], np.arange(num_buckets + 1))
    return edge_B, sum((earlier for _, earlier in read), Counter())


def _find_later(bucket: int, stretches: list[Stretch], edge_SB: np.ndarray, work: Folder) -> np.ndarray:
    """Write the rows of a bucket that are not the first of their uid, by range; return edges, [S + 1]."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        names = [f"rows-{stretch.number:05d}" for stretch in stretches]
        parts = threads.map(lambda name, edges: _read(work, name, edges, bucket, _ENTRY), names, edge_SB)
        entries = np.concatenate(list(parts))
    first_N = find_firsts(entries["uid"], entries["ordinal"], entries["position"])
    row_M = np.flatnonzero(first_N != np.arange(len(entries)))
    later = np.empty(len(row_M), _FOUND)
    later["ordinal"], later["position"] = entries["ordinal"][row_M], entries["position"][row_M]
    later["is_conflict"] = entries["content"][row_M] != entries["content"][first_N[row_M]]
    later = np.sort(later, order=("ordinal", "position"))
    if len(later):
        work.write_bytes(later.tobytes(), _FOLDER, f"later-{bucket:05d}")
    firsts = [stretch.first for stretch in stretches]
    return np.append(np.searchsorted(later["ordinal"], firsts), len(later))


def _mark_stretch(stretch: Stretch, edge_BS: np.ndarray, work: Folder) -> Counter[str]:
    """Mark the later rows of a range's files; return the number of rows per status."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        names = [f"later-{bucket:05d}" for bucket in range(len(edge_BS))]
        parts = threads.map(
            lambda name, edges: _read(work, name, edges, stretch.number, _FOUND), names, edge_BS
        )
        later = np.sort(np.concatenate(list(parts)), order=("ordinal", "position"))
    ordinals, starts = np.unique(later["ordinal"], return_index=True)
    by_file = zip(ordinals, np.split(later, starts[1:]), strict=True)
    files = ((stretch.uris[ordinal - stretch.first], rows) for ordinal, rows in by_file)
    return sum((_blank(uri, rows, work) for uri, rows in files), Counter())


def _read(work: Folder, name: str, edges: np.ndarray, number: int, dtype: np.dtype) -> np.ndarray:
    """Return the content of a file between two of its edges."""
    start, end = edges[number], edges[number + 1]
    if start == end:
        return np.empty(0, dtype)
    return np.frombuffer(work.read_range(start * dtype.itemsize, end * dtype.itemsize, _FOLDER, name), dtype)


def _read_entries(numbered: tuple[int, str]) -> tuple[np.ndarray, Counter[str]]:
    """Return entries of the rows of a file that have an alignment, and the number marked before."""
    ordinal, uri = numbered
    table = read_columns(uri, [UID, STATUS, ALIGNMENT, IMAGE_SHA256, CAPTION])
    earlier = Counter(s for s in table[STATUS].to_pylist() if s in (DUPLICATE_UID, UID_CONFLICT))
    row_M = np.flatnonzero(table[ALIGNMENT].is_valid().to_numpy())
    table = table.take(pa.array(row_M))
    entries = np.empty(len(table), _ENTRY)
    entries["uid"], entries["ordinal"], entries["position"] = parse_uids(table[UID]), ordinal, row_M
    # The image, where its hash is known, and the caption.
    pairs = zip(table[IMAGE_SHA256].to_pylist(), table[CAPTION].to_pylist(), strict=True)
    hashes = (hashlib.blake2b(f"{image}\0{text}".encode(), digest_size=8).digest() for image, text in pairs)
    entries["content"] = np.frombuffer(b"".join(hashes), "<u8")
    return entries, earlier


def _blank(uri: str, later: np.ndarray, work: Folder) -> Counter[str]:
    """Mark rows of one file, and write what they lose; return the number of rows per status."""
    table, name = read_columns(uri), posixpath.basename(uri)
    positions = pa.array(later["position"])
    lost = table.select([ALIGNMENT, IMAGE_EMBEDDING]).take(positions).append_column(POSITION, positions)
    write_table(lost, work.at(LOST, name), lost.schema.remove_metadata())
    forget_whole(work, name)
    marks = np.where(later["is_conflict"], UID_CONFLICT, DUPLICATE_UID).tolist()
    is_later_N = np.zeros(len(table), bool)
    is_later_N[later["position"]] = True
    statuses = np.array(table[STATUS].to_pylist(), object)
    statuses[later["position"]] = marks
    blank = {column: blank_column(table[column], is_later_N) for column in (ALIGNMENT, IMAGE_EMBEDDING)}
    columns = {STATUS: pa.array(statuses, pa.string()), **blank}
    write_table(add_columns(table, columns), uri, table.schema.remove_metadata())
    return Counter(marks)
