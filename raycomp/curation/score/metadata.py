"""The input's own metadata as a side table: the fields of the samples' json, each with one type.

``metadata/`` has a file for every scores file, row for row. A field's type is that of most of its values over
all shards: bool, double (a whole column of integers: int64), or text; lists and objects are text, as json. A
value of another type becomes null and is counted, unless it is a number written as text.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa

from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.rows import to_json_value
from raycomp.run.waves import map_files
from raycomp.words import JSON, REMOVED, STATUS, UID

METADATA = "metadata"
MOST_FIELDS = 256
"""More fields than these, the most frequent ones, are left out."""
_MOST_COUNTED = 4096
_LONGEST_NAME = 200
BOOL, WHOLE, NUMBER, TEXT = "bool", "whole", "number", "text"
_TYPES = {BOOL: pa.bool_(), WHOLE: pa.int64(), NUMBER: pa.float64(), TEXT: pa.string()}
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Kinds:
    """How many values of each kind every field has; the order of merging does not matter."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def merge(self, other: "Kinds") -> "Kinds":
        """Return the counts over the rows of both."""
        names = {**self.counts, **other.counts}
        none: Counter[str] = Counter()
        return Kinds({name: self.counts.get(name, none) + other.counts.get(name, none) for name in names})

    def choose(self) -> dict[str, str]:
        """Return the type of each field that is kept, in order of name.

        The most frequent kind counts, whole and fractional numbers together; of equals, text.
        """
        ranked = sorted(self.counts, key=lambda name: (-self.counts[name].total(), name))[:MOST_FIELDS]
        kinds = {}
        for name in sorted(ranked):
            counts = self.counts[name]
            numbers = counts[WHOLE] + counts[NUMBER]
            kinds[name] = NUMBER if counts[NUMBER] else WHOLE
            if counts[TEXT] >= max(numbers, counts[BOOL]):
                kinds[name] = TEXT
            elif counts[BOOL] > numbers:
                kinds[name] = BOOL
        return kinds


Source = tuple[str, str]
"""A file with uid and status of rows, and the file with their column of json, which may be the same."""


def write_metadata(sources: Sequence[Source], out: Folder) -> dict[str, Any]:
    """Write ``metadata/`` of some files; return each field's type and number of misfits.

    Two passes over the files: types depend on all of them. No file is written where no row has a field.
    """

    def merge(found: Iterable[Kinds]) -> list[Kinds]:
        return [reduce(Kinds.merge, found, Kinds())]

    def count(source: Source) -> Kinds:
        return count_kinds(_read_fields(source))

    (kinds,) = merge(map_files(count, sources, label="metadata", fold=merge))
    types = kinds.choose()
    if not types:
        return {}
    jobs = [(source, out.at(METADATA, f"{ordinal:05d}.parquet")) for ordinal, source in enumerate(sources)]
    misfits = sum(map_files(_write_file, jobs, types, label="metadata"), Counter())
    found = {name: {"type": str(_TYPES[kind]), "misfits": misfits[name]} for name, kind in types.items()}
    return {"fields": found, "left_out": len(kinds.counts) - len(types)}


def count_kinds(rows: Iterable[Mapping[str, Any]]) -> Kinds:
    """Return the kinds of the values of each field; nulls are not counted."""
    counts: dict[str, Counter[str]] = {}
    for fields in rows:
        for name, value in fields.items():
            kind = _find_kind(value)
            if kind and 0 < len(name) <= _LONGEST_NAME and (name in counts or len(counts) < _MOST_COUNTED):
                counts.setdefault(name, Counter())[kind] += 1
    return Kinds(counts)


def name_types(rows: Iterable[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """Return the type that each field of some rows would have."""
    return {name: _TYPES[kind] for name, kind in count_kinds(rows).choose().items()}


def _find_kind(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return WHOLE if abs(value) <= _LARGEST else NUMBER
    return NUMBER if isinstance(value, float) else TEXT


def _write_file(job: tuple[Source, str], types: Mapping[str, str]) -> Counter[str]:
    """Write the metadata of one file; return the number of misfits of each field."""
    source, target = job
    uids = read_columns(source[0], [UID])[UID]
    columns, misfits = type_fields(_read_fields(source), types)
    table = pa.table({UID: uids, **{name: one for name, one in columns.items() if name != UID}})
    write_table(table, target, table.schema)
    return misfits


def type_fields(
    rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]
) -> tuple[dict[str, pa.Array], Counter[str]]:
    """Return a column for each field, null where a value is missing or a misfit, and the misfits by field."""
    misfits: Counter[str] = Counter()
    columns = {}
    for name, kind in types.items():
        values = [fields.get(name) for fields in rows]
        found = [_convert(value, kind) for value in values]
        pairs = zip(values, found, strict=True)
        misfits[name] += sum(_find_kind(value) is not None and one is None for value, one in pairs)
        columns[name] = pa.array(found, _TYPES[kind])
    return columns, misfits


def _convert(value: Any, kind: str) -> Any:
    """Return a value of a kind's type, None where it does not fit."""
    own = _find_kind(value)
    if own is None or (kind != TEXT and (kind == BOOL) != (own == BOOL)):
        return None
    if kind == TEXT:
        return to_text(value)
    if kind == BOOL:
        return value
    try:
        number = int(value) if kind == WHOLE and own != NUMBER else float(value)
    except (ValueError, TypeError, OverflowError):
        return None
    fits = abs(number) <= _LARGEST if kind == WHOLE else math.isfinite(number)
    return number if fits and (kind != WHOLE or number == int(number)) else None


def to_text(value: Any) -> str | None:
    """Return a value of a sample's json as text; one that is not text as json."""
    value = to_json_value(value)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace").decode()  # json may hold half of a surrogate pair


def _read_fields(source: Source) -> list[dict[str, Any]]:
    statuses = read_columns(source[0], [STATUS])[STATUS].to_pylist()
    texts = read_columns(source[1], [JSON])[JSON].to_pylist()
    return [
        json.loads(text) if text and status != REMOVED else {}
        for text, status in zip(texts, statuses, strict=True)
    ]
