"""Parquet tables on disk: equal tables give equal bytes, independent of how they were assembled."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycomp.config import UserError
from raycomp.data.files import new_file
from raycomp.data.paths import resolve, resolve_file
from raycomp.data.written import hash_footer
from raycomp.words import SHARD, STATUS

ROW_GROUP_ROWS = 16_384
_FILES_AHEAD = 8
_PIECE_BYTES = 8 << 20
# Bytes of a file's end, as Arrow reads it first.
_FOOTER_BYTES = 64 << 10


def write_table(table: pa.Table, uri: str, schema: pa.Schema) -> None:
    """Write ``table`` to ``uri`` as Parquet of ``schema``, whole or not at all.

    The bytes depend on the values and ``schema`` alone (and on Arrow's version, which it writes down): chunks
    are joined, row groups have a fixed size, all metadata except the types is dropped.
    Raises ValueError where the table's columns are not those of ``schema``, in its order.
    """
    if table.column_names != schema.names:
        raise ValueError(f"{uri}: the columns are {table.column_names}, must be {schema.names}")
    table = table.cast(schema).replace_schema_metadata(None).combine_chunks()
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
    left = iter(uris)
    with ThreadPoolExecutor(_FILES_AHEAD) as pool:
        for _ in uris:
            for uri in islice(left, _FILES_AHEAD - len(waiting)):
                waiting.append(pool.submit(read_columns, uri, columns))
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
        return pq.read_table(
            path,
            columns=list(columns),
            filesystem=filesystem,
            filters=filters,
            page_checksum_verification=True,
        )


def _check_columns(uri: str, file: pq.ParquetFile, columns: Sequence[str]) -> None:
    missing = set(columns) - set(file.schema_arrow.names)
    if missing:
        raise UserError(f"{uri}: has no column {', '.join(sorted(missing))}")


@contextmanager
def _open_parquet(uri: str) -> Iterator[pq.ParquetFile]:
    """Open a file; Arrow's own errors and OSError for damaged files become one line for the user.

    A ``Result`` must have the footer that its run wrote. Pages that raycomp wrote have checksums.
    """
    filesystem, path = resolve_file(uri)
    with filesystem.open_input_file(path) as source:
        try:
            known = getattr(uri, "footer", None)
            metadata = None if known is None else _read_footer(uri, source, known)
            yield pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and not _can_be_read(source):
                raise
            line = " ".join(str(error).split())[:200]
            raise UserError(f"{uri}: is damaged or no Parquet file ({line})") from error


def _read_footer(uri: str, source: pa.NativeFile, known: str) -> pq.FileMetaData:
    """Return the metadata of a file, usually in the one read that Arrow would use.

    Raises UserError unless the SHA-256 of its footer is ``known``.
    """
    size = source.size()
    tail = source.read_at(min(size, _FOOTER_BYTES), max(0, size - _FOOTER_BYTES))
    length = int.from_bytes(tail[-8:-4], "little")
    if len(tail) < length + 8 <= size:
        tail = source.read_at(length + 8, size - length - 8)
    if len(tail) < length + 8 or hash_footer(tail[-8 - length : -8]) != known:
        raise UserError(f"{uri}: was changed; it is not the file that the run wrote")
    return pq.read_metadata(pa.BufferReader(tail[-4:] + tail[-8 - length :]))


def _can_be_read(source: pa.NativeFile) -> bool:
    """Whether the storage returns all bytes of a file; the fault is then in the bytes."""
    try:
        source.seek(0)
        while source.read(_PIECE_BYTES):
            pass
    except OSError:
        return False
    return True
