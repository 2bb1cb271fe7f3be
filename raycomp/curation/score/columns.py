"""Columns of the user's own next to the scores: the input's metadata, and scorers.

Metadata are the fields of the samples' json, each with one type: ``metadata/`` has a file for every scores
file, row for row. A field's type is that of most of its values over all shards: bool, double (a whole column
of integers: int64), or text; lists and objects are text, as json. A value of another type becomes null and is
counted, unless it is a number written as text.

A scorer is a class of the user's, FILE.py:CLASS in the option ``scorers``, called in the pass that computes
alignment. It declares ``columns``, the type of each column by name, and ``needs``, the arrays that it is
called with, by name. N rows, some of them usable.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import UserError
from raycomp.config.commands import call_own, find_file, is_own, load_own
from raycomp.data.files import Folder
from raycomp.data.parquet import check_extra_columns, read_columns, write_table
from raycomp.data.samples import to_json_value
from raycomp.run.work import map_files
from raycomp.words import JSON, REMOVED, STATUS, UID

METADATA = "metadata"
MOST_FIELDS = 256
"""More fields than these, the most frequent ones, are left out."""
_MOST_COUNTED = 4096
_LONGEST_NAME = 200
BOOL, WHOLE, NUMBER, TEXT = "bool", "whole", "number", "text"
_TYPES = {BOOL: pa.bool_(), WHOLE: pa.int64(), NUMBER: pa.float64(), TEXT: pa.string()}
_LARGEST = 2**63 - 1


Kinds = Counter[tuple[str, str]]
"""How many values of each kind every field has, by (field, kind)."""


def choose_types(kinds: Kinds) -> dict[str, str]:
    """Return the type of each field that is kept, in order of name.

    The most frequent kind counts, whole and fractional numbers together; of equals, text.
    """
    totals: Counter[str] = Counter()
    for (name, _), count in kinds.items():
        totals[name] += count
    types = {}
    for name in sorted(sorted(totals, key=lambda name: (-totals[name], name))[:MOST_FIELDS]):
        numbers = kinds[name, WHOLE] + kinds[name, NUMBER]
        types[name] = NUMBER if kinds[name, NUMBER] else WHOLE
        if kinds[name, TEXT] >= max(numbers, kinds[name, BOOL]):
            types[name] = TEXT
        elif kinds[name, BOOL] > numbers:
            types[name] = BOOL
    return types


Source = tuple[str, str]
"""A file with uid and status of rows, and the file with their column of json, which may be the same."""


def write_metadata(sources: Sequence[Source], out: Folder) -> dict[str, Any]:
    """Write ``metadata/`` of some files; return each field's type and number of misfits.

    Two passes over the files: types depend on all of them. No file is written where no row has a field.
    """

    def add(found: Iterable[Kinds]) -> list[Kinds]:
        return [sum(found, Kinds())]

    def count(source: Source) -> Kinds:
        return count_kinds(_read_fields(source))

    (kinds,) = add(map_files(count, sources, label="metadata", fold=add))
    types = choose_types(kinds)
    if not types:
        return {}
    jobs = [(source, out.at(METADATA, f"{ordinal:05d}.parquet")) for ordinal, source in enumerate(sources)]
    misfits = sum(map_files(_write_file, jobs, types, label="metadata"), Counter())
    found = {name: {"type": str(_TYPES[kind]), "misfits": misfits[name]} for name, kind in types.items()}
    return {"fields": found, "left_out": len({name for name, _ in kinds}) - len(types)}


def count_kinds(rows: Iterable[Mapping[str, Any]]) -> Kinds:
    """Return the kinds of the values of each field; nulls are not counted."""
    kinds, names = Kinds(), set[str]()
    for fields in rows:
        for name, value in fields.items():
            kind = _find_kind(value)
            if kind and 0 < len(name) <= _LONGEST_NAME and (name in names or len(names) < _MOST_COUNTED):
                names.add(name)
                kinds[name, kind] += 1
    return kinds


def name_types(rows: Iterable[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """Return the type that each field of some rows would have."""
    return {name: _TYPES[kind] for name, kind in choose_types(count_kinds(rows)).items()}


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
    if kind in (TEXT, BOOL):
        return to_text(value) if kind == TEXT else value
    try:
        number = int(value) if kind == WHOLE and own != NUMBER else float(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if kind == NUMBER:  # a whole number that a double does not hold is a misfit
        return number if math.isfinite(number) and (own != WHOLE or number == value) else None
    return number if abs(number) <= _LARGEST and number == int(number) else None


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


OPTION = "scorers"
PIXELS, CAPTIONS = "pixels", "captions"
IMAGE_EMBEDDINGS, TEXT_EMBEDDINGS = "image_embeddings", "text_embeddings"
NEEDS = (PIXELS, CAPTIONS, IMAGE_EMBEDDINGS, TEXT_EMBEDDINGS)
TYPES = {
    "float32": pa.float32(),
    "float64": pa.float64(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "string": pa.string(),
}
ROWS = 32
"""Rows of a call, always: the last ones are repeated, so that a value does not depend on the batch."""


def list_own_columns(names: Sequence[str]) -> list[pa.Field]:
    """Return the columns that the scorers add to scores/. Raises ValueError as ``check_scorers``."""
    return [pa.field(name, TYPES[kind]) for value in names for name, kind in _load(value)[0].items()]


def check_scorers(names: Sequence[str], extra_columns: Sequence[str], is_stored: bool) -> None:
    """Raise ValueError where a scorer is not there, declares nothing, or has a column that there is already.

    ``is_stored``: image embeddings are given, so there are no pixels.
    """
    columns = [field.name for field in list_own_columns(names)]
    try:
        check_extra_columns((*extra_columns, *columns))
    except ValueError as error:
        said = str(error).replace("extra_columns=", "column ")
        raise ValueError(f"{OPTION}={','.join(names)}: {said}") from error
    for value in names if is_stored else ():
        if PIXELS in _load(value)[1]:
            said = "needs pixels, which prepare.stored_embeddings has none of; use image_embeddings"
            raise ValueError(f"{OPTION}={value}: {said}")


def _load(value: str) -> tuple[dict[str, str], tuple[str, ...], Any]:
    """Return the columns, needs and class of a scorer, checked."""
    if not is_own(value):
        raise ValueError(f"{OPTION}={value!r}: must be a class in a file, FILE.py:CLASS")
    found = load_own(OPTION, value)
    columns, needs = getattr(found, "columns", None), getattr(found, "needs", None)
    said = ""
    if not isinstance(found, type):
        said = "the file defines no such class"
    elif not isinstance(columns, Mapping) or not columns or not {*columns.values()} <= {*TYPES}:
        said = f"its attribute columns must be {{name: type}}, of the types {', '.join(TYPES)}"
    elif not all(isinstance(name, str) and name.isidentifier() for name in columns):
        said = "names in columns must be letters, digits and _"
    elif not isinstance(needs, list | tuple) or not needs or not {*needs} <= {*NEEDS}:
        said = f"its attribute needs must be a tuple of {', '.join(NEEDS)}"
    if said:
        raise ValueError(f"{OPTION}={value}: {said}")
    return dict(columns or {}), tuple(needs or ()), found


def fingerprint_scorers(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the SHA-256 of the scorers' files; empty without a scorer."""
    digests = [hashlib.sha256(Path(find_file(value)).read_bytes()).hexdigest() for value in names]
    return {OPTION: digests} if digests else {}


class OwnScorers:
    """The scorers of one process, each made once."""

    def __init__(self, names: Sequence[str]):
        loaded = [(value, *_load(value)) for value in names]
        self.scorers = [
            (value, columns, needs, call_own(OPTION, value, make)) for value, columns, needs, make in loaded
        ]
        self.needs = {need for _, _, needs, _ in self.scorers for need in needs}

    def __call__(self, arrays: Mapping[str, Any], valid_N: np.ndarray) -> dict[str, pa.Array]:
        """Return the columns of N rows, null where ``valid_N`` is False; ``arrays`` have the valid rows.

        Raises UserError, naming the scorer, where its code fails or returns anything but its columns, a value
        a row. NaN and None become null.
        """
        found, num = {}, int(valid_N.sum())
        place_N = pa.array(np.cumsum(valid_N) - 1, mask=~valid_N)
        for value, columns, needs, scorer in self.scorers:
            parts: dict[str, list[pa.Array]] = {name: [] for name in columns}
            for start in range(0, num, ROWS):
                rows = [min(row, num - 1) for row in range(start, start + ROWS)]  # the last one is repeated
                given = {
                    need: [array[row] for row in rows] if isinstance(array, list) else array[rows]
                    for need, array in ((need, arrays[need]) for need in needs)
                }
                result = call_own(OPTION, value, lambda given=given, scorer=scorer: scorer(**given))
                if not isinstance(result, Mapping) or {*result} != {*columns}:
                    names = map(str, result) if isinstance(result, Mapping) else [type(result).__name__]
                    said = f"must return a dict of {', '.join(columns)}, returned {', '.join(names)}"
                    raise UserError(f"{OPTION}={value}: {said}")
                for name, kind in columns.items():
                    array = _to_array(f"{OPTION}={value}: column {name}", kind, result[name])
                    parts[name].append(array.slice(0, min(ROWS, num - start)))
            for name, kind in columns.items():
                found[name] = pa.chunked_array(parts[name], TYPES[kind]).combine_chunks().take(place_N)
        return found


def _to_array(said: str, kind: str, values: Any) -> pa.Array:
    """Return what a scorer returned for a column, checked; ``said`` names scorer and column in errors."""
    values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    try:
        array = pa.array(values, from_pandas=True).cast(TYPES[kind])
    except (pa.ArrowException, TypeError) as error:
        raise UserError(f"{said} must be {kind}: {' '.join(str(error).split())[:200]}") from error
    if len(array) != ROWS:
        raise UserError(f"{said} must have {ROWS} values, one a row, has {len(array)}")
    return array
