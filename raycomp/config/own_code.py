"""The user's own Python: config files, and code as the value of an option, FILE.py:NAME.

The file runs on every machine that needs it, which must find it at the same path.
"""

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import isfunction, signature
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any

from raycomp.config.options import UserError


def load_job(name: str) -> Any:
    """Return the result of ``FILE.py:VARIANT``; without a variant, of its function ``config``.

    Raises ValueError if there is no such file or function, or the config file itself fails or ends Python.
    """
    path, _, variant = name.partition(":")
    variant = variant or "config"
    if not Path(path).is_file() or Path(path).suffix != ".py":
        raise ValueError(
            f"{path}: no such config file; it must be FILE.yaml, FILE.json, FILE.py or FILE.py:VARIANT"
        )
    with in_one_line(name, "return a config"):
        module = run_file(path)
        make = getattr(module, variant, None)
        config = make() if callable(make) else None
    if not callable(make):
        # The file's own functions without parameters, in their order.
        own = [one for one in vars(module).values() if getattr(one, "__module__", None) == module.__name__]
        names = [one.__name__ for one in own if isfunction(one) and not signature(one).parameters]
        known = ", ".join(names) or "none"
        raise ValueError(f"{name}: {path} has no function {variant!r}, it has {known}")
    return config


def run_file(path: str) -> ModuleType:
    """Return a Python file as a module; raises the exceptions of the file."""
    spec = importlib.util.spec_from_file_location(f"job_{Path(path).stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the config file look up their types there
    spec.loader.exec_module(module)
    return module


@contextmanager
def in_one_line(name: str, instead: str) -> Iterator[None]:
    """Raise ValueError, which names the user's file, if that file fails or ends Python in the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        raise ValueError(f"{name}: ends Python by exit({error.code!r}); {instead} instead") from error
    except BaseException as error:
        if type(error) is ValueError:
            raise
        raise ValueError(f"{name}: {type(error).__name__}: {error}") from error


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
