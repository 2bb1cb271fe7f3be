"""A run's events: a line of JSON each in its folder, with the run's id. Nothing here knows Ray."""

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raycomp.config import LeaseLost
from raycomp.data.folder import Folder
from raycomp.data.paths import resolve

EVENTS = ("logs", "events.jsonl")
_events = logging.getLogger("raycomp.events")
_events.setLevel(logging.INFO)
_events.propagate = False  # whoever set up the root logger wants no event on a terminal
_runs: list[tuple[dict[str, str], logging.Handler]] = []


class LogFile(logging.FileHandler):
    """A file that is there once something is logged. What a full disk does not take is not kept."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: the run itself meets the same disk."""


@contextmanager
def open_log(out: Folder, names: tuple[str, ...], check: Callable[[], None]) -> Iterator[LogFile]:
    """Append to a file of a folder; of a store at the end only, unless ``check`` raises LeaseLost by then."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(resolve(out.at(*names))[1]) if out.is_local else Path(temporary, names[-1])
        file = LogFile(path, delay=True)
        try:
            yield file
        finally:
            file.close()
            if not out.is_local and path.exists():
                with suppress(OSError, LeaseLost):  # what ended the run is told, not this
                    check()
                    before = out.read_bytes(*names) if out.exists(*names) else b""
                    out.write_bytes(before + path.read_bytes(), *names)


class _AsJson(logging.Formatter):
    """One line for an event: when (UTC), of which run, what, and its facts."""

    def __init__(self, run: str):
        super().__init__()
        self.run = run

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", {})
        return json.dumps({"time": when, "run": self.run, "event": record.getMessage(), **facts})


@contextmanager
def keep_events(out: Folder, run: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep the events of the block in the folder of the run with this id; a run within it has its own."""
    with open_log(out, EVENTS, check) as file:
        file.setFormatter(_AsJson(run))
        for _, outer in _runs[-1:]:
            _events.removeHandler(outer)
        _runs.append(({"run": run, "out": out.uri}, file))
        _events.addHandler(file)
        try:
            yield
        finally:
            _events.removeHandler(file)
            _runs.pop()
            for _, outer in _runs[-1:]:
                _events.addHandler(outer)


def log_event(event: str, **facts: Any) -> None:
    """Log an event of the run that goes on, with facts that json can hold.

    It goes to the logger ``raycomp.events`` at INFO, the facts as its record's attribute ``facts``.
    """
    _events.info(event, extra={"facts": facts})


def name_run() -> dict[str, str]:
    """Return the id (``run``) and the folder (``out``) of the run that goes on; empty where none does."""
    return _runs[-1][0] if _runs else {"run": "", "out": ""}
