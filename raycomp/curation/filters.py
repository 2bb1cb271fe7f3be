"""The condition on a row's columns by which ``curate`` and ``select`` drop rows.

It sees the columns of scores/ that hold one value, the input's metadata, and a table of the user's that is
joined by uid, key, url or sha256.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import UserError
from raycomp.core.uids import find_keys
from raycomp.curation.config import FilterConfig
from raycomp.curation.exclusion import JOIN, KEYS, find_key, hash_keys, load_table
from raycomp.curation.scored import Found, ScoresFile
from raycomp.data.expression import evaluate, find_columns
from raycomp.data.parquet import read_columns, read_schema
from raycomp.words import (
    ALIGNMENT,
    CAPTION_LANGUAGE,
    CAPTION_WORDS,
    FILTER_NULL,
    FILTER_NULL_AFTER,
    FILTERED,
    FILTERED_AFTER,
    ORIGINAL_HEIGHT,
    ORIGINAL_WIDTH,
    UID,
)

WHERE = "filter.where"
# Short names of columns of scores/, and the quotient of two.
ALIASES = {
    "width": ORIGINAL_WIDTH,
    "height": ORIGINAL_HEIGHT,
    "words": CAPTION_WORDS,
    "lang": CAPTION_LANGUAGE,
}
ASPECT = "aspect"
OWN_PREFIX = "meta_"
"""Before the name of a metadata field that a column of scores/ or a short name has too."""
_SCORES, _METADATA, _JOINED, _ALIAS = "scores/", "metadata", "joined", "short names"


@dataclass(frozen=True)
class Joined:
    """A table of the user's: the columns that the condition uses, in the order of the sorted keys."""

    on: str
    key_M: np.ndarray
    table: pa.Table


@dataclass(frozen=True)
class Condition:
    """Finds the rows of a file for which the condition is not true, or which the joined table lacks."""

    config: FilterConfig
    columns: tuple[str, ...]
    """The names that the condition uses."""
    fields: dict[str, str]
    """Each name that it may use, with the place of its column."""
    joined: Joined | None = None

    def __call__(self, file: ScoresFile) -> Found:
        """Return a reason for each row to be dropped; null of the condition is a reason of its own."""
        is_after = self.config.is_after
        lost, null = (FILTERED_AFTER, FILTER_NULL_AFTER) if is_after else (FILTERED, FILTER_NULL)
        row_N = self._find_rows(file)
        value_N = self._evaluate(file, row_N)
        reason_N = np.full(len(value_N), None, object)
        reason_N[value_N == 0], reason_N[value_N < 0] = lost, null
        reason_N[row_N < 0] = None if self.config.missing == "keep" else null
        return Found(reason_N, is_after)

    def _find_rows(self, file: ScoresFile) -> np.ndarray:
        """Return each row's row of the joined table, -1 where that has none; 0 without a table."""
        if self.joined is None:
            return np.zeros(len(read_columns(file.uri, [UID])), int)
        table = read_columns(file.uri, [KEYS[self.joined.on], ALIGNMENT])
        values = table[0].to_pylist()
        row_N = find_keys(self.joined.key_M, hash_keys(self.joined.on, values))
        missing_N = (row_N < 0) & table[ALIGNMENT].is_valid().to_numpy()
        if self.config.missing == "fail" and missing_N.any():
            raise UserError(
                f"{JOIN}={self.config.join!r}: has no row for {missing_N.sum():,} rows of one shard, such as "
                f"{self.joined.on} {values[int(missing_N.argmax())]!r}; complete it, or set filter.missing"
            )
        return row_N

    def _evaluate(self, file: ScoresFile, row_N: np.ndarray) -> np.ndarray:
        """Return the condition's value of each row: 1, 0, or -1 for null."""
        if self.config.where is None:
            return np.ones(len(row_N), np.int8)
        columns = {name: self._take(name, file, row_N) for name in self.columns}
        table = pa.table(columns or {UID: read_columns(file.uri, [UID])[UID]})
        return pc.fill_null(evaluate(WHERE, self.config.where, table).cast(pa.int8()), -1).to_numpy()

    def _take(self, name: str, file: ScoresFile, row_N: np.ndarray) -> pa.ChunkedArray:
        place = self.fields[name]
        if place == _JOINED:
            assert self.joined is not None
            return self.joined.table[name].take(pa.array(row_N, mask=row_N < 0))
        if place == _METADATA:
            assert file.metadata is not None
            has_own = name in read_schema(file.metadata).names
            return read_columns(file.metadata, [name if has_own else name.removeprefix(OWN_PREFIX)])[0]
        if name == ASPECT:
            return _divide(*read_columns(file.uri, [ORIGINAL_WIDTH, ORIGINAL_HEIGHT]).columns)
        return read_columns(file.uri, [ALIASES[name] if place == _ALIAS else name])[0]


def _divide(width: pa.ChunkedArray, height: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(width.cast(pa.float64()), height.cast(pa.float64()))


def add_short_names(columns: Mapping[str, pa.ChunkedArray]) -> dict[str, pa.ChunkedArray]:
    """Return columns by name, also under the short names that a condition may use."""
    found = {**columns}
    found |= {alias: columns[name] for alias, name in ALIASES.items() if name in columns}
    if {ORIGINAL_WIDTH, ORIGINAL_HEIGHT} <= {*columns}:
        found[ASPECT] = _divide(columns[ORIGINAL_WIDTH], columns[ORIGINAL_HEIGHT])
    return found


def add_metadata(columns: Mapping[str, pa.ChunkedArray], file: ScoresFile) -> dict[str, pa.ChunkedArray]:
    """Return columns by name with those of the file's metadata, under the names of a condition."""
    found, taken = {**columns}, {*add_short_names(columns)}
    for name in () if file.metadata is None else read_schema(file.metadata).names:
        if name != UID:
            assert file.metadata is not None
            found[OWN_PREFIX + name if name in taken else name] = read_columns(file.metadata, [name])[0]
    return found


def name_fields(scores: pa.Schema, metadata: Iterable[str], joined: Iterable[str]) -> dict[str, str]:
    """Return the names that a condition may use, each with the place of its column.

    Raises ValueError where a joined column has the name of another column.
    """
    found = {one.name: _SCORES for one in scores if not pa.types.is_nested(one.type)}
    short = {alias for alias, column in ALIASES.items() if column in found}
    short |= {ASPECT} if {ORIGINAL_WIDTH, ORIGINAL_HEIGHT} <= {*found} else set()
    found |= dict.fromkeys(short, _ALIAS)
    for name in metadata:
        if name != UID:
            found[OWN_PREFIX + name if name in found else name] = _METADATA
    for name in joined:
        if name in found:
            raise ValueError(
                f"{JOIN}: its column {name} is also one of {found[name]}; rename it in the table"
            )
        found[name] = _JOINED
    return found


def load_condition(config: FilterConfig, scores: pa.Schema, metadata: Iterable[str]) -> Condition:
    """Return the condition, checked against the columns; a joined table is read into memory.

    Raises ValueError or UserError in the user's words.
    """
    table = None if config.join is None else load_table(JOIN, config.join)
    on = None if table is None else find_key(config.join, config.on, table.column_names)
    others = [] if table is None else [name for name in table.column_names if name != on]
    fields = name_fields(scores, metadata, others)
    columns = () if config.where is None else tuple(find_columns(WHERE, config.where, [*fields]))
    if table is None or on is None:
        return Condition(config, columns, fields)
    used = [name for name in columns if fields[name] == _JOINED]
    return Condition(config, columns, fields, _sort_table(table, on, used))


def check_types(condition: Condition, scores: pa.Schema, metadata: Mapping[str, pa.DataType]) -> None:
    """Raise UserError where the condition does not fit the types of its columns, or is not a condition."""
    if condition.config.where is not None:
        kinds = {name: _find_type(condition, name, scores, metadata) for name in condition.columns}
        columns = {name: pa.nulls(0, kind) for name, kind in (kinds or {UID: pa.string()}).items()}
        evaluate(WHERE, condition.config.where, pa.table(columns))


def _find_type(
    condition: Condition, name: str, scores: pa.Schema, metadata: Mapping[str, pa.DataType]
) -> pa.DataType:
    place = condition.fields[name]
    if place == _JOINED:
        assert condition.joined is not None
        return condition.joined.table.schema.field(name).type
    if place == _METADATA:
        return metadata[name if name in metadata else name.removeprefix(OWN_PREFIX)]
    return pa.float64() if name == ASPECT else scores.field(ALIASES.get(name, name)).type


def _sort_table(table: pa.Table, on: str, columns: list[str]) -> Joined:
    """Return the columns in the order of the sorted keys. Raises UserError where a key occurs twice."""
    values = table[on].cast(pa.string()).to_pylist()
    key_N = hash_keys(on, values)
    order_N = np.argsort(key_N, kind="stable")
    key_N = key_N[order_N]
    again = np.flatnonzero(key_N[1:] == key_N[:-1])
    if len(again):
        example = values[order_N[again[0]]]
        raise UserError(
            f"{JOIN}: {len(again):,} rows repeat a {on}, such as {example!r}; keep one row of each"
        )
    return Joined(on, key_N, table.select(columns).take(pa.array(order_N)))
