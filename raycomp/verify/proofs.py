"""Proofs that a uid is in or out of a version of a corpus; their size is logarithmic in its rows.

A proof names all rows with the uid, with their content, salt and place in the tree, and the two rows next to
them. As the leaves are sorted by uid, there are no others. So a row that was kept cannot be left out of it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raycomp.core.merkle import (
    bind_root,
    find_bucket,
    find_path,
    find_root,
    follow_path,
    hash_bucket,
    hash_leaf,
)
from raycomp.curation.leaves import (
    DECISION,
    LEAVES,
    ROOTS,
    bucket_entries,
    commit,
    describe_rows,
    hash_entries,
    read_entries,
    sort_entries,
)
from raycomp.curation.state import SALT, STATE
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.parquet import read_columns
from raycomp.data.rows import parse_uid
from raycomp.data.runs import list_output, read_finished
from raycomp.words import KEPT, REMOVED, STATUS, UID

FORMAT = 1


def prove(source: str, uid: str) -> str:
    """Return a proof, as json, for all rows of the curation in ``source`` that have a uid, be it none.

    Raises ValueError where there is no finished curation with a root, or the uid is not 32 hex digits.
    """
    found = parse_uid(uid)
    if found is None:
        raise ValueError(f"{uid!r}: must be 32 hex digits; raycomp explain finds the uid of a key or url")
    run = read_finished(source)
    if "rows_root" not in run:
        raise ValueError(f"{source}: has no root over its rows; only curations of this version have one")
    files = check_results(Folder(source), run, "scores", STATE, LEAVES)
    tables = {name: list_output(files, name) for name in ("scores", STATE, LEAVES)}
    roots = Folder(files[f"{LEAVES}/{ROOTS}"]).read_json()
    bits, key = roots["bits"], bytes.fromhex(found)
    bucket = find_bucket(key, bits)
    entries = _read_bucket(tables, bits, bucket)
    hashes = hash_entries(entries)
    nodes = [hash_leaf(hash_bucket(count, bytes.fromhex(root))) for count, root in roots["buckets"]]
    first = int(np.searchsorted(entries["uid"], np.bytes_(key), "left"))
    last = int(np.searchsorted(entries["uid"], np.bytes_(key), "right"))
    around = [i for i in (first - 1, last) if 0 <= i < len(entries)]
    proof = {
        "format": FORMAT,
        UID: found,
        "rows": run["rows_root"]["rows"],
        "bits": bits,
        "bucket": {"count": len(entries), "path": _to_hex(find_path(nodes, bucket))},
        "found": [_describe(entries, hashes, i, tables) for i in range(first, last)],
        "next": [_place(entries, hashes, i) for i in around],
    }
    return json.dumps(proof, indent=1)


def _read_bucket(tables: Mapping[str, Mapping[int, str]], bits: int, bucket: int) -> np.ndarray:
    """Return the entries of a bucket, sorted; all scores files are read for their uids."""
    parts = []
    for ordinal, scores in tables["scores"].items():
        entries = read_entries(ordinal, (scores, tables[LEAVES][ordinal]))
        parts.append(entries[bucket_entries(entries, bits) == bucket])
    return sort_entries(np.concatenate(parts))


def _place(entries: np.ndarray, hashes: list[bytes], index: int) -> dict[str, Any]:
    uid = entries["uid"][index].ljust(16, b"\0")
    commitment = bytes(entries["commitment"][index])
    path = _to_hex(find_path(hashes, index))
    return {"index": index, UID: uid.hex(), "commitment": commitment.hex(), "path": path}


def _describe(
    entries: np.ndarray, hashes: list[bytes], index: int, tables: Mapping[str, Mapping[int, str]]
) -> dict[str, Any]:
    """Return a row's place, content and salt; no content where it was removed after the root was made."""
    ordinal, position = (int(entries[name][index]) for name in ("ordinal", "position"))
    table = read_columns(tables["scores"][ordinal]).slice(position, 1)
    salt = read_columns(tables[STATE][ordinal], [SALT])[SALT][position].as_py()
    decision = read_columns(tables[LEAVES][ordinal], [DECISION])[DECISION][position].as_py()
    (content,) = describe_rows(table, [decision])
    is_gone = table[STATUS][0].as_py() == REMOVED and decision != REMOVED
    known = {"content": None} if is_gone else {"content": content, SALT: salt and salt.hex()}
    return {**_place(entries, hashes, index), **known}


def _to_hex(hashes: list[bytes]) -> list[str]:
    return [one.hex() for one in hashes]


def check(proof: str, root: str) -> str:
    """Return what the proof in the file ``proof`` shows of the corpus with a root (64 hex digits).

    Raises ValueError where it is not a proof, or one of another corpus.
    """
    try:
        values = json.loads(Path(proof).read_text())
        lines = list(_check(values, bytes.fromhex(root)))
    except FileNotFoundError as error:
        raise ValueError(f"{proof}: no such file") from error
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{proof}: not a proof of raycomp prove") from error
    except ValueError as error:
        raise ValueError(f"{proof}: does not hold for root {root[:16]}...: {error}") from error
    return "\n".join(lines)


def _check(proof: Mapping[str, Any], root: bytes) -> Iterator[str]:
    """Yield what a proof shows; raise ValueError where it does not hold."""
    if proof["format"] != FORMAT:
        raise ValueError(f"format {proof['format']!r}, this version reads {FORMAT}")
    key, found, around = bytes.fromhex(proof[UID]), proof["found"], proof["next"]
    count, bits = int(proof["bucket"]["count"]), int(proof["bits"])
    inner = {_follow(one, count) for one in (*found, *around)}
    if len(inner) > 1:
        raise ValueError("its rows are of different trees")
    node = hash_leaf(hash_bucket(count, inner.pop() if inner else find_root([])))
    path = [bytes.fromhex(one) for one in proof["bucket"]["path"]]
    top = follow_path(node, find_bucket(key, bits), 1 << bits, path)
    if bind_root(int(proof["rows"]), bits, top) != root:
        raise ValueError("it leads to another root")
    _check_complete(key, count, found, around)
    yield from _report(proof[UID], found, int(proof["rows"]))


def _follow(row: Mapping[str, Any], count: int) -> bytes:
    """Return the root that a row's path leads to; its content must be what it is committed to."""
    commitment = bytes.fromhex(row["commitment"])
    content = row.get("content")
    if content is not None:
        if content[UID] != row[UID]:
            raise ValueError("a row's content has another uid")
        if commit(content, bytes.fromhex(row[SALT] or "")) != commitment:
            raise ValueError("a row's content is not what was committed to")
    leaf = hash_leaf(bytes.fromhex(row[UID]) + commitment)
    return follow_path(leaf, row["index"], count, [bytes.fromhex(one) for one in row["path"]])


def _check_complete(key: bytes, count: int, found: list[Any], around: list[Any]) -> None:
    """Raise ValueError unless the rows are all those with the uid: those next to them have others."""
    if any(bytes.fromhex(row[UID]) != key for row in found):
        raise ValueError("a row has another uid")
    before = [row for row in around if bytes.fromhex(row[UID]) < key]
    after = [row for row in around if bytes.fromhex(row[UID]) > key]
    if len(before) + len(after) != len(around):
        raise ValueError("a row next to them has the same uid")
    indices = [row["index"] for row in (*before, *found, *after)]
    start = 0 if not before else indices[0]
    end = count if not after else indices[-1] + 1
    if indices != list(range(start, end)):
        raise ValueError("rows are left out")


def _report(uid: str, found: list[Any], num_rows: int) -> Iterator[str]:
    decisions = [(row.get("content") or {}).get(DECISION) for row in found]
    if KEPT in decisions:
        yield f"{uid}: in; kept, of {num_rows:,} rows"
    elif None in decisions:
        yield f"{uid}: not decided; a row's content is not shown, as after a later removal"
    elif decisions:
        yield f"{uid}: out; {', '.join(map(str, decisions))}, of {num_rows:,} rows"
    else:
        yield f"{uid}: out; none of {num_rows:,} rows has this uid"
    for row in found:
        content = row.get("content") or {}
        place = f"{content['shard']}, position {content['position']}" if content else "content removed"
        yield f"  row {row['index']:,} of its bucket: {place}, commitment {row['commitment'][:16]}"
