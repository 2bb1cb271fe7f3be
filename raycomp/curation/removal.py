"""Rows and shards that must not be used: the list of the option ``removed``.

A row of the list keeps its uid, shard and position, with the status ``removed``. Nothing of its content is
scored or written. A shard of the list is not read.

A list is kept by ``write_removed``, as hashes: the urls and SHA-256 of removed samples are content, too.
"""

import hashlib
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.core.selection import parse_uids
from raycomp.core.uids import find_keys, from_keys, to_keys
from raycomp.curation.config import CurateConfig
from raycomp.curation.exclusion import REMOVABLE, find_listed, hash_keys, hash_uri, read_lists, sort_keys
from raycomp.data.arrow import add_columns
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import read_columns, read_schema, write_table
from raycomp.data.paths import ShardPath, find_stamp
from raycomp.words import CAPTION, IMAGE, IMAGE_SHA256, JSON, KEY, REMOVED, SHARD, SHARD_STATUSES, STATUS, URL

OPTION = "removed"
_HASHED = pa.schema([("kind", pa.string()), ("hash", pa.string())])
_CONTENT = (KEY, URL, IMAGE_SHA256, CAPTION, IMAGE, JSON)


@dataclass(frozen=True)
class Removal:
    """A list of rows and shards, as sorted keys by kind: uid, sha256, url, domain, shard."""

    lists: Mapping[str, np.ndarray]

    def merge(self, other: "Removal") -> "Removal":
        """Return the entries of both."""
        names = sorted({*self.lists, *other.lists})
        parts = {name: [one.lists[name] for one in (self, other) if name in one.lists] for name in names}
        return Removal({name: np.unique(np.concatenate(keys)) for name, keys in parts.items()})

    def digest(self) -> str:
        """Return the SHA-256 of all entries."""
        found = hashlib.sha256()
        for kind, keys in sorted(self.lists.items()):
            found.update(f"{kind} {len(keys)}\0".encode() + keys.tobytes())
        return found.hexdigest()

    def find_rows(self, table: pa.Table) -> np.ndarray:
        """Return which rows are in the list, bool [N]; rows that stand for a shard are not."""
        lists = {kind: keys for kind, keys in self.lists.items() if kind != SHARD}
        if not lists or not len(table):
            return np.zeros(len(table), bool)
        is_sample_N = ~np.isin(np.array(table[STATUS].to_pylist(), object), SHARD_STATUSES)
        return find_listed(lists, lambda name: table[name]) & is_sample_N

    def find_shards(self, names: Sequence[str]) -> np.ndarray:
        """Return which shard names are in the list, bool [N]."""
        if SHARD not in self.lists:
            return np.zeros(len(names), bool)
        return find_keys(self.lists[SHARD], hash_keys(SHARD, names)) >= 0

    def drop_shards(self, shards: Sequence[ShardPath]) -> list[ShardPath]:
        """Return the shards that are not in the list, numbered anew."""
        found_N = self.find_shards([shard.name for shard in shards])
        left = [shard for shard, is_found in zip(shards, found_N, strict=True) if not is_found]
        return [replace(shard, ordinal=ordinal) for ordinal, shard in enumerate(left)]


def load_removed(uri: str | None) -> Removal | None:
    """Return the list in a file: a user's, as in the option's description, or one of ``write_removed``.

    None without a file. Raises ValueError as ``read_lists``.
    """
    if uri is None:
        return None
    return _load(uri, find_stamp(uri))


@lru_cache(maxsize=2)
def _load(uri: str, stamp: tuple[int | None, int | None]) -> Removal:
    if posixpath.splitext(uri)[1] == ".parquet" and read_schema(uri).names == _HASHED.names:
        table = read_columns(uri)
        return Removal({kind: _read_keys(table, kind) for kind in pc.unique(table["kind"]).to_pylist()})
    return Removal(
        {kind: sort_keys(kind, texts) for kind, texts in read_lists(OPTION, uri, REMOVABLE).items()}
    )


def _read_keys(table: pa.Table, kind: str) -> np.ndarray:
    return np.sort(to_keys(parse_uids(table["hash"].filter(pc.equal(table["kind"], kind)))))


def list_shards(config: CurateConfig) -> list[ShardPath]:
    """Return the shards of a curation's input without those that are removed."""
    shards = expand_input(config.input, config.prepare.stored_embeddings, config.columns)
    removal = load_removed(config.removed)
    left = shards if removal is None else removal.drop_shards(shards)
    if not left:
        raise ValueError(f"removed={config.removed!r}: names every shard of the input; name fewer")
    return left


def write_removed(removal: Removal, uri: str) -> None:
    """Write a list as hashes of its values, sorted."""
    kinds = [kind for kind, keys in sorted(removal.lists.items()) for _ in keys]
    hashes = [text for _, keys in sorted(removal.lists.items()) for text in from_keys(keys)]
    write_table(pa.table([pa.array(kinds, pa.string()), hashes], schema=_HASHED), uri, _HASHED)


def blank_removed(table: pa.Table, removal: Removal | None) -> pa.Table:
    """Return samples, with ``image_sha256``, of which those in the list have lost their content."""
    if removal is None:
        return table
    is_removed_N = removal.find_rows(table)
    return blank_rows(table, is_removed_N, _CONTENT) if is_removed_N.any() else table


def blank_rows(table: pa.Table, is_removed_N: np.ndarray, columns: Iterable[str]) -> pa.Table:
    """Return the table with the status ``removed`` and null in ``columns`` of some rows."""
    mask = pa.array(is_removed_N)
    blank = {name: blank_column(table[name], is_removed_N) for name in columns if name in table.column_names}
    return add_columns(table, {**blank, STATUS: pc.if_else(mask, REMOVED, table[STATUS])})


def blank_column(column: pa.ChunkedArray, is_removed_N: np.ndarray) -> pa.Array:
    """Return a column of any type with null in some rows."""
    keep_N = np.where(is_removed_N, -1, np.arange(len(column)))
    return column.combine_chunks().take(pa.array(keep_N, mask=keep_N < 0))


def fingerprint_removed(uri: str | None) -> dict[str, str]:
    """Return the SHA-256 of the list, which results depend on. Raises ValueError where it is missing."""
    return {} if uri is None else {OPTION: hash_uri(OPTION, uri)}
