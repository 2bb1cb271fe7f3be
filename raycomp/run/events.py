"""A run's events: one JSON line each in the run's folder, with the run's id. Independent of Ray."""

import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raycomp.config import LeaseLost
from raycomp.data.folder import Folder
from raycomp.data.paths import resolve

EVENTS = ("logs", "events.jsonl")
_events = logging.getLogger("raycomp.events")
_events.setLevel(logging.INFO)
_events.propagate = False  # a configured root logger must not print events on a terminal
_runs: list[tuple[dict[str, str], logging.Handler]] = []
# A lost head loses the messages of this long at most.
_UPLOAD_S = 60.0


class LogFile(logging.FileHandler):
    """A file that is created by the first message. Messages that a full disk rejects are lost."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the error: the run itself fails on the same disk."""


@contextmanager
def open_log(out: Folder, names: tuple[str, ...], check: Callable[[], None]) -> Iterator[LogFile]:
    """Append to a file of a folder.

    A store's objects cannot be appended to: there the whole file is written each minute that adds messages,
    and at the end, unless ``check`` raises LeaseLost.
    """
    if out.is_local:
        file = LogFile(Path(resolve(out.at(*names))[1]), delay=True)
        try:
            yield file
        finally:
            file.close()
        return
    with tempfile.TemporaryDirectory() as temporary:
        file = LogFile(Path(temporary, names[-1]), delay=True)
        with _Upload(file, out, names, check):
            yield file


class _Upload:
    """Writes a log to a store while a block runs, and at its end. Errors do not end the run.

    A failed upload is repeated with the next; a run that fails by the same error reports it.
    """

    def __init__(self, file: LogFile, out: Folder, names: tuple[str, ...], check: Callable[[], None]):
        self.file, self.out, self.names, self.check = file, out, names, check
        self.before: bytes | None = None
        self.uploaded = 0
        self.ended = threading.Event()
        self.uploader = threading.Thread(target=self._upload_on, name=f"upload {names[-1]}", daemon=True)

    def __enter__(self) -> None:
        self.uploader.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.uploader.join()
        self.file.close()
        self._upload()

    def _upload_on(self) -> None:
        while not self.ended.wait(_UPLOAD_S):
            self._upload()

    def _upload(self) -> None:
        """Write what earlier starts and this one logged, in whole lines, unless nothing was added."""
        path = Path(self.file.baseFilename)
        with self.file.lock or nullcontext():
            added = path.read_bytes() if path.exists() else b""
        if len(added) == self.uploaded:
            return
        with suppress(OSError, LeaseLost):
            self.check()
            if self.before is None:
                self.before = self.out.read_bytes(*self.names) if self.out.exists(*self.names) else b""
            self.out.write_bytes(self.before + added, *self.names)
            self.uploaded = len(added)


class _AsJson(logging.Formatter):
    """One JSON line per event: UTC time, run id, event name and facts."""

    def __init__(self, run: str):
        super().__init__()
        self.run = run

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", {})
        return json.dumps({"time": when, "run": self.run, "event": record.getMessage(), **facts})


@contextmanager
def keep_events(out: Folder, run: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Write the block's events to the folder of the run with this id; an inner run has its own file."""
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
    """Log an event of the current run, with facts that json can hold.

    The logger is ``raycomp.events``, the level INFO; the record's attribute ``facts`` holds the facts.
    """
    _events.info(event, extra={"facts": facts})


def name_run() -> dict[str, str]:
    """Return the id (``run``) and the folder (``out``) of the current run; empty outside of a run."""
    return _runs[-1][0] if _runs else {"run": "", "out": ""}
