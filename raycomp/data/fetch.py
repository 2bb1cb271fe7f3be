"""Files of a store that a library can only read from a disk: one copy for each machine."""

import fcntl
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from pyarrow import fs

from raycomp.data.files import copy_file
from raycomp.data.paths import resolve


def fetch(uri: str, beside: Sequence[str] = ()) -> str:
    """Return the path of a file: where it lies on a disk, else that of this machine's copy.

    Files ``beside`` come along where they exist. Copies lie below raycomp/ in XDG_CACHE_HOME, or ~/.cache,
    each with its whole uri for a name; every version of the files, by size and ETag, has its own, which the
    first process that asks makes while others wait for it. Nothing removes them. Raises FileNotFoundError
    where there is no such file, OSError where the storage or the disk fails.
    """
    filesystem, path = resolve(uri)
    if isinstance(filesystem, fs.LocalFileSystem):
        return path
    found = {one: _find_version(one) for one in (*beside, uri)}
    if found[uri] is None:
        raise FileNotFoundError(f"{uri}: no such file")
    versions = json.dumps(found, sort_keys=True)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    copies = Path(cache, "raycomp", hashlib.sha256(versions.encode()).hexdigest()[:32])
    copies.mkdir(parents=True, exist_ok=True)
    with (copies / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The file itself comes last: where it is, all are.
        is_there = _place(copies, uri).exists()
        for one in (one for one, version in found.items() if version and not is_there):
            copy_file(one, str(_place(copies, one)))
    return str(_place(copies, uri))


def _place(copies: Path, uri: str) -> Path:
    return copies / uri.replace("://", "/")


def _find_version(uri: str) -> list[str] | None:
    """Return what changes with an object; None where there is none."""
    filesystem, path = resolve(uri)
    info = filesystem.get_file_info(path)
    if not info.is_file:
        return None
    with filesystem.open_input_stream(path) as stream:
        told = stream.metadata()
    return [str(value) for value in (info.size, info.mtime_ns, told.get("ETag"), told.get("etag"))]
