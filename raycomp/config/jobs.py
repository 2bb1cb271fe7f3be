"""The user's own Python files, run and imported by path; config files, whose functions return a config."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any


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
        raise ValueError(f"{name}: {path} has no function {variant!r}, it has {_list_functions(module)}")
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


def _list_functions(module: ModuleType) -> str:
    """Return the names of a config file's own functions without parameters, in their order."""
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    names = (value.__name__ for value in own if isfunction(value) and not signature(value).parameters)
    return ", ".join(names) or "none"
