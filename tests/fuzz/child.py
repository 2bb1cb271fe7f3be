"""Run a property in a process of its own whose memory and processor time are bounded.

``python -m tests.fuzz.child MODULE FUNCTION EXAMPLES MEGABYTES CPU_S``: what is mapped for imports, and for
the module's ``load()`` where it has one, is no part of the megabytes.
"""

import faulthandler
import functools
import importlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("RAYCOMP_FUZZ_SEED", "0"))
# Threads and pools would map far more than they use; nothing may ask the network.
QUIET = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
}
_SHOWN = 8000
# What waits for ever uses no processor time.
_HANGS_S = 1200


def run(function: Callable[[], None], examples: int = 1, megabytes: int = 256, cpu_s: int = 10) -> None:
    """Fail with what ``function`` of a test module said, or died of, under the limits.

    A function with ``@given`` is tried on ``examples`` inputs, which follow from RAYCOMP_FUZZ_SEED, and has
    ``cpu_s`` for each.
    """
    command = [sys.executable, "-m", "tests.fuzz.child", function.__module__, function.__name__]
    command += map(str, (examples, megabytes, cpu_s))
    with tempfile.TemporaryDirectory(prefix="raycomp-fuzz-") as folder:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        named = {"PYTHONPATH": path, "TMPDIR": folder, "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        named["RAYCOMP_FUZZ_SEED"] = str(SEED)
        child = subprocess.run(
            command, cwd=folder, env={**os.environ, **QUIET, **named}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="backslashreplace",
            timeout=_HANGS_S,
        )  # fmt: skip
    code = child.returncode
    if code:
        ending = f"failed with exit code {code}" if code > 0 else f"died of {signal.Signals(-code).name}"
        pytest.fail(
            f"{function.__name__} {ending} with {megabytes} MB and {cpu_s} s of processor time for an input; "
            f"RAYCOMP_FUZZ_SEED={SEED}\n{child.stdout[-_SHOWN:]}",
            pytrace=False,
        )


def _bound(cpu_s: int, megabytes: int | None = None) -> None:
    """Bound the processor's seconds from now on, and what is mapped beyond now."""
    if megabytes is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + cpu_s + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def _fuzz(function: Callable[[], None], examples: int, cpu_s: int) -> Callable[[], None]:
    """Return a property with its number of inputs, seed, and time for each."""
    import hypothesis
    import numpy.random  # noqa: F401  else hypothesis does, with its memory bounded

    inner = function.hypothesis.inner_test

    @functools.wraps(inner)
    def bounded(*args: Any, **kwargs: Any) -> None:
        _bound(cpu_s)
        inner(*args, **kwargs)

    hypothesis.strategies.text().validate()  # builds its table of characters
    function.hypothesis.inner_test = bounded
    settings = hypothesis.settings(
        max_examples=examples, deadline=None, database=None, print_blob=True, report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    return settings(hypothesis.seed(SEED)(function))


def _main(module_name: str, name: str, examples: int, megabytes: int, cpu_s: int) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGXCPU, chain=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module = importlib.import_module(module_name)
    function = getattr(module, name)
    if hasattr(function, "hypothesis"):
        function = _fuzz(function, examples, cpu_s)
    getattr(module, "load", lambda: None)()
    _bound(cpu_s, megabytes)
    function()


if __name__ == "__main__":
    _main(*sys.argv[1:3], *map(int, sys.argv[3:]))
