"""The values of rows of Arrow columns as bytes, so that rows can be hashed: equal values, equal bytes.

Texts and lists are preceded by their length, values by whether they are null; so different rows never have
the same bytes. Columns are read from their buffers, not turned into Python objects.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

_NULL, _VALUE = b"\0", b"\1"


def digest_rows(columns: Iterable[pa.ChunkedArray | pa.Array], num_rows: int) -> list[bytes]:
    """Return the SHA-256 of the values of each row, [N], 32 bytes each."""
    hashes = [hashlib.sha256() for _ in range(num_rows)]
    for column in columns:
        for one, data in zip(hashes, encode_rows(column), strict=True):
            one.update(data)
    return [one.digest() for one in hashes]


def encode_rows(column: pa.ChunkedArray | pa.Array) -> list[bytes]:
    """Return the bytes of each value of a column of numbers, texts, lists and structs of these."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [encode_rows(field) for field in array.flatten()]
        values = list(map(b"".join, zip(*fields, strict=True)))
    elif pa.types.is_fixed_size_list(kind):
        values = _encode_vectors(array)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = _encode_lists(array)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        values = _encode_texts(array)
    else:
        values = _encode_numbers(array)
    if not array.null_count:
        return [_VALUE + value for value in values]
    valid_N = array.is_valid().to_numpy(zero_copy_only=False)
    return [_VALUE + value if valid else _NULL for value, valid in zip(values, valid_N, strict=True)]


def _encode_numbers(array: pa.Array) -> list[bytes]:
    if pa.types.is_null(array.type):
        return [b""] * len(array)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    raw = bytes(len(array) * width) if data is None else data.to_pybytes()[array.offset * width :]
    return [raw[start : start + width] for start in range(0, len(array) * width, width)]


def _encode_texts(array: pa.Array) -> list[bytes]:
    values = array.cast(pa.large_binary()).to_pylist()
    return [b"" if value is None else len(value).to_bytes(8) + value for value in values]


def _encode_lists(array: pa.Array) -> list[bytes]:
    count_N = np.nan_to_num(array.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
    parts = encode_rows(array.flatten())
    edges = np.concatenate([[0], np.cumsum(count_N)]).tolist()
    counts = [int(count).to_bytes(8) for count in count_N]
    return [counts[i] + b"".join(parts[edges[i] : edges[i + 1]]) for i in range(len(array))]


def _encode_vectors(array: pa.FixedSizeListArray) -> list[bytes]:
    size = array.type.list_size
    values = array.values.slice(array.offset * size, len(array) * size)
    width = values.type.bit_width // 8 * size
    raw = b"".join(_encode_numbers(values))
    return [raw[start : start + width] for start in range(0, len(array) * width, width)]
