"""Ray's log messages: warnings go to a file of the run's folder, errors also to the terminal."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raycomp.data.folder import Folder
from raycomp.run.events import open_log
from raycomp.run.ray_private import catch_notes

LOG = ("logs", "ray.log")
# Ray Data's logger does not propagate to Ray's.
_LOGGERS = tuple(map(logging.getLogger, ("ray", "ray.data")))


@contextmanager
def keep_log(out: Folder | None, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Append Ray's messages at WARNING and above to ``logs/ray.log`` in a folder, not to the terminal.

    In a store the file is written each minute and at the end, also after a failure, unless ``check`` raises
    LeaseLost: the folder then belongs to another run. Without a folder the messages are discarded.
    """
    _quieten()
    if out is None:
        with catch_notes(_LOGGERS[0].warning):
            yield
        return
    with open_log(out, LOG, check) as log, catch_notes(_LOGGERS[0].warning):
        log.setLevel(logging.WARNING)
        log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        for logger in _LOGGERS:
            logger.addHandler(log)
        try:
            yield
        finally:
            for logger in _LOGGERS:
                logger.removeHandler(log)


def _quieten() -> None:
    """Send warnings to files, and only errors to a terminal."""
    for logger in _LOGGERS:
        logger.setLevel(logging.WARNING)
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                handler.setLevel(logging.ERROR)
