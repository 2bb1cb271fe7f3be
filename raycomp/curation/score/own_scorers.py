"""Scorers of the user's own, in the pass that computes alignment: FILE.py:CLASS in the option ``scorers``.

A class declares ``columns``, the type of each column by name, and ``needs``, the arrays that it is called
with, by name. N rows, some of them usable.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import UserError
from raycomp.config.own_code import call_own, find_file, is_own, load_own
from raycomp.data.parquet import check_extra_columns

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
    for value in names:
        if is_stored and PIXELS in _load(value)[1]:
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
                given = {need: _take(arrays[need], rows) for need in needs}
                result = call_own(OPTION, value, lambda given=given, scorer=scorer: scorer(**given))
                for name, array in _check(value, columns, result).items():
                    parts[name].append(array.slice(0, min(ROWS, num - start)))
            for name, kind in columns.items():
                found[name] = pa.chunked_array(parts[name], TYPES[kind]).combine_chunks().take(place_N)
        return found


def _take(array: Any, rows: list[int]) -> Any:
    return [array[row] for row in rows] if isinstance(array, list) else array[rows]


def _check(value: str, columns: Mapping[str, str], result: Any) -> dict[str, pa.Array]:
    """Return what a scorer returned as arrays of the declared types."""
    if not isinstance(result, Mapping) or {*result} != {*columns}:
        got = ", ".join(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
        raise UserError(f"{OPTION}={value}: must return a dict of {', '.join(columns)}, returned {got}")
    found = {}
    for name, kind in columns.items():
        values = result[name]
        values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
        try:
            found[name] = pa.array(values, from_pandas=True).cast(TYPES[kind])
        except (pa.ArrowException, TypeError) as error:
            line = " ".join(str(error).split())[:200]
            raise UserError(f"{OPTION}={value}: column {name} must be {kind}: {line}") from error
        if len(found[name]) != ROWS:
            said = f"column {name} must have {ROWS} values, one a row, has {len(found[name])}"
            raise UserError(f"{OPTION}={value}: {said}")
    return found
