"""Stores: how each is opened, how requests are repeated, how files are written whole.

There are three layers; an outer layer acts after the inner ones failed. A store's client repeats a request,
which covers all faults that pass within seconds, on workers and on the driver alike. A reader opens its file
anew, which also covers a disk or mount, whose errors have no other retry. Ray repeats a task, which also
covers a lost worker. With a storage that stays down the driver gives up after about half a minute, a task
after at most five.

``s3://`` and ``gs://`` use Arrow. ``az://`` is read through Arrow and written through adlfs, because Arrow
shows an empty file while it uploads. ``hf://`` is read through huggingface_hub, and never written. Creating a
file only if it is absent takes a conditional request, which fsspec supports and Arrow does not.

Paths and uris: the file system of each, and the name of an input shard."""

import dataclasses
import os
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
from pyarrow import fs

from raycomp.config.shared import ColumnsConfig
from raycomp.table import group_by

Item = TypeVar("Item")

# 25 ms, doubled each time: 26 s in all. At a failure rate of one in five, one request in 5e7 is lost.
_S3_RETRIES = 10
# A server without traffic for this long has lost the request. The client's own 3 s would repeat requests that
# a loaded server only answers late, for example while it assembles the parts of a large object.
_S3_SILENCE_S = 10.0
# The client's own 1 s fails after one lost packet; a connection that takes longer than this will not come.
_S3_CONNECT_S = 5.0
# The same number of seconds for Google as for S3. Arrow has no such option for Azure: about 5 s; adlfs takes
# a minute.
_GCS_RETRY_S = 26.0

# Two more attempts: an error arrives here only after the storage's own retries failed.
READ_ATTEMPTS = 3
# Doubled before the last attempt: a hung disk or mount is back within some seconds.
READ_PAUSE_S = 5.0

# Waiting does not fix these.
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)

# Ray's name for the number of times that a dataset's stage is repeated after one of STORAGE_ERRORS; a lost
# worker is not counted here. Low, as each attempt already has retries.
MAP_RETRIES = 2
# Messages of Arrow (by store) and botocore for a failed storage request that may succeed the next time.
STORAGE_ERRORS = (
    "AWS Error",
    "google::cloud::Status",
    "Azure Error",
    "NETWORK_CONNECTION",
    "SLOW_DOWN",
    "SlowDown",
    "Connection reset",
    "timed out",
)
# For a task over one file. Lost workers count here too, and spot machines are lost one after the other.
TASK_RETRIES = {"max_retries": 5, "retry_exceptions": [OSError]}
S3, GCS, AZURE, HUB = "s3", "gs", "az", "hf"
SCHEMES = (S3, GCS, AZURE, HUB)
READ_ONLY = (HUB,)
_ALIASES = {"gcs": GCS, "abfs": AZURE}
_AZURE_BLOCK_BYTES = 8 << 20
# Query parameters of a signed address.
_SIGNATURE = re.compile(r"[?&](?:sig|[xX]-\w+-[sS]ignature)=")
_ENVIRONMENT = {
    S3: ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"),
    GCS: ("STORAGE_EMULATOR_HOST",),
    AZURE: (
        "AZURE_STORAGE_CONNECTION_STRING",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
    ),
    HUB: ("HF_TOKEN",),
}


def read_again(
    read: Callable[[Item], Iterator[pa.Table]], item: Item, first_pause_s: float = READ_PAUSE_S
) -> Iterator[pa.Table]:
    """Yield the tables of ``read(item)``; after an OSError read again, skipping the yielded tables."""
    num_yielded = 0
    for attempt in range(READ_ATTEMPTS):
        try:
            for i, table in enumerate(read(item)):
                if i >= num_yielded:
                    num_yielded += 1
                    yield table
            return
        except _FINAL:
            raise
        except OSError:
            if attempt == READ_ATTEMPTS - 1:
                raise
            time.sleep(first_pause_s * 2**attempt)


def split_uri(uri: str) -> tuple[str, str]:
    """Return the scheme of a uri, by its first name, and the rest; "" and the whole for a path.

    A path may also be a ``file://`` uri.
    """
    scheme, separator, path = uri.partition("://")
    if not separator:
        return "", uri
    return ("", path) if scheme == "file" else (_ALIASES.get(scheme, scheme), path)


def open_store(scheme: str, path: str) -> fs.FileSystem:
    """Return the file system of a store, given the path within it that is needed.

    Credentials, regions and endpoints come from the usual environment variables: ``AWS_*``; Google's
    application default credentials; ``AZURE_STORAGE_*`` or Azure's default chain; ``HF_TOKEN``. Raises
    ValueError for another scheme, for a uri that carries credentials, and where a package or the account's
    name is missing.
    """
    if scheme not in SCHEMES:
        named = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"{scheme}:// uri: must be a path, file:// or one of {named}")
    bucket = path.partition("/")[0]
    if not bucket or "@" in bucket or _SIGNATURE.search(path):
        said = "must begin with a bucket; credentials come from the environment only"
        raise ValueError(f"{scheme}:// uri: {said}")
    names = _ENVIRONMENT[scheme]
    found = tuple(os.environ.get(name) or None for name in names)
    return _OPEN[scheme](bucket, *found) if scheme == S3 else _OPEN[scheme](*found)


@lru_cache(maxsize=64)
def _open_s3(bucket: str, *found: str | None) -> fs.S3FileSystem:
    endpoint, region = found[0] or found[1], found[2] or found[3]
    options = {
        # An object of less than 10 MB is then uploaded in one request, not three. An interrupted upload
        # leaves no parts that cost money. A missing bucket is detected when the file is closed.
        "allow_delayed_open": True,
        # The standard strategy, pyarrow's default, has a quota of 100 retries for the life of a file system.
        # Arrow never reports a success to it, so the quota is never refilled; a long run fails in the end.
        "retry_strategy": fs.AwsDefaultS3RetryStrategy(max_attempts=_S3_RETRIES),
        "request_timeout": _S3_SILENCE_S,
        "connect_timeout": _S3_CONNECT_S,
    }
    if not endpoint:
        return fs.S3FileSystem(region=region or fs.resolve_s3_region(bucket), **options)
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    region = region or "us-east-1"
    return fs.S3FileSystem(endpoint_override=parts.netloc, scheme=parts.scheme, region=region, **options)


@lru_cache(maxsize=1)
def _open_gcs(emulator: str | None) -> fs.FileSystem:
    options: dict[str, Any] = {"retry_time_limit": timedelta(seconds=_GCS_RETRY_S)}
    if emulator:
        parts = urlsplit(emulator if "://" in emulator else f"http://{emulator}")
        options |= {"anonymous": True, "endpoint_override": parts.netloc, "scheme": parts.scheme}
    with _needing("pyarrow with Google Cloud Storage", GCS):
        return fs.GcsFileSystem(**options)


@lru_cache(maxsize=1)
def _open_azure(connection: str | None, *found: str | None) -> fs.FileSystem:
    account, key, token = found
    named = dict(part.partition("=")[::2] for part in (connection or "").split(";"))
    account = named.get("AccountName") or account
    if account is None:
        raise ValueError(
            "az:// uri: names no account; set AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING"
        )
    options: dict[str, Any] = {"account_key": named.get("AccountKey") or key}
    if options["account_key"] is None:
        options["sas_token"] = token
    if endpoint := named.get("BlobEndpoint"):
        parts = urlsplit(endpoint)
        place = parts.netloc.removeprefix(account)  # Arrow puts the account before a leading dot
        for kind in ("blob", "dfs"):
            options |= {f"{kind}_storage_authority": place, f"{kind}_storage_scheme": parts.scheme}
    with _needing("pyarrow with Azure", AZURE):
        return fs.AzureFileSystem(account, **options)


@lru_cache(maxsize=1)
def _open_hub(token: str | None) -> fs.FileSystem:
    return fs.PyFileSystem(_Hub(fsspec.filesystem(HUB, token=token)))


class _Hub(fs.FSSpecHandler):
    """The model hub's files. Its errors are raised as OSError, as by Arrow's own stores."""

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        with as_oserror():
            return super().get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        with as_oserror():
            return super().get_file_info_selector(selector)

    def open_input_file(self, path: str) -> pa.NativeFile:
        with as_oserror():
            return pa.PythonFile(_HubFile(self.fs.open(path, "rb")), mode="r")

    open_input_stream = open_input_file


class _HubFile:
    """A file of the hub; a failed read raises the same errors as other files."""

    def __init__(self, file: Any):
        self.file = file

    def read(self, size: int = -1) -> bytes:
        with as_oserror():
            return self.file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


_OPEN: dict[str, Any] = {S3: _open_s3, GCS: _open_gcs, AZURE: _open_azure, HUB: _open_hub}


def create_object(scheme: str, path: str, data: bytes) -> None:
    """Write a whole file where none exists; raises FileExistsError where one does.

    Of several concurrent writers one succeeds: by ``If-None-Match`` on S3 and Azure, by ``ifGenerationMatch``
    on Google's. A server that does not support these overwrites the existing file.
    """
    with as_oserror():
        _find_writer(scheme).pipe_file(path, data, mode="create")


def open_output(scheme: str, filesystem: fs.FileSystem, path: str) -> Any:
    """Open an object for writing: it appears, or changes, when it is closed."""
    if scheme != AZURE:
        return filesystem.open_output_stream(path)
    return _find_writer(scheme).open(path, "wb", block_size=_AZURE_BLOCK_BYTES)


def _find_writer(scheme: str) -> Any:
    """Return fsspec's file system of a store; raises ValueError where its package is missing."""
    if scheme == S3:
        return fsspec.filesystem("s3")
    if scheme == AZURE:
        with _needing("adlfs", AZURE):
            return fsspec.filesystem("az")
    with _needing("gcsfs", GCS):
        # Its default class requests every bucket's kind first, by gRPC, which no emulator supports.
        from gcsfs.core import GCSFileSystem
    return GCSFileSystem(token="anon" if os.environ.get("STORAGE_EMULATOR_HOST") else None)


@contextmanager
def _needing(package: str, scheme: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError) as error:
        said = f"needs {package}; install it: pip install {package.split()[0]}"
        raise ValueError(f"{scheme}://: {said}") from error


@contextmanager
def as_oserror() -> Iterator[None]:
    """Raise errors of a store's own library as OSError, in one line."""
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:  # each library has types of its own: azure.core's, google.auth's, httpx'
        line = str(error).partition("\n")[0][:200]
        raise OSError(f"{type(error).__name__}: {line}") from error


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
