"""Paths and uris: the file system of each, and the name of an input shard."""

import dataclasses
import os
import posixpath
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyarrow import fs

from raycomp.config.shared import ColumnsConfig
from raycomp.data.stores import open_store, split_uri
from raycomp.table import group_by

# A run's record, in its folder.
RUN = "run.json"
REPORT = "report.html"
LEASE = "lease.json"
# The subset that a curation or selection chose.
KEPT_FILE = "subset/kept.parquet"
# Files that only an unfinished run needs.
WORK = "work"
# The model that a training writes: its folder, its weights, and open_clip's config of it.
CHECKPOINT, WEIGHTS, ARCHITECTURE = "checkpoint", "model.safetensors", "model.json"

# Number of files whose info is requested one by one; a folder with more of them is listed.
_ASKED_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class ShardPath:
    """One input shard.

    ``name`` is its path relative to the root of its input, prefixed ``NAME=`` where there are several inputs
    or the input was given a name. It does not depend on the root's place, so that a corpus keeps its uids
    when it moves. ``ordinal`` is its place among all shards sorted by ``name``. ``format`` is tar,
    parquet, list (CSV, TSV, json) or folder.
    ``embeddings`` is the npy or npz file that holds the image embeddings of its rows, None where they are to
    be computed; ``array`` is the array's name in an npz.
    """

    ordinal: int
    uri: str
    name: str
    format: str
    embeddings: str | None = None
    array: str | None = None
    columns: ColumnsConfig = dataclasses.field(default_factory=ColumnsConfig)
    """How a table is read."""
    members: tuple[str, ...] = ()
    """Names of the images of a shard that is a part of the folder ``uri``; empty for a file."""
    texts: tuple[str, ...] = ()
    """Names of the members' texts and json files."""
    base: str | None = None
    """What uids are made of instead of ``name``, which for a part of a folder depends on the other files."""

    @property
    def place(self) -> str:
        """The uri, with the first image where the shard is a part of a folder: no two shards share it."""
        return f"{self.uri}#{self.members[0]}" if self.members else self.uri


def resolve(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path, a ``file://`` uri or one of a store, and the path inside it.

    Raises ValueError as ``open_store`` does, and where it is not UTF-8.
    """
    try:
        uri.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{os.fsencode(uri)!r}: names must be UTF-8; rename it") from error
    scheme, path = split_uri(uri)
    if not scheme:
        return fs.LocalFileSystem(), _absolute(path)
    return open_store(scheme, path), path.rstrip("/")


def resolve_file(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the result of ``resolve``, for a file that is about to be read.

    Raises ValueError where a disk has something else there: opening a pipe would wait forever.
    """
    filesystem, path = resolve(uri)
    if isinstance(filesystem, fs.LocalFileSystem) and os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(
            f"{uri}: is a {'folder' if os.path.isdir(path) else 'pipe or device'}, must be a file"
        )
    return filesystem, path


def absolute_uri(uri: str) -> str:
    """Return a path made absolute, one with ``file://`` too; any other uri unchanged.

    Workers have other working folders than the driver. Raises ValueError for an empty text, which would mean
    the working folder.
    """
    if not uri:
        raise ValueError("a folder's name is empty; name one, as in --out out/mine")
    path = strip_slash(uri.removeprefix("file://"))
    return path if "://" in path else _absolute(path)


def strip_slash(uri: str) -> str:
    """Return the uri of a folder without a trailing slash, so that it has one name."""
    return uri if uri.endswith("://") else uri.rstrip("/") or "/"


def _absolute(path: str) -> str:
    """Return a whole path. ``link/..`` is the parent of the link's target, as everywhere else."""
    parts = path.split("/")
    if ".." not in parts:
        return os.path.abspath(path)
    end = len(parts) - parts[::-1].index("..")
    return os.path.abspath(os.path.join(os.path.realpath("/".join(parts[:end])), *parts[end:]))


def join_uri(folder: str, *names: str) -> str:
    """Return the path or uri of something inside ``folder``."""
    return posixpath.join(folder, *names)


def fingerprint_shards(shards: list[ShardPath]) -> list[dict[str, str | int]]:
    """Return name and size in bytes of every shard, in order, and the size of its stored embeddings.

    A copy has the same fingerprint, independent of times and place; a different content of the same size is
    detected where samples are read. Raises ValueError where a file is missing.
    """
    described = describe_shards(shards)
    return [{name: value for name, value in one.items() if name != "times"} for one in described]


def describe_shards(shards: list[ShardPath]) -> list[dict[str, Any]]:
    """Return name, size and times of every shard's files, in order; see ``fingerprint_shards``."""
    found = read_infos(_list_files(shards))
    missing = next((uri for uri, info in found.items() if info.type != fs.FileType.File), None)
    if missing is not None:
        raise ValueError(f"input={missing!r}: no such file")
    return [
        {
            "name": shard.name,
            "size": sum(found[uri].size for uri in _name_files(shard)),
            **({} if shard.embeddings is None else {"embeddings_size": found[shard.embeddings].size}),
            "times": [_read_time(uri, found[uri]) for uri in _list_files([shard])],
        }
        for shard in shards
    ]


def list_times(shards: Iterable[ShardPath], uris: Iterable[str] = ()) -> list[int | None]:
    """Return when the files of shards, and others, were last modified, in ns; None where one is missing.

    An object's time is cut to seconds: a list may report more digits than a HEAD.
    """
    return [_read_time(uri, info) for uri, info in read_infos([*_list_files(shards), *uris]).items()]


def _list_files(shards: Iterable[ShardPath]) -> list[str]:
    return [uri for shard in shards for uri in (*_name_files(shard), shard.embeddings) if uri is not None]


def _name_files(shard: ShardPath) -> list[str]:
    """Return the shard's file, or the images and texts of a part of a folder."""
    return [join_uri(shard.uri, name) for name in (*shard.members, *shard.texts)] or [shard.uri]


def size_files(uris: Iterable[str]) -> list[tuple[str, int | None]]:
    """Return every file with its size in bytes, None where it is missing."""
    return [(uri, info.size) for uri, info in read_infos(uris).items()]


def count_bytes(shards: Iterable[ShardPath]) -> int:
    """Return the total size of shards in bytes; a missing shard counts as 0."""
    return sum(size or 0 for _, size in size_files(uri for shard in shards for uri in _name_files(shard)))


def read_stamp(uri: str) -> tuple[int | None, int | None]:
    """Return size and time of a file: what is kept of it in memory is read again once they change."""
    info = _ask(uri)
    return info.size, info.mtime_ns


def read_infos(uris: Iterable[str]) -> dict[str, fs.FileInfo]:
    """Return the storage's info on files, in their order.

    A store's folder with many of them is listed, which is one request for a thousand files there.
    """
    wanted = list(dict.fromkeys(uris))
    by_folder = group_by(wanted, posixpath.dirname)
    found: dict[str, fs.FileInfo] = {}
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        for folder, files in by_folder.items():
            there: dict[str, fs.FileInfo] = {}
            if "://" in folder and len(files) > _ASKED_AT_ONCE:
                filesystem, path = resolve(folder)
                infos = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
                there = {join_uri(folder, info.base_name): info for info in infos}
            left = [file for file in files if file not in there]
            found |= there | dict(zip(left, pool.map(_ask, left), strict=True))
    return {uri: found[uri] for uri in wanted}


def _ask(uri: str) -> fs.FileInfo:
    filesystem, path = resolve(uri)
    return filesystem.get_file_info(path)


def _read_time(uri: str, info: fs.FileInfo) -> int | None:
    is_exact = "://" not in uri or info.mtime_ns is None
    return info.mtime_ns if is_exact else info.mtime_ns // 10**9 * 10**9
