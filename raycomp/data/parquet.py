"""Parquet tables on disk, equal tables in equal bytes; small operations on Arrow tables.

A command of one process passes no pandas objects to PyArrow. Ray Data does, so a process that connects to a
cluster restores the import.

Digests of rows: texts and lists are preceded by their length, values by whether they are null; so different
rows never have the same bytes. Columns are read from their buffers, not turned into Python objects.
"""

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.lib import _pandas_api

from raycomp import words
from raycomp.config import UserError
from raycomp.data.files import new_file, resolve, resolve_file
from raycomp.data.stores import may_succeed_later
from raycomp.models.parser import MAX_CHARACTERS
from raycomp.schema import CAPTION_SCHEMA, PHRASE_TYPE, PICTURE_SCHEMA, SAMPLE_SCHEMA
from raycomp.words import IMAGE, IMAGE_SHA256, PIXELS, SCORE, SHARD, STATUS

# Columns that only stages of curation exchange; they are written to no file.
TOKENS = "tokens"
COUNTERFACTUALS = "counterfactuals"
FAULTS = "faults"
OTHERS = "others"
SHUFFLED_ALIGNMENT = "shuffled_alignment"
SECONDS = "seconds_"

ROW_GROUP_ROWS = 16_384
_FILES_AHEAD = 8
_PIECE_BYTES = 8 << 20
# Bytes of a file's end, as Arrow reads it first.
_FOOTER_BYTES = 64 << 10


class _Refuse(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError(name)


def keep_pandas_out() -> None:
    """Make PyArrow's check for pandas fail once and for all, unless this process has imported pandas."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, refuse := _Refuse())
    try:
        pa.array([""])
    finally:
        sys.meta_path.remove(refuse)


def let_pandas_in() -> None:
    """Restore PyArrow's knowledge of pandas, where it is installed."""
    with suppress(ImportError):
        _ = _pandas_api.pd


def aligned_schema(
    embedding_dim: int,
    embedding_dtype: str,
    extra_columns: tuple[str, ...] = (),
    own_columns: Sequence[pa.Field] = (),
) -> pa.Schema:
    """Return the schema of a shard's rows after alignment; ``embedding_dtype`` is float32 or float16.

    ``alignment`` and ``image_embedding`` are null on bad and duplicate rows. ``own_columns``: those of the
    user's scorers.
    """
    value = {"float32": pa.float32(), "float16": pa.float16()}[embedding_dtype]
    return pa.schema(
        [
            (words.UID, pa.string()),
            (words.KEY, pa.string()),
            (words.SHARD, pa.string()),
            (words.POSITION, pa.int32()),
            (words.OFFSET, pa.int64()),
            (words.URL, pa.string()),
            (words.IMAGE_SHA256, pa.string()),
            (words.ORIGINAL_WIDTH, pa.int32()),
            (words.ORIGINAL_HEIGHT, pa.int32()),
            *PICTURE_SCHEMA,
            (words.CAPTION, pa.string()),
            *CAPTION_SCHEMA,
            (words.STATUS, pa.string()),
            (words.ALIGNMENT, pa.float32()),
            (words.IMAGE_EMBEDDING, pa.list_(value, embedding_dim)),
            *((name, pa.string()) for name in extra_columns),
            *own_columns,
        ]
    )


def attributed_schema(with_content: bool = False) -> pa.Schema:
    """Return the columns that attribution adds: phrases, and adjectives, verbs and relation words.

    The latter, as ``content_words``, only where they are measured.
    """
    content = [(words.CONTENT_WORDS, pa.list_(PHRASE_TYPE))] if with_content else []
    scores = [(words.MEAN_PAS, pa.float32()), (words.PHRASES, pa.list_(PHRASE_TYPE))]
    return pa.schema([(words.POSITION, pa.int32()), (words.STATUS, pa.string()), *scores, *content])


def scores_schema(aligned: pa.Schema, with_content: bool = False) -> pa.Schema:
    """Return the schema of a ``scores/`` file: the aligned columns, mean PAS and phrases after alignment.

    ``phrases`` and ``mean_pas`` are null on rows that were not attributed. ``mean_pas`` is over the phrases
    of class HEAD, null where none of them has a valid nonce.
    """
    at = aligned.get_field_index(words.ALIGNMENT) + 1
    added = [one for one in attributed_schema(with_content) if one.name not in (words.POSITION, words.STATUS)]
    return pa.schema([*list(aligned)[:at], *added, *list(aligned)[at:]])


def check_extra_columns(names: tuple[str, ...]) -> None:
    """Raise ValueError where an extra column has the name of a column that every row has."""
    columns = scores_schema(aligned_schema(1, "float32", ()), with_content=True).names
    passing = TOKENS, COUNTERFACTUALS, FAULTS, OTHERS, SHUFFLED_ALIGNMENT
    taken = dict.fromkeys([*columns, *SAMPLE_SCHEMA.names, PIXELS, SCORE, *passing])
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
    size = column.type.list_size
    values = column.values.slice(column.offset * size, len(column) * size)
    return values.to_numpy(zero_copy_only=False).reshape(len(column), size)


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
    return np.unique(which_N, return_index=True)[1].tolist(), which_N


def nest(tokens_TL: np.ndarray, counts: list[int]) -> pa.ListArray:
    """Return a list per row of token ids of fixed length."""
    offsets = pa.array(np.cumsum([0, *counts]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, to_fixed_lists(tokens_TL[: sum(counts)]))


def from_rows(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Return a table of ``schema`` from rows, each with a value for every column in order."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, each.type) for values, each in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def digest_rows(columns: Iterable[pa.ChunkedArray | pa.Array]) -> list[bytes]:
    """Return the SHA-256 of the values of each row, [N], 32 bytes each."""
    encoded = zip(*map(encode_rows, columns), strict=True)
    return [hashlib.sha256(b"".join(row)).digest() for row in encoded]


def encode_rows(column: pa.ChunkedArray | pa.Array) -> list[bytes]:
    """Return the bytes of each value of a column of numbers, texts, lists and structs of these."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [encode_rows(field) for field in array.flatten()]
        values = list(map(b"".join, zip(*fields, strict=True)))
    elif pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        inner = _encode_numbers(array.values.slice(array.offset * size, len(array) * size))
        values = [b"".join(inner[start : start + size]) for start in range(0, len(inner), size)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        count_N = np.nan_to_num(array.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
        inner = encode_rows(array.flatten())
        ends = np.cumsum(count_N).tolist()
        counts = count_N.tolist()
        values = [
            count.to_bytes(8) + b"".join(inner[end - count : end])
            for count, end in zip(counts, ends, strict=True)
        ]
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        texts = array.cast(pa.large_binary()).to_pylist()
        values = [b"" if text is None else len(text).to_bytes(8) + text for text in texts]
    else:
        values = _encode_numbers(array)
    if not array.null_count:
        return [b"\1" + value for value in values]
    valid_N = array.is_valid().to_numpy(zero_copy_only=False)
    return [b"\1" + value if valid else b"\0" for value, valid in zip(values, valid_N, strict=True)]


def _encode_numbers(array: pa.Array) -> list[bytes]:
    if pa.types.is_null(array.type):
        return [b""] * len(array)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    raw = bytes(len(array) * width) if data is None else data.to_pybytes()[array.offset * width :]
    return [raw[start : start + width] for start in range(0, len(array) * width, width)]


def write_table(
    table: pa.Table, uri: str, schema: pa.Schema, about: Mapping[bytes, str] | None = None
) -> None:
    """Write ``table`` to ``uri`` as Parquet of ``schema``, whole or not at all.

    The bytes depend on the values, ``schema`` and ``about`` alone (and on Arrow's version, which it writes
    down): chunks are joined, row groups have a fixed size, all metadata except the types and ``about`` is
    dropped.
    Raises ValueError where the table's columns are not those of ``schema``, in its order.
    """
    if table.column_names != schema.names:
        raise ValueError(f"{uri}: the columns are {table.column_names}, must be {schema.names}")
    table = table.cast(schema).replace_schema_metadata(about).combine_chunks()
    with new_file(uri) as file:
        pq.write_table(
            table,
            file,
            row_group_size=ROW_GROUP_ROWS,
            version="2.6",
            data_page_version="1.0",
            compression="zstd",
            compression_level=3,
            use_dictionary=[name for name in (SHARD, STATUS) if name in schema.names],
            write_statistics=True,
            write_page_checksum=True,
        )


def write_groups(tables: Iterable[pa.Table], uri: str, schema: pa.Schema) -> int:
    """Write tables into one file, as ``new_groups`` does; return the number of rows."""
    count = 0
    with new_groups(uri, schema) as write:
        for table in tables:
            write(table)
            count += len(table)
    return count


@contextmanager
def new_groups(uri: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Return a function that adds a table of ``schema`` to one file, a row group for each that has rows.

    The file appears at ``uri`` once the block ends without an error. Equal tables give equal bytes.
    """
    with (
        new_file(uri) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):

        def write(table: pa.Table) -> None:
            if len(table):
                writer.write_table(table.cast(schema).combine_chunks())

        yield write


def read_groups(uri: str) -> Iterator[pa.Table]:
    """Yield the row groups of a Parquet file, one in memory at a time. Raises as ``read_columns``."""
    with _open_parquet(uri) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group)


def read_in_order(uris: Sequence[str], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the named columns (none = all) of many Parquet files in order; a few are read ahead."""
    waiting: deque[Future[pa.Table]] = deque()
    with ThreadPoolExecutor(_FILES_AHEAD) as pool:
        for uri in uris:
            if len(waiting) == _FILES_AHEAD:
                yield waiting.popleft().result()
            waiting.append(pool.submit(read_columns, uri, columns))
        while waiting:
            yield waiting.popleft().result()


def count_caption_words(captions: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return each caption's number of words, split at Unicode white space; null where there is none."""
    return pc.list_value_length(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(captions)))


def find_rows(uri: str, column: str, value: str) -> list[int]:
    """Return the places of the rows of a Parquet file whose ``column`` has the value."""
    return pc.indices_nonzero(pc.equal(read_columns(uri, [column])[column], value)).to_pylist()


def read_columns(uri: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the named columns (none = all) of a Parquet file, in file order of its rows.

    Raises UserError where the file is damaged or lacks a column, and OSError where there is no such file.
    """
    with _open_parquet(uri) as file:
        _check_columns(uri, file, columns or ())
        table = file.read(columns=None if columns is None else list(columns))
    return table if columns is None else table.select(list(columns))


def read_rows(uri: str, columns: Sequence[str], row_N: np.ndarray) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file at the places ``row_N``, ascending, in a table for each row group.

    Row groups without such a row are not read. Raises as ``read_columns``.
    """
    with _open_parquet(uri) as file:
        _check_columns(uri, file, columns)
        start = 0
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            low, high = np.searchsorted(row_N, [start, end])
            if low < high:
                yield file.read_row_group(group, columns=list(columns)).take(row_N[low:high] - start)
            start = end


def count_rows(uri: str) -> int:
    """Return how many rows a Parquet file has. Raises as ``read_columns``."""
    with _open_parquet(uri) as file:
        return file.metadata.num_rows


def read_schema(uri: str) -> pa.Schema:
    """Return a Parquet file's columns and types. Raises as ``read_columns``."""
    with _open_parquet(uri) as file:
        return file.schema_arrow


def read_matching(uri: str, columns: Sequence[str], column: str, value: str) -> pa.Table:
    """Return the rows whose ``column`` is ``value``; row groups without it are not read.

    Raises as ``read_columns``.
    """
    filesystem, path = resolve(uri)
    with _open_parquet(uri) as file:
        _check_columns(uri, file, [*columns, column])
        filters = [(column, "==", value)]
        more: dict[str, Any] = {"filesystem": filesystem, "page_checksum_verification": True}
        return pq.read_table(path, columns=list(columns), filters=filters, **more)


def _check_columns(uri: str, file: pq.ParquetFile, columns: Sequence[str]) -> None:
    missing = set(columns) - set(file.schema_arrow.names)
    if missing:
        raise UserError(f"{uri}: has no column {', '.join(sorted(missing))}")


@contextmanager
def _open_parquet(uri: str) -> Iterator[pq.ParquetFile]:
    """Open a file; Arrow's own errors and OSError for damaged files become one line for the user.

    A ``ResultFile`` must have the footer that its run wrote. Pages that raycomp wrote have checksums.
    """
    filesystem, path = resolve_file(uri)
    with filesystem.open_input_file(path) as source:
        try:
            known, metadata = getattr(uri, "footer", None), None
            if known is not None:  # usually in the one read that Arrow would use
                size = source.size()
                tail = source.read_at(min(size, _FOOTER_BYTES), max(0, size - _FOOTER_BYTES))
                length = int.from_bytes(tail[-8:-4], "little")
                if len(tail) < length + 8 <= size:
                    tail = source.read_at(length + 8, size - length - 8)
                if len(tail) < length + 8 or hashlib.sha256(tail[-8 - length : -8]).hexdigest() != known:
                    raise UserError(f"{uri}: was changed; it is not the file that the run wrote")
                metadata = pq.read_metadata(pa.BufferReader(tail[-4:] + tail[-8 - length :]))
            yield pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError):
                if may_succeed_later(error):
                    raise
                source.seek(0)  # where the storage returns all bytes, the fault is in the bytes
                while source.read(_PIECE_BYTES):
                    pass
            line = " ".join(str(error).split())[:200]
            raise UserError(f"{uri}: is damaged or no Parquet file ({line})") from error
