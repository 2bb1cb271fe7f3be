"""Stores: how each is opened, and how files are written so that readers never see a part of one.

``s3://`` and ``gs://`` use Arrow. ``az://`` is read through Arrow and written through adlfs, because Arrow
shows an empty file while it uploads. ``hf://`` is read through huggingface_hub, and never written. Creating a
file only if it is absent takes a conditional request, which fsspec supports and Arrow does not.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
from pyarrow import fs

from raycomp.data.retries import gcs_patience, s3_patience

S3, GCS, AZURE, HUB = "s3", "gs", "az", "hf"
SCHEMES = (S3, GCS, AZURE, HUB)
READ_ONLY = (HUB,)
_ALIASES = {"gcs": GCS, "abfs": AZURE}
_AZURE_BLOCK_BYTES = 8 << 20
# Query parameters of a signed address.
_SIGNATURE = re.compile(r"[?&](?:sig|[xX]-\w+-[sS]ignature)=")


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
        raise ValueError(
            f"{scheme}:// uri: must begin with a bucket; credentials come from the environment only"
        )
    names = _ENVIRONMENT[scheme]
    found = tuple(os.environ.get(name) or None for name in names)
    return _OPEN[scheme](bucket, *found) if scheme == S3 else _OPEN[scheme](*found)


@lru_cache(maxsize=64)
def _open_s3(bucket: str, *found: str | None) -> fs.S3FileSystem:
    endpoint, region = found[0] or found[1], found[2] or found[3]
    # An object of less than 10 MB is then uploaded in one request, not three. An interrupted upload leaves no
    # parts that cost money. A missing bucket is detected when the file is closed.
    options = {"allow_delayed_open": True, **s3_patience()}
    if not endpoint:
        return fs.S3FileSystem(region=region or fs.resolve_s3_region(bucket), **options)
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    region = region or "us-east-1"
    return fs.S3FileSystem(endpoint_override=parts.netloc, scheme=parts.scheme, region=region, **options)


@lru_cache(maxsize=1)
def _open_gcs(emulator: str | None) -> fs.FileSystem:
    options = gcs_patience()
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
        raise ValueError(
            f"{scheme}://: needs {package}; install it: pip install {package.split()[0]}"
        ) from error


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
