"""Small operations on Arrow tables that every stage uses."""

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.models.parser import MAX_CHARACTERS
from raycomp.schema import SAMPLE_SCHEMA, aligned_schema, scores_schema
from raycomp.words import IMAGE, IMAGE_SHA256, PIXELS, SCORE

# Columns that only stages of curation exchange; they are written to no file.
TOKENS = "tokens"
COUNTERFACTUALS = "counterfactuals"
FAULTS = "faults"
OTHERS = "others"
SHUFFLED_ALIGNMENT = "shuffled_alignment"
SECONDS = "seconds_"
_TRAVELLING = (TOKENS, COUNTERFACTUALS, FAULTS, OTHERS, SHUFFLED_ALIGNMENT)


def check_extra_columns(names: tuple[str, ...]) -> None:
    """Raise ValueError where an extra column has the name of a column that every row has."""
    columns = scores_schema(aligned_schema(1, "float32", ()), with_content=True).names
    taken = dict.fromkeys([*columns, *SAMPLE_SCHEMA.names, PIXELS, SCORE, *_TRAVELLING])
    for name in names:
        if name in taken or name.startswith(SECONDS) or names.count(name) > 1:
            raise ValueError(
                f"extra_columns={name!r}: must be new names, each once; taken are {SECONDS}* and "
                f"{', '.join(taken)}"
            )


def readable(text: str) -> str:
    """Return the part of a text that is tokenised: as much as is parsed, with white space collapsed.

    That exceeds the context of any text tower. It bounds the tokenizer's time, which is quadratic in the
    length of a word.
    """
    return text if len(text) <= MAX_CHARACTERS else " ".join(text.split())[:MAX_CHARACTERS]


def to_matrix(column: pa.ChunkedArray | pa.FixedSizeListArray) -> np.ndarray:
    """Return a fixed-size-list column as [rows, size]; null rows hold arbitrary values.

    It is a read-only view, of several chunks joined.
    """
    if isinstance(column, pa.ChunkedArray):  # joining a single chunk would copy it
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    array = column
    size = array.type.list_size
    values = array.values.slice(array.offset * size, len(array) * size)
    return values.to_numpy(zero_copy_only=False).reshape(len(array), size)


def to_fixed_lists(value_NM: np.ndarray, valid_N: np.ndarray | None = None) -> pa.FixedSizeListArray:
    """Return [rows, size] values as a fixed-size-list array, null where ``valid_N`` is False."""
    values = pa.array(np.ascontiguousarray(value_NM).reshape(-1))
    mask = None if valid_N is None else pa.array(~valid_N)
    return pa.FixedSizeListArray.from_arrays(values, value_NM.shape[1], mask=mask)


def add_columns(table: pa.Table, columns: dict[str, Any]) -> pa.Table:
    """Return the table with the named columns appended, or replaced where it has them."""
    for name, column in columns.items():
        at = table.schema.get_field_index(name)
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    return table


def hash_images(table: pa.Table) -> pa.Table:
    """Return the table with the SHA-256 of every image's bytes, in hex digits, null where there is none."""
    images = table[IMAGE].combine_chunks()
    buffers = (image.as_buffer() if image.is_valid else None for image in images)
    hashes = [None if data is None else hashlib.sha256(data).hexdigest() for data in buffers]
    return add_columns(table, {IMAGE_SHA256: pa.array(hashes, pa.string())})


def find_distinct(names: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Return the first row of each distinct name, in their order, and the place of each row's among these."""
    places: dict[Hashable, int] = {}
    which_N = [places.setdefault(name, len(places)) for name in names]
    rows: dict[int, int] = {}
    for row, place in enumerate(which_N):
        rows.setdefault(place, row)
    return list(rows.values()), which_N


def nest(tokens_TL: np.ndarray, counts: list[int]) -> pa.ListArray:
    """Return a list per row of token ids of fixed length."""
    offsets = pa.array(np.cumsum([0, *counts]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, to_fixed_lists(tokens_TL[: sum(counts)]))


def from_rows(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Return a table of ``schema`` from rows, each with a value for every column in order."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, each.type) for values, each in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
