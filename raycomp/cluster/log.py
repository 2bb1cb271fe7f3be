"""What Ray says: warnings in a file of the run's folder, errors on the terminal, too."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray._private import worker

from raycomp.config import LeaseLost
from raycomp.shards.folder import Folder
from raycomp.shards.paths import resolve

LOG = ("logs", "ray.log")
# Ray Data's does not hand on to Ray's.
_LOGGERS = tuple(map(logging.getLogger, ("ray", "ray.data")))


class _LogFile(logging.FileHandler):
    """A file that is there once something is logged. What a full disk does not take is not kept."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: the run itself meets the same disk."""


@contextmanager
def _log_notes() -> Iterator[None]:
    """Log what Ray's nodes have to tell: a node lost, a worker killed for memory.

    Ray prints it on stdout, where results are, and has no dial for that.
    """
    before = worker.print_to_stdstream

    def log(data: dict[str, Any], ignore_prefix: bool) -> None:
        for line in data["lines"]:
            _LOGGERS[0].warning(line)

    worker.print_to_stdstream = log
    try:
        yield
    finally:
        worker.print_to_stdstream = before


@contextmanager
def keep_log(out: Folder | None, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Append what Ray says at WARNING and above to ``logs/ray.log`` in a folder, not to the terminal.

    On S3 it is written at the end, also of a run that fails, unless ``check`` raises LeaseLost: the folder is
    then another run's. Without a folder it is kept nowhere.
    """
    _quieten()
    if out is None:
        with _log_notes():
            yield
        return
    with tempfile.TemporaryDirectory() as room, _log_notes():
        path = Path(resolve(out.uri)[1] if out.is_local else room, *LOG)
        log = _LogFile(path, delay=True)
        log.setLevel(logging.WARNING)
        log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        for logger in _LOGGERS:
            logger.addHandler(log)
        try:
            yield
        finally:
            for logger in _LOGGERS:
                logger.removeHandler(log)
            log.close()
            if not out.is_local and path.exists():
                with suppress(OSError, LeaseLost):  # what ended the run is told, not this
                    check()
                    before = out.read_bytes(*LOG) if out.exists(*LOG) else b""
                    out.write_bytes(before + path.read_bytes(), *LOG)


def _quieten() -> None:
    """Let warnings through to files, and only errors to a terminal."""
    for logger in _LOGGERS:
        logger.setLevel(logging.WARNING)
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                handler.setLevel(logging.ERROR)
