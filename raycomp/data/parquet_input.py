"""Parquet as input: images or image paths with captions, and stored embeddings read with its rows.

Nothing is unpickled. Rows are read block by block, for an npz from its one member, so that memory holds one
block at most. N rows, D dimensions.
"""

import io
import posixpath
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.lib import format as npy
from pyarrow import fs, types

from raycomp import words
from raycomp.config import UserError
from raycomp.data import samples
from raycomp.data.files import resolve
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import to_fixed_lists
from raycomp.data.samples import CAPTION_COLUMNS, IMAGE_COLUMNS, find_column, make_members, open_image

# Of each list the first column that a file has is used. An image column holds bytes, text (a path) or
# Hugging Face's struct of bytes and path.

_UNDECODABLE = b"\xff"
# What Arrow raises on values that Python cannot represent: text that is not UTF-8, times out of range or of
# an unknown zone, structs with two fields of one name.
_UNSPEAKABLE = (ValueError, ArithmeticError, LookupError, TypeError, NotImplementedError, pa.ArrowException)
_EXTRACT_ROWS = 64
_CHECKS_AT_ONCE = 16
# Bytes requested from the storage at once, to read a header and to read all rows.
_HEADER_BYTES = 64 << 10
_ROWS_BYTES = 8 << 20
# What zipfile and numpy raise on damaged bytes.
_BROKEN = (ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error, struct.error)


class Watched:
    """A file that records whether it failed: Arrow raises OSError for damaged data too."""

    def __init__(self, file: Any):
        self.file = file
        self.failed = False

    def read(self, size: int = -1) -> bytes:
        try:
            return self.file.read(size)
        except OSError:
            self.failed = True
            raise

    def close(self) -> None:
        """Does not close the file."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def read_table(file: Any, shard: ShardPath, block_rows: int, filesystem: fs.FileSystem) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file as tables of SAMPLE_SCHEMA, holding a block and a page at a time.

    ``file`` is seekable. Images are bytes (IMAGE_COLUMNS) or paths on ``filesystem``. A path must resolve,
    links followed, to a regular file below the folder of the Parquet file; beyond MAX_MEMBER_BYTES it is
    image_too_large. Of a list of captions the first text is used, of a list of images the only
    one. A value that Python cannot represent makes its row bad_json.
    Where the shard has stored embeddings no image is read, and a missing image does not count as a fault.
    The key is the column ``key``, else the row's number in nine digits, with ``row-`` before it where other
    rows have keys of their own. ``uid`` and ``url`` or ``URL`` are used where these columns exist. ``json``
    holds every column except the image, with times in UTC and null for values that json cannot represent. A
    file that is not Parquet gives one unreadable_shard row, one that is damaged inside a truncated_shard row
    after the rows before the damage. Errors of the file system pass through.
    """
    batches = _batches(file, block_rows, None)
    found = (row for start, batch in batches for row in _read_batch(batch, start, shard, filesystem))
    return samples.cut_blocks(found, shard, block_rows)


def extract_table(
    file: Any, shard: ShardPath, positions: Collection[int], filesystem: fs.FileSystem
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Yield (position, {extension: bytes}) of the rows at ``positions``: image, txt and json members.

    Reads only the row groups that hold one. The image's extension follows from its first bytes, else jpg.
    """
    wanted = set(positions)
    try:
        for start, batch in _batches(file, _EXTRACT_ROWS, wanted):
            for i in (i for i in range(len(batch)) if start + i in wanted):
                row = next(_read_batch(batch.slice(i, 1), start + i, shard, filesystem))
                yield start + i, make_members(row)
    except samples.BrokenShard:
        return


def _batches(file: Any, num_rows: int, wanted: set[int] | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (position of the first row, batch), only for row groups with a wanted position (None = all)."""
    watched = Watched(file)
    status = words.UNREADABLE_SHARD
    try:
        parquet = pq.ParquetFile(pa.PythonFile(watched, "r"), pre_buffer=False, buffer_size=1 << 20)
        _ = parquet.schema_arrow.names  # raises where a name is not UTF-8
        status = words.TRUNCATED_SHARD
        end = 0
        for group in range(parquet.num_row_groups):
            facts = parquet.metadata.row_group(group)
            start, end = end, end + facts.num_rows
            if wanted is not None and not any(start <= position < end for position in wanted):
                continue
            # A row takes its share of the group. A value from a dictionary, which is stored once however
            # often it occurs, may take up to all of its column.
            chunks = [facts.column(i) for i in range(facts.num_columns)]
            share = sum(chunk.total_uncompressed_size for chunk in chunks) // max(1, facts.num_rows)
            largest = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.has_dictionary_page)
            most = min(num_rows, max(1, samples.BLOCK_BYTES // max(1, share, largest)))
            for batch in parquet.iter_batches(most, row_groups=[group], use_threads=False):
                yield start, batch
                start += len(batch)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if watched.failed or isinstance(error, MemoryError):
            raise
        raise samples.BrokenShard(status) from error


def _read_batch(
    batch: pa.RecordBatch, start: int, shard: ShardPath, filesystem: fs.FileSystem
) -> Iterator[samples.SampleRow]:
    names = batch.schema.names
    images = None if shard.embeddings else find_column(names, shard.columns.image, IMAGE_COLUMNS)
    captions = find_column(names, shard.columns.caption, CAPTION_COLUMNS)
    folder = posixpath.dirname(resolve(shard.uri)[1])
    columns = {name: _values(batch.column(i)) for i, name in enumerate(names) if name != images}
    for i in range(len(batch)):
        fields = {name: values[i] for name, values in columns.items()}
        # One image at a time: in Python it takes as much memory again as in Arrow.
        value = None if images is None else _values(batch.column(names.index(images)).slice(i, 1))[0]
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(value, dict):
            value = value.get("path") if value.get("bytes") is None else value["bytes"]
        is_image = isinstance(value, bytes) and value is not _UNDECODABLE
        image: bytes | str | None = value if is_image else None
        if isinstance(value, str) and value:
            image = open_image(filesystem, folder, value, shard.columns.root)
        bad_json = any(value is _UNDECODABLE for value in fields.values())
        found = fields.get(captions)
        if shard.columns.captions == "longest" and isinstance(found, list):
            found = samples.find_longest(found)
        key = fields.get("key")
        if isinstance(key, float) and key.is_integer():  # which pandas makes of integers next to nulls
            key = int(key)
        key = str(key) if isinstance(key, int) else samples.decode_text(key)
        key = key or f"{'row-' if 'key' in fields else ''}{start + i:09d}"
        yield samples.make_row(shard, key, fields, samples.first_text(found), image, bad_json)


def _values(column: pa.Array) -> list[Any]:
    """Return Python values; those Python lacks become _UNDECODABLE, types json lacks become text."""
    kind = column.type
    try:
        if types.is_timestamp(kind):
            column = column.cast(pa.timestamp(kind.unit))  # UTC; a damaged time zone has no name to look up
        if types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind):
            column = column.cast(pa.string())
        return column.to_pylist()
    except _UNSPEAKABLE:
        if len(column) == 1:
            return [_UNDECODABLE]
        return [value for i in range(len(column)) for value in _values(column.slice(i, 1))]


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
    with ThreadPoolExecutor(_CHECKS_AT_ONCE) as pool:
        some = stored[:: -(-len(stored) // _CHECKS_AT_ONCE) or 1]
        list(pool.map(partial(check_stored, model=model, width=width), some))


def check_stored(shard: ShardPath, model: str, width: int) -> None:
    """Check one shard. A Parquet file without a footer is left to its reader. Raises UserError."""
    filesystem, path = resolve(shard.uri)
    try:
        with _open_array(shard, _HEADER_BYTES) as array:
            pass
        with filesystem.open_input_file(path) as file:
            watched = Watched(file)
            try:
                num_rows = pq.read_metadata(pa.PythonFile(watched, "r")).num_rows
            except (pa.ArrowException, OSError):
                if watched.failed:
                    raise
                num_rows = array.num_rows
    except OSError as error:
        line = " ".join(str(error).split())
        raise UserError(f"{shard.uri} or {shard.embeddings}: cannot be read: {line}") from error
    if array.width != width:
        said = f"its embeddings have {width} values, those in {shard.embeddings} {array.width}"
        raise UserError(f"scorer.model={model!r}: {said}; name the model that made them")
    if num_rows != array.num_rows:
        said = f"has {num_rows} rows, {shard.embeddings} {array.num_rows}; must be as many"
        raise UserError(f"input={shard.uri!r}: {said}")


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
            yield table.append_column(words.IMAGE_EMBEDDING, to_fixed_lists(embedding_ND))


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
                names = [one.removesuffix(".npy") for one in archive.namelist() if one.endswith(".npy")]
                if shard.array not in names:
                    named = ", ".join(names) or "none"
                    raise ValueError(f"holds no array {shard.array!r}, its arrays are {named}")
                file = stack.enter_context(archive.open(f"{shard.array}.npy"))
                num_bytes = archive.getinfo(f"{shard.array}.npy").file_size
            # N rows of D floats, of ``num_bytes`` in all.
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
        except _BROKEN as error:
            said = f"{shard.embeddings} cannot be used: {error}"
            raise UserError(f"prepare.stored_embeddings: {said}") from error
        yield _Array(file, *shape, dtype)
