"""Reads any input shard as rows, and the original members of chosen samples."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs

from raycomp.data.inputs import FOLDER, LIST
from raycomp.data.listed import extract_listed, read_listed
from raycomp.data.parquet import read_columns
from raycomp.data.parquet_input import add_embeddings, extract_table, read_table
from raycomp.data.samples import extract_tar, read_tar
from raycomp.data.stores import ShardPath, resolve
from raycomp.words import OFFSET

# Bytes requested from the storage at once while a tar is streamed: requests to S3 cost time; on a disk memory
# beyond the processor's cache does.
_DISK_BUFFER_BYTES = 512 << 10
_S3_BUFFER_BYTES = 8 << 20
_END_OF_TAR = bytes(1024)
Offsets = Sequence[int | None]
"""The column ``offset`` of a shard's rows."""


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
        with filesystem.open_input_stream(path, buffer_size=_buffer_bytes(filesystem)) as stream:
            yield from read_tar(stream, shard, block_rows)
    else:
        with filesystem.open_input_file(path) as file:
            tables = read_table(file, shard, block_rows, filesystem)
            yield from tables if shard.embeddings is None else add_embeddings(tables, shard)


def extract(
    shard: ShardPath, positions: Collection[int], offsets: Offsets | None = None
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Yield (position, {extension: original bytes}) of the samples at ``positions``, in order of position.

    A sample of a Parquet shard gets the members it would have in a tar: image, txt, json. Of a tar whose
    ``offsets`` are known only the bytes of these samples are read, and gaps that are cheaper to read than to
    pass over; a tar of which more than half is wanted is read from its start.
    """
    if shard.format in (LIST, FOLDER):
        yield from extract_listed(shard, positions)
        return
    filesystem, path = resolve(shard.uri)
    if shard.format == "tar" and offsets is not None:
        with filesystem.open_input_file(path) as file:
            yield from _extract_ranges(file, positions, offsets, _buffer_bytes(filesystem))
    elif shard.format == "tar":
        with filesystem.open_input_stream(path, buffer_size=_buffer_bytes(filesystem)) as stream:
            yield from extract_tar(stream, positions)
    else:
        with filesystem.open_input_file(path) as file:
            yield from extract_table(file, shard, positions, filesystem)


def read_offsets(scores: str) -> Offsets | None:
    """Return the offsets of a scores file's rows; None without a tar."""
    column = read_columns(scores, [OFFSET])[OFFSET]
    return column.to_pylist() if column.null_count < len(column) else None


def plan_ranges(
    positions: Collection[int], offsets: Offsets, gap_bytes: int
) -> list[tuple[int, int, int | None, list[int]]]:
    """Return the ranges of a tar with the samples at ``positions``: (first sample, start, end, positions).

    Samples are read together where less than ``gap_bytes`` lie between them. The last sample of a tar ends at
    its end (None). Whether it is whole may depend on the sample before it, which is read as well.
    """
    found: list[tuple[int, int, int | None, list[int]]] = []
    known = len(offsets) - sum(offset is None for offset in offsets)
    for position in sorted(position for position in positions if position < known):
        is_last = position == known - 1
        first = max(0, position - is_last)
        start, end = offsets[first], None if is_last else offsets[position + 1]
        assert start is not None, "samples come before the rows without offset"
        if found and found[-1][2] is not None and start - found[-1][2] < gap_bytes:
            found[-1][3].append(position)
            found[-1] = (*found[-1][:2], end, found[-1][3])
        else:
            found.append((first, start, end, [position]))
    return found


def _extract_ranges(
    file: pa.NativeFile, positions: Collection[int], offsets: Offsets, buffer_bytes: int
) -> Iterator[tuple[int, dict[str, bytes]]]:
    size = file.size()
    ranges = plan_ranges(positions, offsets, buffer_bytes // 2)
    lengths = [(size if end is None else min(end, size)) - start for _, start, end, _ in ranges]
    if sum(lengths) > size / 2:
        whole = pa.BufferedInputStream(file.get_stream(0, size), buffer_bytes)
        yield from extract_tar(whole, positions)
        return
    for (first, start, end, wanted), length in zip(ranges, lengths, strict=True):
        if length > 0:
            part = pa.BufferedInputStream(file.get_stream(start, length), min(buffer_bytes, length))
            yield from extract_tar(part if end is None else _Ended(part), wanted, first)


class _Ended:
    """A part of a tar that ends between two samples, followed by the end marker of a tar."""

    def __init__(self, part: Any):
        self.part, self.end = part, _END_OF_TAR

    def read(self, num_bytes: int) -> bytes:
        data = self.part.read(num_bytes)
        if len(data) < num_bytes:
            data, self.end = data + self.end[: num_bytes - len(data)], self.end[num_bytes - len(data) :]
        return data


def _buffer_bytes(filesystem: fs.FileSystem) -> int:
    return _DISK_BUFFER_BYTES if isinstance(filesystem, fs.LocalFileSystem) else _S3_BUFFER_BYTES
