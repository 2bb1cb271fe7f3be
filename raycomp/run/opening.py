"""Open a run's folder: empty, the same run or refused; describe a run before it starts."""

import json
import os
import platform
import posixpath
import uuid
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from raycomp.config import to_dict
from raycomp.data.files import remove_temporary_files
from raycomp.data.folder import Folder
from raycomp.data.manifest import FORMAT, check_results
from raycomp.data.paths import LEASE, RUN, WORK
from raycomp.data.runs import FINISHED, RUNNING, bound_inputs, bound_options, check_resumable, read_run
from raycomp.run.lease import check_free

PACKAGES = ("raycomp", "ray", "torch", "open_clip_torch", "spacy", "pyarrow", "numpy")


def refuse_inside(folder: Folder, own: Collection[str]) -> None:
    """Raise ValueError where one of two runs would write in, or remove, files of the other."""
    if folder.exists(WORK, RUN):
        raise ValueError(f"out={folder.uri!r}: its folder {WORK} holds another run; name another folder")
    above, name = posixpath.split(folder.uri.rstrip("/"))
    if name in own and Folder(above).exists(RUN):
        raise ValueError(
            f"out={folder.uri!r}: is the folder {name} of the run in {above}; name another folder"
        )


def open_run(folder: Folder, record: dict[str, Any]) -> dict[str, Any] | None:
    """Start in the folder; return the record of the same run if it was started there before."""
    previous = find_run(folder)
    if previous is None:
        folder.write_json(record, RUN)
        return None
    refuse_other(previous, record, folder)
    if previous["status"] == FINISHED:
        _check_finished(folder, previous)
        tidy(folder)  # the run may have been killed just before it did so
    return previous


def check_run(folder: Folder, record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the record of the same run if it was started in the folder before; write nothing.

    Raises ValueError where the folder is held by another process or holds another run.
    """
    check_free(folder)
    previous = find_run(folder)
    if previous is not None:
        refuse_other(previous, record, folder)
        if previous["status"] == FINISHED:
            _check_finished(folder, previous)
    return previous


def report_dry_run(kind: str, previous: dict[str, Any] | None, cost: Callable[[], str]) -> str:
    """Return what a dry run prints: that nothing is wrong, what the command would do, and its cost."""
    passed = f"dry run of {kind}: all checks passed, nothing was written"
    if previous is not None and previous["status"] == FINISHED:
        return f"{passed}; the run is finished already, the command would do nothing"
    how = "it would start" if previous is None else f"it would resume the run of {previous.get('started')}"
    return "\n\n".join(filter(None, (f"{passed}; {how}", cost())))


def say_count(count: int, what: str) -> str:
    """Return the cost of a command that runs many alike, for ``report_dry_run``."""
    return f"{count:,} {what}"


def refuse_early(kind: str, config: Any, out: str) -> None:
    """Raise ValueError where ``out`` holds something else than a run of this kind and config.

    A command calls it before it loads a model; ``start_run`` also compares inputs and versions.
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
    if run is not None:
        check_resumable(run, folder.uri, f"out={folder.uri!r}")
    if names and run is None:
        raise ValueError(f"out={folder.uri!r}: holds files but no {RUN}; name an empty or new folder")
    return run


def refuse_other(previous: dict[str, Any], run: dict[str, Any], folder: Folder) -> None:
    """Raise ValueError naming the difference if the folder holds the results of another run."""
    if previous["kind"] != run["kind"]:
        raise ValueError(
            f"out={folder.uri!r}: holds a {previous['kind']} run, this is {run['kind']}; name another folder"
        )
    names = []
    # A finished run is only read; an unfinished one must resume with the options it was started with.
    versions = {} if previous["status"] == FINISHED else previous["versions"]
    for read in (
        bound_inputs,
        bound_options,
        lambda r: {name: r["versions"].get(name) for name in versions},
    ):
        a, b = read(previous), read(json.loads(json.dumps(run)))
        names += [name for name in {**a, **b} if a.get(name) != b.get(name)]
    if names:
        differing = ", ".join(dict.fromkeys(names))
        raise ValueError(f"out={folder.uri!r}: holds a run that differs in {differing}; name another folder")


def _check_finished(folder: Folder, run: dict[str, Any]) -> None:
    """Raise ValueError where a result of a finished run is missing or changed."""
    try:
        check_results(folder, run)
    except ValueError as error:
        raise ValueError(
            f"out={folder.uri!r}: the run there was finished, but {error}; remove the folder or name another "
            f"one, and run again"
        ) from error


def describe_run(
    kind: str, config: Any, fingerprint: dict[str, Any], commands: dict[str, str]
) -> dict[str, Any]:
    """Return the description of a run before it starts."""
    return {
        "id": uuid.uuid4().hex[:12],
        "kind": kind,
        "format": FORMAT,
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
    """Remove files that only an unfinished run needs, and files that killed writers left in the results."""
    if not folder.exists(WORK, RUN):  # else a user has made another run there since
        folder.remove(WORK)
    remove_temporary_files(folder.uri)
