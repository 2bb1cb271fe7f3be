"""Which model an option names, and where its files can be read on a disk."""

import fcntl
import hashlib
import json
import os
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyarrow import fs

from raycomp.config import ModelConfig
from raycomp.data.files import copy_file
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.paths import ARCHITECTURE, CHECKPOINT, RUN, WEIGHTS, resolve
from raycomp.data.runs import read_finished
from raycomp.data.stores import split_uri


def find_model(config: ModelConfig) -> ModelConfig:
    """Return the config with the files of a model's folder for name and weights, where it names one.

    A model's folder is one that ``raycomp train`` wrote, or its ``checkpoint/``, in any place. Raises
    ValueError where the training has not finished, a file differs from what was written, or ``model.name``
    names another model than the folder's own and the default, which stands for any.
    """
    folder = Folder(config.weights)
    is_uri = "/" in config.weights
    if config.weights.startswith("random:"):
        return config
    training = _find_training(folder)
    own = None if training is None else _check_training(training, config.said_weights)
    if not folder.is_folder():
        return config
    if folder == training:
        folder = Folder(folder.at(CHECKPOINT))
    elif folder.exists(ARCHITECTURE):
        pass
    elif is_uri:
        raise ValueError(f"{config.said_weights}: holds neither {RUN} of a training nor {ARCHITECTURE}")
    else:
        return config  # a tag that is also the name of a folder here
    lacks = next((name for name in (ARCHITECTURE, WEIGHTS) if not folder.exists(name)), None)
    if lacks:
        raise ValueError(f"{config.said_weights}: holds no whole model, {folder.at(lacks)} is not there")
    name = folder.at(ARCHITECTURE)
    if _plain(config.name) not in map(_plain, (ModelConfig().name, name, own or name)):
        raise ValueError(
            f"{config.said_model}: {config.said_weights} holds a model of its own"
            f"{f', trained from {own!r}' if own else ''}; leave model.name out"
        )
    return replace(config, name=name, weights=folder.at(WEIGHTS))


def _find_training(named: Folder) -> Folder | None:
    """Return the folder of the run that wrote a model's folder or weights; None for foreign ones."""
    names = named.uri.split("/")
    up = {CHECKPOINT: 1, WEIGHTS: 2}.get(names[-1], 0)
    if up == 2 and names[-2:-1] != [CHECKPOINT]:
        return None
    folder = Folder("/".join(names[: len(names) - up]) or "/")
    return folder if (up or folder.is_folder()) and folder.exists(RUN) else None


def _check_training(folder: Folder, said: str) -> str:
    """Return the model that the training in a folder started from.

    Raises ValueError where there is none, or its model differs from what was written.
    """
    try:
        run = read_finished(folder.uri)
        if run["kind"] != "train":
            raise ValueError(f"holds {run['kind']}, must hold a training")
        check_results(folder, run, CHECKPOINT, is_whole=True)  # sizes do not distinguish weights of one model
    except ValueError as error:
        raise ValueError(f"{said}: {error}") from error
    return run["config"].get("model", {}).get("name", "")


def _plain(name: str) -> str:
    return name.replace("/", "-")


def fetch_model(config: ModelConfig) -> ModelConfig:
    """Return the config with local paths for files that are in a store, after copying them.

    Raises ValueError where there is no such file, OSError where the storage fails.
    """
    if not any(map(_is_stored, (config.name, config.weights))):
        return config
    # open_clip takes seconds to import, and processes that only tokenise do not need it.
    from raycomp.models.architecture import HUB_CONFIG
    from raycomp.models.config_files import list_config_files

    companions = [posixpath.join(posixpath.dirname(config.name), HUB_CONFIG)]
    name = _fetch(config.name, companions, config.said_model)
    weights = _fetch(config.weights, list_config_files(config.weights), config.said_weights)
    return replace(config, name=name, weights=weights)


def _is_stored(uri: str) -> bool:
    return bool(split_uri(uri)[0])


def _fetch(uri: str, companions: list[str], said: str) -> str:
    if not _is_stored(uri):
        return uri
    try:
        return fetch(uri, companions)
    except FileNotFoundError:
        raise ValueError(f"{said}: no such file") from None


def fetch(uri: str, companions: Sequence[str] = ()) -> str:
    """Return the path of a file: its place on a disk, else that of this machine's copy.

    Files ``companions`` are copied with it where they exist. Copies are below raycomp/ in XDG_CACHE_HOME, or
    ~/.cache, each under its whole uri; every version of the files, by size and ETag, has its own copy. The
    first process that needs it makes the copy while others wait for it. Copies are never removed. Raises
    FileNotFoundError where there is no such file, OSError where the storage or the disk fails.
    """
    filesystem, path = resolve(uri)
    if isinstance(filesystem, fs.LocalFileSystem):
        return path
    found = {one: _find_version(one) for one in (*companions, uri)}
    if found[uri] is None:
        raise FileNotFoundError(f"{uri}: no such file")
    versions = json.dumps(found, sort_keys=True)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    copies = Path(cache, "raycomp", hashlib.sha256(versions.encode()).hexdigest()[:32])
    copies.mkdir(parents=True, exist_ok=True)
    with (copies / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The file itself comes last: where it is present, all are.
        is_there = _place(copies, uri).exists()
        for one in (one for one, version in found.items() if version and not is_there):
            copy_file(one, str(_place(copies, one)))
    return str(_place(copies, uri))


def _place(copies: Path, uri: str) -> Path:
    return copies / uri.replace("://", "/")


def _find_version(uri: str) -> list[str] | None:
    """Return the version of an object, which changes with it; None where there is none."""
    filesystem, path = resolve(uri)
    info = filesystem.get_file_info(path)
    if not info.is_file:
        return None
    with filesystem.open_input_stream(path) as stream:
        reported = stream.metadata()
    return [str(value) for value in (info.size, info.mtime_ns, reported.get("ETag"), reported.get("etag"))]
