"""What a curation commits to: every row, with its scores and the decision on it, under one Merkle root.

``leaves/`` has a file for every scores file, row for row: ``decision`` is "kept" or the reason of a drop;
``commitment`` is the SHA-256 of the row's salt (``state/``) and content. The salt hides the content
from those who hold the commitment alone. ``roots.json`` has the number of leaves and the root of each bucket
of uids.

The content of a row is json: its uid, shard and position, the SHA-256 of image and caption, a digest of its
scores (all other columns), and the decision. A removed row has neither content nor salt.
"""

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.core.merkle import bind_root, choose_bits, find_root, hash_bucket, hash_leaf
from raycomp.core.selection import parse_uids
from raycomp.core.uids import to_keys
from raycomp.curation.config import SelectionRule
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import Gates, judge_file
from raycomp.curation.state import SALT
from raycomp.data.folder import Folder
from raycomp.data.parquet import count_rows, read_columns, read_schema, write_table
from raycomp.data.row_bytes import digest_rows
from raycomp.run.tasks import map_files, map_tasks
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_SHA256,
    PHRASES,
    POSITION,
    REMOVED,
    SHARD,
    STATUS,
    UID,
)

LEAVES, ROOTS = "leaves", "roots.json"
DECISION, COMMITMENT = "decision", "commitment"
ROWS_PER_BUCKET = 1 << 20
_SCHEMA = pa.schema([(DECISION, pa.string()), (COMMITMENT, pa.binary(32))])
_ENTRY = np.dtype([("uid", "S16"), ("ordinal", "<i4"), ("position", "<i4"), ("commitment", "V32")])
_PARTS = "leaves"
_FILES_PER_STRETCH, _MOST_STRETCHES, _AT_ONCE = 16, 1024, 8
_NAMED = (UID, SHARD, POSITION, IMAGE_SHA256, CAPTION)


class RowsFile(NamedTuple):
    """A scores file with its state, and the same of the earlier run that it was taken over from."""

    file: ScoresFile
    state: str
    earlier: tuple[str, str] | None = None
    """Scores and leaves of the same shard."""


def commit_rows(
    rows: Sequence[RowsFile], selection: SelectionRule, gates: Gates, out: Folder, work: Folder
) -> dict[str, Any]:
    """Write ``leaves/`` of all rows; return root (hex), rows and bits for run.json.

    Rows of which nothing has changed keep the commitments of an earlier run.
    """
    for _ in map_files(_write_leaves, rows, selection, gates, out, label=LEAVES):
        pass
    pairs = [(one.file.uri, out.at(LEAVES, posixpath.basename(one.file.uri))) for one in rows]
    return bind_leaves(pairs, out, work)


def bind_leaves(pairs: Sequence[tuple[str, str]], out: Folder, work: Folder) -> dict[str, Any]:
    """Return the root over the rows of (scores, leaves) files; write ``roots.json`` to ``out``."""
    num_rows = sum(map_files(_count, pairs, label=LEAVES))
    bits = choose_bits(num_rows, ROWS_PER_BUCKET)
    size = max(_FILES_PER_STRETCH, -(-len(pairs) // _MOST_STRETCHES))
    jobs = [(start, pairs[start : start + size]) for start in range(0, len(pairs), size)]
    edges = np.stack(list(map_tasks(_part_leaves, jobs, bits, work, label=LEAVES)))
    firsts = [first for first, _ in jobs]
    buckets = [(firsts, edges[:, bucket : bucket + 2]) for bucket in range(1 << bits)]
    found = list(map_tasks(_root_bucket, buckets, work, label=LEAVES))
    out.write_json({"bits": bits, "buckets": [[count, root.hex()] for count, root in found]}, LEAVES, ROOTS)
    work.remove(_PARTS)
    top = find_root([hash_leaf(hash_bucket(count, root)) for count, root in found])
    return {"root": bind_root(num_rows, bits, top).hex(), "rows": num_rows, "bits": bits}


def _count(pair: tuple[str, str]) -> int:
    return count_rows(pair[1])


def describe_rows(table: pa.Table, decisions: Sequence[str]) -> list[dict[str, Any]]:
    """Return the content of each row of a scores table."""
    scores = [table[name] for name in table.column_names if name not in _NAMED]
    digests = digest_rows(scores, len(table))
    named = table.select([name for name in _NAMED if name in table.column_names]).to_pylist()
    rows = zip(named, table[STATUS].to_pylist(), digests, decisions, strict=True)
    return [_describe(row, status, digest, decision) for row, status, digest, decision in rows]


def _describe(row: Mapping[str, Any], status: str, digest: bytes, decision: str) -> dict[str, Any]:
    place = {name: row[name] for name in (UID, SHARD, POSITION)} | {DECISION: decision}
    if status == REMOVED:
        return place
    text = row[CAPTION]
    return place | {
        IMAGE_SHA256: row[IMAGE_SHA256],
        "caption_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        "scores": digest.hex(),
    }


def commit(content: Mapping[str, Any], salt: bytes | None) -> bytes:
    """Return the commitment of a row's content."""
    return hashlib.sha256((salt or b"") + json.dumps(content, sort_keys=True).encode()).digest()


def _write_leaves(rows: RowsFile, selection: SelectionRule, gates: Gates, out: Folder) -> None:
    table, reason_N, _ = judge_file(rows.file, selection, gates)
    decisions = reason_N.tolist()
    known = find_unchanged(rows, decisions)
    left = [i for i, one in enumerate(known) if one is None]
    if left:
        whole = read_columns(rows.file.uri).take(pa.array(left))
        salts = read_columns(rows.state, [SALT])[SALT].take(pa.array(left)).to_pylist()
        contents = describe_rows(whole, [decisions[i] for i in left])
        for i, content, salt in zip(left, contents, salts, strict=True):
            known[i] = commit(content, salt)
    table = pa.table([pa.array(decisions, pa.string()), pa.array(known, pa.binary(32))], schema=_SCHEMA)
    write_table(table, out.at(LEAVES, posixpath.basename(rows.file.uri)), _SCHEMA)


def find_unchanged(rows: RowsFile, decisions: Sequence[str]) -> list[bytes | None]:
    """Return the earlier commitments of the rows that have the scores and the decision of then, None for
    others.

    Scores that are taken over differ only where a row was removed, lost or regained its alignment as a
    duplicate, or was attributed or not.
    """
    if rows.earlier is None or read_schema(rows.earlier[0]).names != read_schema(rows.file.uri).names:
        return [None] * len(decisions)
    scores, leaves = rows.earlier
    then, now = (_read_signs(uri) for uri in (scores, rows.file.uri))
    known = read_columns(leaves)
    is_same_N = (then == now) & (np.array(known[DECISION].to_pylist(), object) == np.array(decisions, object))
    commitments = known[COMMITMENT].to_pylist()
    return [one if is_same else None for one, is_same in zip(commitments, is_same_N, strict=True)]


def _read_signs(uri: str) -> np.ndarray:
    """Return the values of a row that was taken over by which it may have changed, [N]."""
    table = read_columns(uri, [STATUS, ALIGNMENT, PHRASES])
    is_aligned, is_attributed = (table[name].is_valid().to_pylist() for name in (ALIGNMENT, PHRASES))
    signs = zip(table[STATUS].to_pylist(), is_aligned, is_attributed, strict=True)
    return np.array([f"{status} {first} {second}" for status, first, second in signs], object)


def read_entries(ordinal: int, pair: tuple[str, str]) -> np.ndarray:
    """Return uid, place and commitment of the rows of a pair of scores and leaves."""
    uids = parse_uids(read_columns(pair[0], [UID])[UID])
    commitments = read_columns(pair[1], [COMMITMENT])[COMMITMENT].to_pylist()
    entries = np.empty(len(uids), _ENTRY)
    entries["uid"], entries["ordinal"] = to_keys(uids), ordinal
    entries["position"] = np.arange(len(uids))
    entries["commitment"] = np.frombuffer(b"".join(commitments), "V32") if commitments else []
    return entries


def bucket_entries(entries: np.ndarray, bits: int) -> np.ndarray:
    """Return the bucket of each entry, int [N]."""
    raw_N16 = np.frombuffer(entries["uid"].astype("S16").tobytes(), np.uint8).reshape(-1, 16).astype(np.int64)
    return (raw_N16[:, 0] * 256 + raw_N16[:, 1]) >> (16 - bits)


def sort_entries(entries: np.ndarray) -> np.ndarray:
    """Return the entries of a bucket in the order of its leaves: by uid, then by place."""
    return entries[np.lexsort((entries["position"], entries["ordinal"], entries["uid"]))]


def hash_entries(entries: np.ndarray) -> list[bytes]:
    """Return the hashed leaf of each entry: its uid, 16 bytes, and its commitment."""
    uids = np.ascontiguousarray(entries["uid"]).tobytes()
    commitments = np.ascontiguousarray(entries["commitment"]).tobytes()
    return [
        hash_leaf(uids[16 * i : 16 * i + 16] + commitments[32 * i : 32 * i + 32]) for i in range(len(entries))
    ]


def _part_leaves(job: tuple[int, Sequence[tuple[str, str]]], bits: int, work: Folder) -> np.ndarray:
    """Write the entries of some files by bucket; return the buckets' edges, [B + 1]."""
    first, pairs = job
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        entries = np.concatenate(list(pool.map(read_entries, range(first, first + len(pairs)), pairs)))
    bucket_N = bucket_entries(entries, bits)
    order_N = np.argsort(bucket_N, kind="stable")
    work.write_bytes(entries[order_N].tobytes(), _PARTS, f"{first:05d}")
    return np.searchsorted(bucket_N[order_N], np.arange((1 << bits) + 1))


def _root_bucket(job: tuple[Sequence[int], np.ndarray], work: Folder) -> tuple[int, bytes]:
    """Return the number of leaves of a bucket, and its root."""
    firsts, edges = job
    size = _ENTRY.itemsize
    parts = [
        np.frombuffer(work.read_range(start * size, end * size, _PARTS, f"{first:05d}"), _ENTRY)
        for first, (start, end) in zip(firsts, edges.tolist(), strict=True)
        if start < end
    ]
    entries = sort_entries(np.concatenate([np.empty(0, _ENTRY), *parts]))
    return len(entries), find_root(hash_entries(entries))
