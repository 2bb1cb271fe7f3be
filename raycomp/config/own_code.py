"""Your own code as the value of an option, FILE.py:NAME: a loss, rule, method, benchmark or stream layout.

The file runs on every machine that needs it, which must find it at the same path.
"""

import hashlib
import os
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from textwrap import shorten
from typing import Any

from raycomp.config.check import UserError
from raycomp.config.jobs import in_one_line, run_file


def is_own(value: str) -> bool:
    """Whether a value names an object in a Python file, FILE.py:NAME."""
    return value.rpartition(":")[0].endswith(".py")


def name_own(value: str) -> str:
    """Return NAME of FILE.py:NAME; another value as it is."""
    return value.rpartition(":")[2] if is_own(value) else value


def load_own(option: str, value: str) -> Any:
    """Return the object that FILE.py:NAME names, None if the file has no such name. An unchanged file runs
    once for each option and name in a process.

    Raises ValueError, one line with the option, if there is no such file, or the file itself fails.
    """
    path = find_file(value)
    if not os.path.isfile(path):
        raise ValueError(f"{option}={value!r}: no such file; it must be a Python file, FILE.py:NAME")
    return _load(option, value, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=32)
def _load(option: str, value: str, mtime_ns: int) -> Any:
    path, name = find_file(value), name_own(value)
    with in_one_line(f"{option}={value}", f"define {name}"):
        return getattr(run_file(path), name, None)


def call_own(option: str, value: str, function: Callable, *args: Any) -> Any:
    """Return the result of a user's function. Raises UserError, which names file and line, if it fails."""
    try:
        return function(*args)
    except UserError:
        raise
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        message = shorten(str(error), 300, placeholder=" ...")
        said = f"{type(error).__name__}: {message} ({line.filename}, line {line.lineno})"
        raise UserError(f"{option}={value}: {said}") from error


def fingerprint_own(key: str, value: str) -> dict[str, str]:
    """Return the SHA-256 of the user's file under ``key``; empty for a value that names none."""
    if not is_own(value):
        return {}
    return {key: hashlib.sha256(Path(find_file(value)).read_bytes()).hexdigest()}


def find_file(value: str) -> str:
    """Return FILE.py of FILE.py:NAME."""
    return value.rpartition(":")[0]
