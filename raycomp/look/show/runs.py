"""The runs below a folder, each with its result."""

from collections.abc import Iterator
from typing import Any

from raycomp.data.folder import Folder
from raycomp.data.paths import RUN, absolute_uri
from raycomp.data.runs import FINISHED, read_run
from raycomp.table import Table

_DEPTH = 6


def list_runs(parent: str) -> str:
    """Return a table of the runs at or below ``parent``: folder, kind, status, when, and its result.

    A run's own folders are not searched. Raises ValueError where there is no run.
    """
    top = absolute_uri(parent).rstrip("/")
    rows = [_describe(folder, top) for folder in _find_runs(Folder(top), _DEPTH)]
    if not rows:
        raise ValueError(f"{parent}: holds no run of raycomp; name a folder above runs")
    return Table("", ("folder", "run", "status", "finished", "result"), rows).to_text()


def _find_runs(folder: Folder, depth: int) -> Iterator[Folder]:
    if folder.exists(RUN):
        yield folder
    elif depth:
        for name in folder.list_folders():
            yield from _find_runs(Folder(folder.at(name)), depth - 1)


def _describe(folder: Folder, top: str) -> tuple[str, ...]:
    name = folder.uri.removeprefix(top).lstrip("/") or "."
    try:
        run: dict[str, Any] = read_run(folder) or {}
    except ValueError:
        return name, "-", "unreadable", "-", "-"
    result = run.get("headline") if run["status"] == FINISHED else run.get("failed")
    return (
        name,
        run["kind"],
        run["status"],
        str(run.get("finished", "-")),
        " ".join(str(result or "-").split()),
    )
