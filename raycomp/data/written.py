"""Hashes the files of a run while they are written, for its manifest.

The process that runs a command watches the places of its results. What tasks write elsewhere is hashed there,
is returned with their results, and is recorded here.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

_MAGIC = b"PAR1"
_TAIL_BYTES = len(_MAGIC) + 4


class Written(NamedTuple):
    """A file that was written."""

    uri: str
    size: int
    """Bytes."""
    sha256: str
    footer: str | None = None
    """SHA-256 of a Parquet file's footer, which lets a reader verify it without reading the rest."""


class ResultFile(str):
    """The uri of a file of a finished run, with the SHA-256 of its bytes, and of its footer if it has one.

    None where they are not known.
    """

    sha256: str | None = None
    footer: str | None = None


def make_result(file: Written) -> ResultFile:
    """Return the uri of a file that carries what is known of it."""
    result = ResultFile(file.uri)
    result.sha256, result.footer = file.sha256, file.footer
    return result


class WrittenFiles:
    """The files written at some places by this process or reported to it, by uri; the last one counts."""

    def __init__(self, places: Sequence[str]):
        """``places``: uris of files or folders."""
        self.places = tuple(places)
        self.files: dict[str, Written] = {}

    def covers(self, uri: str) -> bool:
        """Whether a file is one of the places or below one."""
        return any(uri == place or uri.startswith(f"{place}/") for place in self.places)


_watches: list[WrittenFiles] = []
_lock = threading.Lock()


@contextmanager
def watch_writes(watch: WrittenFiles) -> Iterator[WrittenFiles]:
    """Record in ``watch`` the files written at its places while the block runs."""
    with _lock:
        _watches.append(watch)
    try:
        yield watch
    finally:
        with _lock:
            _watches.remove(watch)


def watched_places() -> tuple[str, ...]:
    """Return the places that this process watches, for tasks that write there."""
    return tuple(place for watch in _watches for place in watch.places)


def is_watched(uri: str) -> bool:
    """Return whether a file written at ``uri`` must be hashed."""
    return any(watch.covers(uri) for watch in list(_watches))


def note_written(files: Iterable[Written]) -> None:
    """Record files, also those that other processes wrote."""
    found = list(files)
    with _lock:
        for watch in _watches:
            watch.files |= {file.uri: file for file in found if watch.covers(file.uri)}


def forget_written(uri: str) -> None:
    """Forget a file, or all below a folder, that is removed."""
    with _lock:
        for watch in _watches:
            gone = [one for one in watch.files if one == uri or one.startswith(f"{uri}/")]
            for one in gone:
                del watch.files[one]


def call_watched(
    function: Callable[..., Any], places: Sequence[str], *args: Any
) -> tuple[Any, list[Written]]:
    """Return what ``function(*args)`` returns, and what it wrote at ``places``."""
    with watch_writes(WrittenFiles(places)) as watch:
        return function(*args), list(watch.files.values())


def hash_file(uri: str, file: IO[bytes]) -> Written:
    """Return the facts of a whole file, open for reading at its start."""
    digest, size = hashlib.sha256(), 0
    while data := file.read(8 << 20):
        digest.update(data)
        size += len(data)
    return Written(uri, size, digest.hexdigest(), find_footer(file, size))


def find_footer(file: Any, size: int) -> str | None:
    """Return the SHA-256 of the footer of a seekable Parquet file of ``size`` bytes; None for others."""
    if size < 2 * len(_MAGIC) + 4:
        return None
    file.seek(size - _TAIL_BYTES)
    tail = file.read(_TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - _TAIL_BYTES - len(_MAGIC):
        return None
    file.seek(size - _TAIL_BYTES - length)
    return hash_footer(file.read(length))


def hash_footer(footer: bytes) -> str:
    """Return the SHA-256 of a Parquet file's footer."""
    return hashlib.sha256(footer).hexdigest()
