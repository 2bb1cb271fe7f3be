"""Measure coverage in this process: bench.covered puts this folder on PYTHONPATH.

What a process covers counts for the test that started it. It is saved every few seconds, since Ray ends its
workers without a word, and what a killed process covered in its last seconds is lost.
"""

import atexit
import os
import sys
import threading
import time

_SAVE_S = 4.0
_config = os.environ.get("COVERED_CONFIG")
_measured = []
_line = " ".join(sys.orig_argv)
# pytest's own processes measure test by test (bench.covered is their plugin); Ray's own run no code of ours.
_is_pytest = "bench.covered" in _line or "exec(eval(sys.stdin.readline()))" in _line
_is_rays = "/ray/" in _line and "default_worker" not in _line and "raycomp" not in _line


def start() -> None:
    """Measure until the process ends."""
    import coverage

    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    kind = "worker of Ray|" if "default_worker" in _line else ""
    _measured[:] = [coverage.Coverage(config_file=_config, context=kind + test)]
    _measured[0].start()
    atexit.register(stop)
    threading.Thread(target=_save, daemon=True).start()


def stop() -> None:
    """Save what was measured."""
    while _measured:
        measured = _measured.pop()
        measured.stop()
        measured.save()


def _save() -> None:
    while True:
        time.sleep(_SAVE_S)
        for measured in _measured:
            measured.save()


def _exit(code: int) -> None:
    stop()
    _leave(code)


def _after_fork() -> None:
    sys.settrace(None)
    start()


if _config:
    _leave, os._exit = os._exit, _exit
    os.register_at_fork(after_in_child=_after_fork)
    if not (_is_pytest or _is_rays or "resource_tracker" in _line):
        start()
