"""Files that appear whole or not at all, on disk and in stores."""

import hashlib
import io
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pyarrow import fs

from raycomp.data.paths import LEASE, RUN, join_uri, resolve
from raycomp.data.stores import GCS, READ_ONLY, as_oserror, create_object, open_output, split_uri
from raycomp.data.written import Written, find_footer, forget_written, hash_file, is_watched, note_written

# Names in a run's own folder.
_RUNS = {RUN, LEASE}
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")


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
        return Written(uri, self._size, self._digest.hexdigest(), find_footer(super(), self._size))


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
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    try:
        with _open_new(temporary, temporary, uri) as (file, found):
            yield file
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise
    note_written(found)


@contextmanager
def new_path(uri: str) -> Iterator[str]:
    """Yield a local path for a library that writes files itself; the file appears at ``uri`` once the block
    ends without an error, as with ``new_file``. Its name ends in ``.tmp``."""
    filesystem, path = resolve(uri)
    is_local = isinstance(filesystem, fs.LocalFileSystem)
    folder, name = os.path.split(path) if is_local else (tempfile.gettempdir(), "raycomp")
    os.makedirs(folder, exist_ok=True)
    temporary = Path(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    try:
        with name_place(str(temporary) if is_local else folder):
            yield str(temporary)
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
            shutil.copyfileobj(file, target, 8 << 20)
        except BaseException:
            # Closing assembles the uploaded parts; no client can skip that.
            target.close()
            filesystem.delete_file(path)
            raise


def copy_file(source: str, target: str) -> None:
    """Copy a file, which appears whole or not at all."""
    filesystem, path = resolve(source)
    with filesystem.open_input_stream(path) as stream, new_file(target) as file:
        shutil.copyfileobj(stream, file, 8 << 20)


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
        _link(source, path)
    else:
        copy_file(file.uri, target)
    note_written([file._replace(uri=target)] if is_watched(target) else [])


def _link(source: str, target: str) -> None:
    folder, name = os.path.split(target)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    try:
        os.link(source, temporary)
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(source, temporary)
    try:
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)  # of two names of one file, replace leaves both


def create_file(uri: str, data: bytes) -> bool:
    """Write a whole file unless there is one; return whether it was written.

    Of several concurrent writers one succeeds: on a disk by a hard link, in a store by ``create_object``.
    """
    filesystem, path = resolve(uri)
    if isinstance(filesystem, fs.LocalFileSystem):
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        with new_file(temporary) as file:
            file.write(data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            os.remove(temporary)
            forget_written(temporary)
        return True
    try:
        create_object(split_uri(uri)[0], path, data)
    except FileExistsError:
        return False
    return True


def remove_temporary_files(folder: str) -> None:
    """Remove the temporary files of killed writers below a run's folder on a local disk.

    Folders of other runs are skipped, as those may be writing.
    """
    filesystem, path = resolve(folder)
    if not isinstance(filesystem, fs.LocalFileSystem):
        return
    for here, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not (_RUNS & set(os.listdir(os.path.join(here, name))))]
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


_is_dry = False


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


def _check_disk(folder: str) -> None:
    """Raise ValueError where the nearest existing folder above a local one refuses files; stores: nothing."""
    if split_uri(folder)[0]:
        return
    path = Path(folder)
    above = next(one for one in (path, *path.parents) if one.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise ValueError(f"out={folder!r}: cannot be written: {above} is not a folder that takes files")


def check_writable(folder: str) -> None:
    """Raise ValueError, one line, unless files can be written in ``folder`` (made if needed)."""
    scheme = split_uri(folder)[0]
    if scheme in READ_ONLY:
        raise ValueError(f"out={folder!r}: {scheme}:// is only read; name a folder or another store")
    if is_dry_run():
        _check_disk(folder)
        return
    probe = join_uri(folder, f".probe-{uuid.uuid4().hex}")
    try:
        with new_file(probe) as file:
            file.write(b"probe")
        filesystem, path = resolve(probe)
        filesystem.delete_file(path)
    except OSError as error:
        raise ValueError(f"out={folder!r}: cannot be written: {' '.join(str(error).split())}") from error
