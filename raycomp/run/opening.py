"""The folder of a run, opened: empty, the same run or refused; what is known of a run before it starts."""

import json
import os
import platform
import posixpath
import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from raycomp.config import find_config, to_dict
from raycomp.data.files import remove_temporary_files
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.paths import LEASE, RUN, WORK
from raycomp.data.runs import FINISHED, RUNNING, bound_inputs, bound_options, read_run

PACKAGES = ("raycomp", "ray", "torch", "open_clip_torch", "spacy", "pyarrow", "numpy")
# Of a run's fingerprint, what never held the time of a file.
_WITHOUT_TIMES = set(
    "scorer parser lexicon nonces model prompts llm shards scores subset negatives architecture".split()
)


def refuse_inside(folder: Folder, own: Collection[str]) -> None:
    """Raise ValueError where one of two runs would write in, or remove, what is the other's."""
    if folder.exists(WORK, RUN):
        raise ValueError(f"out={folder.uri!r}: its folder {WORK} holds another run; name another folder")
    above, name = posixpath.split(folder.uri.rstrip("/"))
    if name in own and Folder(above).exists(RUN):
        raise ValueError(
            f"out={folder.uri!r}: is the folder {name} of the run in {above}; name another folder"
        )


def open_run(folder: Folder, record: dict[str, Any]) -> dict[str, Any] | None:
    """Begin in the folder; return the record of the same run that was begun there before, if there is one."""
    previous = find_run(folder)
    if previous is None:
        folder.write_json(record, RUN)
        return None
    refuse_other(previous, record, folder)
    if previous["status"] == FINISHED:
        _check_finished(folder, previous)
        tidy(folder)  # it may have been killed just before it did
    return previous


def refuse_early(kind: str, config: Any, out: str) -> None:
    """Raise ValueError where ``out`` holds something else than a run of this kind and config.

    A command calls it before it looks for a model; ``begin`` compares inputs and versions, too.
    """
    folder = Folder(out)
    previous = find_run(folder)
    if previous is not None:
        run = {"kind": kind, "config": to_dict(config), "fingerprint": previous["fingerprint"]}
        refuse_other(previous, run | {"versions": previous.get("versions", {})}, folder)


def find_run(folder: Folder) -> dict[str, Any] | None:
    """Return the folder's run.json, None where it is empty.

    Raises ValueError where the folder holds something else.
    """
    try:
        run = read_run(folder)
        names = [name for name in folder.list_names() if name != LEASE]
    except OSError as error:
        line = " ".join(str(error).split())
        raise ValueError(f"out={folder.uri!r}: cannot be read: {line}") from error
    if names and run is None:
        raise ValueError(f"out={folder.uri!r}: holds files but no {RUN}; name an empty or new folder")
    return run


def refuse_other(previous: dict[str, Any], run: dict[str, Any], folder: Folder) -> None:
    """Raise ValueError naming what differs if the folder holds the results of another run."""
    if previous["kind"] != run["kind"]:
        raise ValueError(
            f"out={folder.uri!r}: holds a {previous['kind']} run, this is {run['kind']}; name another folder"
        )
    names = []
    # Until format 1 the identity of an input held its files' times.
    is_older = previous["status"] == FINISHED and "format" not in previous
    # An option that a version brought counts as its default in a run of before.
    config = json.loads(json.dumps(to_dict(find_config(run["kind"])())))
    default = bound_options({"kind": run["kind"], "config": config})
    # A finished run is only looked at; one that goes on must go on with what it was begun with.
    versions = {} if previous["status"] == FINISHED else previous["versions"]
    for read in (
        lambda r: {
            name: value for name, value in bound_inputs(r).items() if not is_older or name in _WITHOUT_TIMES
        },
        lambda r: default | bound_options(r),
        lambda r: {name: r["versions"].get(name) for name in versions},
    ):
        a, b = read(previous), read(json.loads(json.dumps(run)))
        names += [name for name in {**a, **b} if a.get(name) != b.get(name)]
    if names:
        differing = ", ".join(dict.fromkeys(names))
        raise ValueError(f"out={folder.uri!r}: holds a run that differs in {differing}; name another folder")


def _check_finished(folder: Folder, run: dict[str, Any]) -> None:
    """Raise ValueError where a finished run's results are no longer all there, as they were written."""
    try:
        check_results(folder, run)
    except ValueError as error:
        raise ValueError(
            f"out={folder.uri!r}: the run there was finished, but {error}; remove the folder or name another "
            f"to have its results again"
        ) from error


def describe_run(
    kind: str, config: Any, fingerprint: dict[str, Any], commands: dict[str, str]
) -> dict[str, Any]:
    """Return what is known of a run before it begins."""
    return {
        "id": uuid.uuid4().hex[:12],
        "kind": kind,
        "status": RUNNING,
        "commands": commands,
        "started": now(),
        "config": to_dict(config),
        "fingerprint": fingerprint,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "machine": {
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
    }


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def tidy(folder: Folder) -> None:
    """Remove what only an unfinished run needs, and what killed writers left among the results."""
    if not folder.exists(WORK, RUN):  # else somebody has made a run of its own there since
        folder.remove(WORK)
    remove_temporary_files(folder.uri)
