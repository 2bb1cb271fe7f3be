"""Stored image embeddings: an array file next to a Parquet shard, checked, and read in step with its rows.

Nothing is unpickled. Rows are read block by block, for an npz from its one member, so that memory holds one
block at most. N rows, D dimensions.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.lib import format as npy
from pyarrow import fs

from raycomp.config import UserError
from raycomp.data.paths import ShardPath, resolve
from raycomp.data.table import Watched
from raycomp.words import IMAGE_EMBEDDING

_CHECKS_AT_ONCE = 16
# Bytes requested from the storage at once, to read a header and to read all rows.
_HEADER_BYTES = 64 << 10
_ROWS_BYTES = 8 << 20
# What zipfile and numpy raise on damaged bytes.
_BROKEN = (ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error, struct.error)


class _Array(NamedTuple):
    """An array whose ``file`` is positioned at its first row."""

    file: IO[bytes]
    num_rows: int
    width: int
    dtype: np.dtype


def check_embeddings(shards: Sequence[ShardPath], model: str, width: int) -> None:
    """Raise ValueError, one line, unless stored embeddings match the number of rows and the model's width.

    Only headers and footers are read, and only some of many shards, evenly spaced: ``check_stored`` checks
    each.
    """
    stored = [shard for shard in shards if shard.embeddings is not None]
    some = stored[:: -(-len(stored) // _CHECKS_AT_ONCE) or 1]
    with ThreadPoolExecutor(_CHECKS_AT_ONCE) as pool:
        list(pool.map(partial(check_stored, model=model, width=width), some))


def check_stored(shard: ShardPath, model: str, width: int) -> None:
    """Check one shard. A Parquet file without a footer is left to its reader. Raises UserError."""
    try:
        with _open_array(shard, _HEADER_BYTES) as array:
            pass
        num_rows = _count_rows(shard)
    except OSError as error:
        line = " ".join(str(error).split())
        raise UserError(f"{shard.uri} or {shard.embeddings}: cannot be read: {line}") from error
    if array.width != width:
        raise UserError(
            f"scorer.model={model!r}: its embeddings have {width} values, those in {shard.embeddings} "
            f"{array.width}; name the model that made them"
        )
    if num_rows not in (None, array.num_rows):
        raise UserError(
            f"input={shard.uri!r}: has {num_rows} rows, {shard.embeddings} {array.num_rows}; must be as many"
        )


def _count_rows(shard: ShardPath) -> int | None:
    """Return the footer's row count, None where the Parquet is damaged; OSError where the storage fails."""
    filesystem, path = resolve(shard.uri)
    with filesystem.open_input_file(path) as file:
        watched = Watched(file)
        try:
            return pq.read_metadata(pa.PythonFile(watched, "r")).num_rows
        except (pa.ArrowException, OSError):
            if watched.failed:
                raise
            return None


def add_embeddings(tables: Iterable[pa.Table], shard: ShardPath) -> Iterator[pa.Table]:
    """Yield a shard's tables with their rows' stored embeddings in fp32; NaN from where the array is damaged.

    Raises OSError where the storage fails.
    """
    with _open_array(shard, _ROWS_BYTES) as array:
        file, row_bytes = array.file, array.width * array.dtype.itemsize
        for table in tables:
            try:
                data = file.read(len(table) * row_bytes)
            except _BROKEN:
                file, data = io.BytesIO(), b""
            num_read = len(data) // row_bytes
            value_N = np.frombuffer(data[: num_read * row_bytes], array.dtype)
            embedding_ND = np.full((len(table), array.width), np.nan, np.float32)
            with np.errstate(over="ignore"):
                embedding_ND[:num_read] = value_N.reshape(num_read, array.width)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(embedding_ND.reshape(-1)), array.width)
            yield table.append_column(IMAGE_EMBEDDING, lists)


@contextmanager
def _open_array(shard: ShardPath, buffer_bytes: int) -> Iterator[_Array]:
    """Raises ValueError where there is no such array of floats."""
    assert shard.embeddings, "a shard whose embeddings are stored"
    filesystem, path = resolve(shard.embeddings)
    with ExitStack() as stack:
        try:
            if filesystem.get_file_info(path).type != fs.FileType.File:
                raise ValueError("no such file")
            source = stack.enter_context(filesystem.open_input_file(path))
            file: IO[bytes] = stack.enter_context(io.BufferedReader(source, buffer_bytes))
            num_bytes = source.size()
            if shard.array is not None:
                archive = stack.enter_context(zipfile.ZipFile(file))
                file, num_bytes = _open_member(archive, shard.array)
                stack.enter_context(file)
            array = _read_header(file, num_bytes)
        except _BROKEN as error:
            raise UserError(
                f"prepare.stored_embeddings: {shard.embeddings} cannot be used: {error}"
            ) from error
        yield array


def _open_member(archive: zipfile.ZipFile, name: str) -> tuple[IO[bytes], int]:
    """Return an array of an npz as a file, and its size."""
    names = [member.removesuffix(".npy") for member in archive.namelist() if member.endswith(".npy")]
    if name not in names:
        raise ValueError(f"holds no array {name!r}, its arrays are {', '.join(names) or 'none'}")
    return archive.open(f"{name}.npy"), archive.getinfo(f"{name}.npy").file_size


def _read_header(file: IO[bytes], num_bytes: int) -> _Array:
    """Return the array in an npy file of ``num_bytes``; raise ValueError unless it is N rows of D floats."""
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in read:
        raise ValueError(f"npy version {version} holds no plain floats")
    shape, is_by_column, dtype = read[version](file)
    if dtype.kind != "f" or len(shape) != 2 or shape[1] == 0 or is_by_column:
        order = ", stored by column" if is_by_column else ""
        raise ValueError(f"must be rows of floats, is {dtype} of shape {shape}{order}")
    due = file.tell() + shape[0] * shape[1] * dtype.itemsize
    if num_bytes < due:
        raise ValueError(f"is cut: has {num_bytes:,} of {due:,} bytes")
    return _Array(file, *shape, dtype)
