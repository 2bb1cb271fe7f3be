"""Stores: how each is opened, how requests are repeated, how objects are written.

There are three layers; an outer layer acts after the inner ones failed. A store's client repeats a request,
which covers all faults that pass within seconds, on workers and on the driver alike. A reader opens its file
anew, which also covers a disk or mount, whose errors have no other retry. Ray repeats a task, which also
covers a lost worker. With a storage that stays down the driver gives up after about half a minute, a task
after at most five.

``s3://`` and ``gs://`` use Arrow. ``az://`` is read through Arrow and written through adlfs, because Arrow
shows an empty file while it uploads. ``hf://`` is read through huggingface_hub, and never written. Creating a
file only if it is absent takes a conditional request, which fsspec supports and Arrow does not.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
from pyarrow import fs

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


def may_succeed_later(error: BaseException) -> bool:
    """Whether it is one of ``STORAGE_ERRORS``."""
    return any(said in str(error) for said in STORAGE_ERRORS)


# For a task over one file. Lost workers count here too, and spot machines are lost one after the other.
TASK_RETRIES = {"max_retries": 5, "retry_exceptions": [OSError]}
S3, GCS, AZURE, HUB = "s3", "gs", "az", "hf"
SCHEMES = (S3, GCS, AZURE, HUB)
READ_ONLY = (HUB,)
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
