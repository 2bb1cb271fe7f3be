"""Paths and uris; files that appear whole or not at all, hashed while they are written; folders of results.

The process that runs a command watches the places of its results. What tasks write elsewhere is hashed there,
is returned with their results, and is recorded here.
"""

import errno
import hashlib
import io
import json
import os
import posixpath
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from pyarrow import fs

from raycomp.data.stores import AZURE, GCS, READ_ONLY, as_oserror, create_object, open_output, open_store
from raycomp.table import group_by

_ALIASES = {"gcs": GCS, "abfs": AZURE}
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
_MAGIC = b"PAR1"
_TAIL_BYTES = len(_MAGIC) + 4
_PIECE_BYTES = 8 << 20
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")
# How Rust reports a failed write, and torch a short one.
_OS_ERROR = re.compile(r"\(os error (\d+)\)|unexpected pos \d+ vs")
_lock = threading.Lock()
_is_dry = False


def split_uri(uri: str) -> tuple[str, str]:
    """Return the scheme of a uri, by its first name, and the rest; "" and the whole for a path.

    A path may also be a ``file://`` uri.
    """
    scheme, separator, path = uri.partition("://")
    if not separator:
        return "", uri
    return ("", path) if scheme == "file" else (_ALIASES.get(scheme, scheme), path)


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
        kind = "folder" if os.path.isdir(path) else "pipe or device"
        raise ValueError(f"{uri}: is a {kind}, must be a file")
    return filesystem, path


_JOB_COPY = "/runtime_resources/working_dir_files/"


def absolute_uri(uri: str) -> str:
    """Return a path made absolute, one with ``file://`` too; any other uri unchanged.

    Workers have other working folders than the driver. Raises ValueError for an empty text, which would mean
    the working folder, and in a submitted job for a relative path: its working folder is a copy that Ray
    removes.
    """
    if not uri:
        raise ValueError("a folder's name is empty; name one, as in --out out/mine")
    path = strip_slash(uri.removeprefix("file://"))
    if "://" in path:
        return path
    if not os.path.isabs(path) and is_in_job_copy():
        raise ValueError(
            f"{uri!r}: is a relative path, and a submitted job runs in a temporary copy of its folder; "
            f"name a store (s3://...), or an absolute path that all nodes share"
        )
    return _absolute(path)


def is_in_job_copy() -> bool:
    """Whether this process runs in Ray's copy of what ``ray job submit --working-dir`` sent."""
    return _JOB_COPY in os.getcwd()


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


def size_files(uris: Iterable[str]) -> list[tuple[str, int | None]]:
    """Return every file with its size in bytes, None where it is missing."""
    return [(uri, info.size) for uri, info in read_infos(uris).items()]


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


def read_time(uri: str, info: fs.FileInfo) -> int | None:
    is_exact = "://" not in uri or info.mtime_ns is None
    return info.mtime_ns if is_exact else info.mtime_ns // 10**9 * 10**9


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

    @classmethod
    def of(cls, file: Written) -> "ResultFile":
        result = cls(file.uri)
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
            below = WrittenFiles([uri])
            watch.files = {one: file for one, file in watch.files.items() if not below.covers(one)}


def call_watched(
    function: Callable[..., Any], places: Sequence[str], *args: Any
) -> tuple[Any, list[Written]]:
    """Return what ``function(*args)`` returns, and what it wrote at ``places``."""
    with watch_writes(WrittenFiles(places)) as watch:
        return function(*args), list(watch.files.values())


def hash_file(uri: str, file: IO[bytes]) -> Written:
    """Return the facts of a whole file, open for reading at its start."""
    digest, size = hashlib.sha256(), 0
    while data := file.read(_PIECE_BYTES):
        digest.update(data)
        size += len(data)
    return Written(uri, size, digest.hexdigest(), hash_footer(file, size))


def hash_footer(file: Any, size: int) -> str | None:
    """Return the SHA-256 of the footer of a seekable Parquet file of ``size`` bytes; None for others."""
    if size < len(_MAGIC) + _TAIL_BYTES:
        return None
    file.seek(size - _TAIL_BYTES)
    tail = file.read(_TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - _TAIL_BYTES - len(_MAGIC):
        return None
    file.seek(size - _TAIL_BYTES - length)
    return hashlib.sha256(file.read(length)).hexdigest()


@contextmanager
def name_place(place: str) -> Iterator[None]:
    """Add the place to the error of a write that fails in the block: "no space left" does not name it."""
    try:
        yield
    except OSError as error:
        error.filename = place
        raise


class _NamedFile(io.FileIO):
    """A new file whose failed writes name it, or its place; hashed as it grows if requested."""

    def __init__(self, file: str | int, place: str, is_hashed: bool):
        super().__init__(file, "x+" if isinstance(file, str) else "w+")
        self.place = place
        self._digest = hashlib.sha256() if is_hashed else None
        self._size = 0

    def write(self, data: Any) -> int:
        with name_place(self.place):
            count = super().write(data)
        if self._digest is not None:
            self._digest.update(memoryview(data)[:count])
            self._size += count
        return count

    def seek(self, offset: int, whence: int = 0) -> int:
        self._digest = None  # a file written out of order is hashed at the end
        return super().seek(offset, whence)

    def describe(self, uri: str) -> Written:
        """Return the facts of the file once it is at ``uri``; all of it is written."""
        if self._digest is None:
            super().seek(0)
            return hash_file(uri, self)
        return Written(uri, self._size, self._digest.hexdigest(), hash_footer(super(), self._size))


@contextmanager
def new_file(uri: str) -> Iterator[IO[bytes]]:
    """Open a binary file that appears at ``uri`` once the block ends without an error, else never.

    On a local disk it is written in the same folder under a temporary name and renamed (folders are made).
    For a store it is written to local temporary space and uploaded; an object becomes visible only when
    complete.
    """
    filesystem, path = resolve(uri)
    if not isinstance(filesystem, fs.LocalFileSystem):
        with tempfile.TemporaryFile() as file:
            with _open_new(os.dup(file.fileno()), tempfile.gettempdir(), uri) as (spooled, found):
                yield spooled
            file.seek(0)
            _upload(file, uri)
        note_written(found)
        return
    temporary = _name_temporary(*os.path.split(path))
    try:
        with _open_new(str(temporary), str(temporary), uri) as (file, found):
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    note_written(found)


@contextmanager
def new_path(uri: str) -> Iterator[str]:
    """Yield a local path for a library that writes files itself; the file appears at ``uri`` once the block
    ends without an error, as with ``new_file``. Its name ends in ``.tmp``. A library's own exception for a
    full or failed disk is raised as OSError."""
    filesystem, path = resolve(uri)
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    temporary = _name_temporary(*(os.path.split(path) if is_local else (tempfile.gettempdir(), "raycomp")))
    try:
        place = str(temporary if is_local else temporary.parent)
        with name_place(place):
            try:
                yield str(temporary)
            except Exception as error:
                if isinstance(error, OSError) or not (said := _OS_ERROR.search(str(error))):
                    raise
                number = int(said[1] or errno.ENOSPC)
                raise OSError(number, os.strerror(number)) from error
        with temporary.open("rb") as file:
            found = [hash_file(uri, file)] if is_watched(uri) else []
            if not is_local:
                file.seek(0)
                _upload(file, uri)
        if is_local:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    note_written(found)


def _name_temporary(folder: str, name: str) -> Path:
    """Return a new name for a file that will be renamed to ``name``, in a folder that is made if needed."""
    os.makedirs(folder, exist_ok=True)
    return Path(folder, f".{name}.{uuid.uuid4().hex}.tmp")


@contextmanager
def _open_new(file: str | int, place: str, uri: str) -> Iterator[tuple[IO[bytes], list[Written]]]:
    """Open a new file; after the block the given list holds its facts, if it is watched."""
    raw = _NamedFile(file, place, is_watched(uri))
    found: list[Written] = []
    with io.BufferedWriter(raw) as buffered:
        yield buffered, found
        if is_watched(uri):
            buffered.flush()
            found.append(raw.describe(uri))


def _upload(file: IO[bytes], uri: str) -> None:
    filesystem, path = resolve(uri)
    with as_oserror(), open_output(split_uri(uri)[0], filesystem, path) as target:
        try:
            shutil.copyfileobj(file, target, _PIECE_BYTES)
        except BaseException:
            # Closing assembles the uploaded parts; no client can skip that.
            target.close()
            filesystem.delete_file(path)
            raise


def copy_file(source: str, target: str) -> None:
    """Copy a file, which appears whole or not at all."""
    filesystem, path = resolve(source)
    with filesystem.open_input_stream(path) as stream, new_file(target) as file:
        shutil.copyfileobj(stream, file, _PIECE_BYTES)


def link_file(file: Written, target: str) -> None:
    """Make a written file appear at ``target`` too: a hard link on a disk, a copy within a store.

    It is known as written there. A file at ``target`` is replaced.
    """
    filesystem, path = resolve(target)
    source_filesystem, source = resolve(file.uri)
    if not isinstance(filesystem, fs.LocalFileSystem) and filesystem == source_filesystem:
        with as_oserror():
            filesystem.copy_file(source, path)
    elif isinstance(filesystem, fs.LocalFileSystem) and isinstance(source_filesystem, fs.LocalFileSystem):
        temporary = _name_temporary(*os.path.split(path))
        try:
            os.link(source, temporary)
        except OSError:  # another disk, or one without hard links
            shutil.copyfile(source, temporary)
        try:
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)  # of two names of one file, replace leaves both
    else:
        copy_file(file.uri, target)
    note_written([file._replace(uri=target)] if is_watched(target) else [])


def remove_temporary_files(folder: str) -> None:
    """Remove the temporary files of killed writers below a run's folder on a local disk.

    Folders of other runs are skipped, as those may be writing.
    """
    filesystem, path = resolve(folder)
    if not isinstance(filesystem, fs.LocalFileSystem):
        return
    for here, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not {RUN, LEASE} & {*os.listdir(os.path.join(here, name))}]
        for name in filter(_TEMPORARY.search, names):
            Path(here, name).unlink(missing_ok=True)


def list_folder(folder: str) -> dict[str, bool]:
    """Return the names directly in a folder, and whether each is a folder; empty where it is missing.

    In Google's store Arrow lists no implicit folders: there they are derived from the names of all below.
    """
    if split_uri(folder)[0] == GCS:
        names = [name.partition("/") for name, info in list_below(folder) if info.is_file]
        return {name: bool(slash) for name, slash, _ in names}
    filesystem, path = resolve(folder)
    found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return {info.base_name: info.type == fs.FileType.Directory for info in found}


def list_below(folder: str) -> Iterator[tuple[str, fs.FileInfo]]:
    """Yield the name, relative to the folder, and the kind of all entries below; none where it is missing.

    On a disk links are followed, but not into a folder that contains them. A store is listed once.
    """
    filesystem, path = resolve(folder)
    if isinstance(filesystem, fs.LocalFileSystem):
        yield from _list_disk(filesystem, path, "", ())
        return
    for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True)):
        yield info.path[len(path) + 1 :], info


def _list_disk(
    filesystem: fs.FileSystem, path: str, prefix: str, above: tuple[str, ...]
) -> Iterator[tuple[str, fs.FileInfo]]:
    """``above``: the resolved folders on the path to this one."""
    real = os.path.realpath(path)
    if real in above:
        return
    for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        name = prefix + info.base_name
        yield name, info
        if info.type == fs.FileType.Directory:
            yield from _list_disk(filesystem, info.path, f"{name}/", (*above, real))


@contextmanager
def dry_run(is_dry: bool) -> Iterator[None]:
    """Let commands in the block check everything and then raise ``DryRun`` instead of writing."""
    global _is_dry
    before, _is_dry = _is_dry, is_dry
    try:
        yield
    finally:
        _is_dry = before


def is_dry_run() -> bool:
    """Whether a command must write nothing."""
    return _is_dry


def check_writable(folder: str) -> None:
    """Raise ValueError, one line, unless files can be written in ``folder`` (made if needed).

    In a dry run nothing is written: only the nearest folder above a local one is checked.
    """
    scheme = split_uri(folder)[0]
    if scheme in READ_ONLY:
        raise ValueError(f"out={folder!r}: {scheme}:// is only read; name a folder or another store")
    if _is_dry:
        path = Path(folder)
        above = next(one for one in (path, *path.parents) if one.exists())
        if not scheme and not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
            raise ValueError(f"out={folder!r}: cannot be written: {above} is not a folder that takes files")
        return
    probe = join_uri(folder, f".probe-{uuid.uuid4().hex}")
    try:
        with new_file(probe) as file:
            file.write(b"probe")
        filesystem, name = resolve(probe)
        filesystem.delete_file(name)
    except OSError as error:
        raise ValueError(f"out={folder!r}: cannot be written: {' '.join(str(error).split())}") from error


@dataclass(frozen=True)
class Folder:
    """Files by name relative to a path or a store's uri. Written files appear whole or not at all."""

    uri: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", strip_slash(self.uri) if self.uri else self.uri)

    def at(self, *names: str) -> str:
        """Return the uri of something in the folder."""
        return join_uri(self.uri, *names)

    @property
    def is_local(self) -> bool:
        """Whether the folder lies on a local disk."""
        return isinstance(resolve(self.uri)[0], fs.LocalFileSystem)

    def exists(self, *names: str) -> bool:
        """Whether there is a file or folder of that name."""
        return self._info(*names).type != fs.FileType.NotFound

    def is_folder(self, *names: str) -> bool:
        return self._info(*names).type == fs.FileType.Directory

    def _info(self, *names: str) -> fs.FileInfo:
        filesystem, path = resolve(self.at(*names))
        return filesystem.get_file_info(path)

    def list_names(self, *names: str) -> list[str]:
        """Return the sorted base names in a sub-folder; empty where it is missing."""
        return sorted(list_folder(self.at(*names)))

    def list_folders(self) -> list[str]:
        """Return the sorted names of the sub-folders; empty where it is missing or a file."""
        if self._info().type != fs.FileType.Directory:
            return []
        return sorted(name for name, is_folder in list_folder(self.uri).items() if is_folder)

    def find_names(self) -> list[str]:
        """Return the names of all files below, relative to the folder, sorted; empty where it is missing."""
        names = [name for name, info in list_below(self.uri) if info.is_file]
        return sorted(names, key=lambda name: name.split("/"))

    def read_bytes(self, *names: str) -> bytes:
        """Return a whole file, in one reply of a store. Raises ValueError where it is not a file."""
        filesystem, path = resolve_file(self.at(*names))
        with filesystem.open_input_file(path) as file:
            return file.read()

    def read_range(self, start: int, end: int, *names: str) -> bytes:
        filesystem, path = resolve(self.at(*names))
        with filesystem.open_input_file(path) as file:
            return file.read_at(int(end - start), int(start))

    def write_bytes(self, data: bytes, *names: str) -> None:
        """Write a whole file."""
        with new_file(self.at(*names)) as file:
            file.write(data)

    def read_json(self, *names: str) -> Any:
        """Return a json file's content."""
        try:
            return json.loads(self.read_bytes(*names))
        except ValueError:  # replaced by a longer one between the request for the size and that for the bytes
            return json.loads(self.read_bytes(*names))

    def write_json(self, content: Any, *names: str) -> None:
        """Write a json file, indented for people."""
        self.write_bytes(_dump(content), *names)

    def create_json(self, content: Any, *names: str) -> bool:
        """Write a json file unless the name exists; return whether it was written.

        Of several concurrent writers one succeeds: on a disk by a hard link, in a store by ``create_object``.
        """
        uri, data = self.at(*names), _dump(content)
        try:
            if not self.is_local:
                create_object(split_uri(uri)[0], resolve(uri)[1], data)
                return True
            path = resolve(uri)[1]
            temporary = f"{path}.{uuid.uuid4().hex}.tmp"
            with new_file(temporary) as file:
                file.write(data)
            try:
                os.link(temporary, path)
            finally:
                os.remove(temporary)
                forget_written(temporary)
        except FileExistsError:
            return False
        return True

    def remove(self, *names: str) -> None:
        """Remove a file, or a sub-folder with all its content; do nothing where it is missing."""
        filesystem, path = resolve(self.at(*names))
        forget_written(self.at(*names))
        kind = filesystem.get_file_info(path).type
        if kind == fs.FileType.Directory:
            with suppress(FileNotFoundError):  # in Google's store an implicit folder has no object
                filesystem.delete_dir(path)
        elif kind == fs.FileType.File:
            filesystem.delete_file(path)


def _dump(content: Any) -> bytes:
    """Return ``content`` as json, with null for NaN and infinities, which json lacks."""
    strict = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return (json.dumps(strict, indent=2) + "\n").encode()
