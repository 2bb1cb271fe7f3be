"""The manifest of a finished run: size and SHA-256 of every result file, and the check of the files.

``manifest.json`` is next to run.json, which holds its digest. A reader requests the manifest and a list of
the folders that it will read, one request for a thousand files. A Parquet file's footer is checked where the
file is opened, a sample where it is read. ``verify_whole`` makes the check read every byte.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from raycomp.data.files import Folder, ResultFile, Written, hash_file, list_below, make_result
from raycomp.data.paths import RUN, read_infos, resolve_file

MANIFEST = "manifest.json"
STATE = "state"
"""What an update needs besides the results. It has the times of input files, so a repeat has other bytes."""
FORMAT = 2
"""The value of ``format`` in run.json from the start of a run."""
READ_FORMATS = (1, FORMAT)
"""The formats of finished runs that are read. A run of format 1 had it only at its end."""
_AT_ONCE = 16
# Files that readers take from a listed folder, by name; other folders' files are opened by name.
_TAKEN = re.compile(
    r"(scores|metadata|marks|negatives)/(.*/)?\d+\.parquet$|shards/.*(?i:\.(tar|parquet))$|trials/.*\.json$",
    re.DOTALL,
)
_is_whole = False


def read_result(file: ResultFile) -> bytes:
    """Return the whole of a run's file. Raises ValueError where it differs from what the run wrote."""
    data = Folder(file).read_bytes()
    if file.sha256 is not None and hashlib.sha256(data).hexdigest() != file.sha256:
        raise ValueError(_say_changed(file))
    return data


def _say_changed(uri: str) -> str:
    return f"{uri}: was changed; its SHA-256 is not the one that the run wrote"


@contextmanager
def verify_whole(is_whole: bool) -> Iterator[None]:
    """Make every check in the block read whole files and compare their SHA-256."""
    global _is_whole
    before, _is_whole = _is_whole, is_whole
    try:
        yield
    finally:
        _is_whole = before


def write_manifest(folder: Folder, outputs: Sequence[str], written: Mapping[str, Written]) -> dict[str, Any]:
    """Write the manifest of the files in ``outputs``; return the entries for run.json.

    ``outputs`` are sub-folders, or files at the top; ``written`` are known files by uri. Others, which an
    earlier start wrote, are read. Raises OSError where a file differs from what was written.
    """
    sizes = dict(_list_outputs(folder, outputs))
    known = {file.uri[len(folder.uri) + 1 :]: file for file in written.values()}
    known = {name: file for name, file in known.items() if not _is_hidden(name)}
    for name, file in known.items():
        if sizes.get(name) != file.size:
            what = f"holds {sizes[name]:,} bytes" if name in sizes else "is not there"
            raise OSError(f"{file.uri}: {what}, {file.size:,} bytes were written")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        names = [name for name in sizes if name not in known]
        known |= dict(zip(names, pool.map(lambda name: _hash(folder.at(name)), names), strict=True))
    lines = {name: f"{json.dumps(name)}: {json.dumps(known[name][1:])}" for name in sorted(known)}
    results = [line for name, line in lines.items() if _output_of(name) != STATE]
    data, about = (("{\n" + ",\n".join(some) + "\n}\n").encode() for some in (lines.values(), results))
    folder.write_bytes(data, MANIFEST)
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "files": len(known),
        "bytes": sum(file.size for file in known.values()),
        "results": hashlib.sha256(about).hexdigest(),
    }


def check_results(
    folder: Folder, run: Mapping[str, Any], *outputs: str, is_whole: bool = False
) -> dict[str, ResultFile]:
    """Return the files of ``outputs`` (none = all) of a finished run by name, after checking them.

    ``run`` is its run.json. Raises ValueError naming the first file that is missing,
    shorter, longer, extra or, with ``is_whole`` or in ``verify_whole``, changed.
    """
    known = {
        name: file for name, file in _read(folder, run).items() if not outputs or _output_of(name) in outputs
    }
    there = sorted({_output_of(name) for name in known})
    found = dict(_list_outputs(folder, there))
    for name, file in known.items():
        if name not in found:
            raise ValueError(f"{file.uri}: is missing; the run wrote it with {file.size:,} bytes")
        if found[name] != file.size:
            how = "shorter" if found[name] < file.size else "longer"
            said = f"is {how} than the run wrote it, {found[name]:,} bytes for {file.size:,}"
            raise ValueError(f"{file.uri}: {said}")
    extra = next((name for name in found if name not in known and _TAKEN.match(name)), None)
    if extra:
        raise ValueError(f"{folder.at(extra)}: was not written by the run; move it out of the folder")
    if is_whole or _is_whole:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            there_now = pool.map(lambda file: _hash(file.uri), known.values())
            for file, now in zip(known.values(), there_now, strict=True):
                if now != file:
                    raise ValueError(_say_changed(file.uri))
    return {name: make_result(file) for name, file in known.items()}


def read_manifest(folder: Folder) -> dict[str, Written]:
    """Return the files of a finished run by name, with their sizes and SHA-256; nothing is checked.

    Raises ValueError where the run has no manifest, or one that is not its own.
    """
    return _read(folder, folder.read_json(RUN))


def _output_of(name: str) -> str:
    return name.partition("/")[0]


def _list_outputs(folder: Folder, outputs: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield name and size of the files in sub-folders, and of files at the top; hidden ones are skipped."""
    top = [output for output in outputs if "." in output]
    infos = read_infos(folder.at(name) for name in top)
    yield from ((name, infos[folder.at(name)].size) for name in top if infos[folder.at(name)].is_file)
    for output in (output for output in outputs if "." not in output):
        try:
            below = [(name, info) for name, info in list_below(folder.at(output)) if info.is_file]
        except NotADirectoryError as error:
            raise ValueError(f"{folder.at(output)}: is a file, must be a folder of the run") from error
        for name, info in sorted(below, key=lambda one: one[0].split("/")):
            if not _is_hidden(name):
                yield f"{output}/{name}", info.size


def _is_hidden(name: str) -> bool:
    """Whether a file is a desktop's or a store's own: .DS_Store, _SUCCESS, NAME_$folder$; __len__ is ours."""
    parts = name.split("/")
    own = any(part.startswith((".", "_")) and not part.startswith("__") for part in parts)
    return own or name.endswith("_$folder$")


def _hash(uri: str) -> Written:
    filesystem, path = resolve_file(uri)
    with filesystem.open_input_file(path) as file:
        return hash_file(uri, file)


def _read(folder: Folder, run: Mapping[str, Any]) -> dict[str, Written]:
    """Return the files of a manifest by name. Raises ValueError where it is not the run's own."""
    try:
        return _load(folder.uri, run["manifest"]["sha256"])
    except FileNotFoundError:
        raise ValueError(f"{folder.at(MANIFEST)}: is missing; the run wrote it") from None


@lru_cache(maxsize=4)
def _load(uri: str, sha256: str) -> dict[str, Written]:
    data = Folder(uri).read_bytes(MANIFEST)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{uri}/{MANIFEST}: was changed; its SHA-256 is not the one in run.json")
    return {name: Written(f"{uri}/{name}", *facts) for name, facts in json.loads(data).items()}
