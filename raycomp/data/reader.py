"""Reads any input shard as rows, and the original members of chosen samples."""

from collections.abc import Collection, Iterator

import pyarrow as pa
from pyarrow import fs

from raycomp.data.embeddings import add_embeddings
from raycomp.data.image_inputs import FOLDER, LIST
from raycomp.data.listed import extract_listed, read_listed
from raycomp.data.paths import ShardPath, resolve
from raycomp.data.table import extract_table, read_table
from raycomp.data.tar import extract_tar, read_tar

# Bytes requested from the storage at once while a tar is streamed: requests to S3 cost time; on a disk memory
# beyond the processor's cache does.
_DISK_BUFFER_BYTES = 512 << 10
_S3_BUFFER_BYTES = 8 << 20


def read_shard(shard: ShardPath, block_rows: int) -> Iterator[pa.Table]:
    """Yield every sample of a shard, good or bad, as tables of SAMPLE_SCHEMA; see read_tar and read_table.

    Stored embeddings add a column ``image_embedding``; see add_embeddings. Repeated calls yield equal tables.
    Raises OSError where the storage fails.
    """
    if shard.format in (LIST, FOLDER):
        yield from read_listed(shard, block_rows)
        return
    filesystem, path = resolve(shard.uri)
    if shard.format == "tar":
        with _open_stream(filesystem, path) as stream:
            yield from read_tar(stream, shard, block_rows)
    else:
        with filesystem.open_input_file(path) as file:
            tables = read_table(file, shard, block_rows, filesystem)
            yield from tables if shard.embeddings is None else add_embeddings(tables, shard)


def extract(shard: ShardPath, positions: Collection[int]) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Yield (position, {extension: original bytes}) of the samples at ``positions``, in order of position.

    A sample of a Parquet shard gets the members it would have in a tar: image, txt, json.
    """
    if shard.format in (LIST, FOLDER):
        yield from extract_listed(shard, positions)
        return
    filesystem, path = resolve(shard.uri)
    if shard.format == "tar":
        with _open_stream(filesystem, path) as stream:
            yield from extract_tar(stream, positions)
    else:
        with filesystem.open_input_file(path) as file:
            yield from extract_table(file, shard, positions, filesystem)


def _open_stream(filesystem: fs.FileSystem, path: str) -> pa.NativeFile:
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    num_bytes = _DISK_BUFFER_BYTES if is_local else _S3_BUFFER_BYTES
    return filesystem.open_input_stream(path, buffer_size=num_bytes)
