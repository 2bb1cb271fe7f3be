"""Single files of images, by paths that a table or list holds."""

import errno
import os
import posixpath
import stat
from enum import Enum
from functools import lru_cache

from pyarrow import fs

from raycomp.data.headers import MAX_MEMBER_BYTES
from raycomp.data.paths import resolve

_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
_MAGIC = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}


class Fault(Enum):
    """Why a file was not opened."""

    MISSING = "missing"
    """Not a regular file."""
    REFUSED = "refused"
    """Outside the folders that images may lie in, links followed."""
    TOO_LARGE = "too_large"


MISSING, REFUSED, TOO_LARGE = Fault.MISSING, Fault.REFUSED, Fault.TOO_LARGE
Opened = bytes | Fault


def open_image(filesystem: fs.FileSystem, folder: str, path: str, root: str | None) -> Opened:
    """Return the bytes of a file, or why there are none.

    A relative ``path`` is taken from ``root`` if there is one, else from ``folder``. It must resolve, links
    followed, to a regular file below ``folder`` or ``root``; larger than MAX_MEMBER_BYTES it is too large.
    OSErrors of the storage pass through.
    """
    bases = [folder]
    if root is not None:
        filesystem, base = resolve(root)
        bases = [base, folder]
    whole = posixpath.normpath(posixpath.join(bases[0], path))
    if "\0" in path or not any(_is_below(whole, base) for base in bases):
        return REFUSED
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            return _read_local(whole, bases)
        with filesystem.open_input_file(whole) as file:
            return file.read() if file.size() <= MAX_MEMBER_BYTES else TOO_LARGE
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError) or error.errno in _NO_FILE
        if is_missing or filesystem.get_file_info(whole).type == fs.FileType.Directory:
            return MISSING
        raise


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _read_local(path: str, bases: list[str]) -> Opened:
    """Opening a pipe would wait forever; opening a device may have any effect."""
    real = _resolve_links(path)
    if not any(_is_below(real, _resolve_folder(base)) for base in bases):
        return REFUSED if os.path.exists(real) else MISSING
    info = os.stat(real)
    if not stat.S_ISREG(info.st_mode):
        return MISSING
    if info.st_size > MAX_MEMBER_BYTES:
        return TOO_LARGE
    with open(real, "rb", buffering=0) as file:
        return file.read()


def _resolve_links(path: str) -> str:
    """Return the real path; that of a folder is resolved once, as most files of a list share a few."""
    folder, name = posixpath.split(path)
    if name in ("", ".", "..") or os.path.islink(path):
        return os.path.realpath(path)
    return posixpath.join(_resolve_folder(folder), name)


@lru_cache(maxsize=4096)
def _resolve_folder(folder: str) -> str:
    return os.path.realpath(folder)


def sniff(image: bytes) -> str:
    """Return the file extension of an image by its first bytes, else jpg."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "webp"
    if image[4:12] in (b"ftypavif", b"ftypavis"):
        return "avif"
    return next((extension for magic, extension in _MAGIC.items() if image.startswith(magic)), "jpg")
