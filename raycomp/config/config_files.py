"""Configs as files: YAML or JSON text, read as ``--set`` reads it, or a Python file that returns one."""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from raycomp.config.change import flatten, override_all, to_dict
from raycomp.config.jobs import load_job
from raycomp.config.json_text import parse_json
from raycomp.config.options import Option, iterate_options

YAML, JSON = (".yaml", ".yml"), (".json",)
_WIDTH = 100


def load_config(name: str, kind: Any) -> Any:
    """Return the config of class ``kind`` that a file holds: FILE.yaml, FILE.json or FILE.py[:VARIANT].

    A text file sets options by group and name (``align: {keep: 0.5}``) or by path (``align.keep: 0.5``);
    the others keep their defaults. Raises ValueError, which names the file, for any other content.
    """
    if Path(name).suffix in YAML + JSON:
        return _read_text(name, kind)
    config = load_job(name)
    if type(config) is not kind:
        raise ValueError(f"{name}: returned {type(config).__name__}, must return a {kind.__name__}")
    return config


def save_config(config: Any, path: str) -> None:
    """Write every option with its value into a new file, in YAML each below its description.

    Raises ValueError where the file exists, cannot be written or has another suffix.
    """
    if Path(path).suffix not in YAML + JSON:
        raise ValueError(f"--save-config {path}: must end in {', '.join(YAML + JSON)}")
    values = to_dict(config)
    if Path(path).suffix in JSON:
        text = json.dumps(values, indent=2) + "\n"
    else:
        text = "\n".join(_write_yaml(values, {one.path: one for one in iterate_options(type(config))})) + "\n"
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"--save-config {path}: exists already; name a new file") from None
    except OSError as error:
        raise ValueError(f"--save-config {path}: cannot be written: {error.strerror}") from error


def _read_text(path: str, kind: Any) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    values = _parse_json(path, text) if Path(path).suffix in JSON else _parse_yaml(path, text)
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}: must hold options by name, as in align.keep: 0.5")
    paths = list(flatten(values))
    try:
        return override_all(kind(), dict(_each_once(paths)))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _each_once(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield names with values. Raises ValueError where a name occurs twice: one value would be lost."""
    names = set()
    for name, value in pairs:
        if name in names:
            raise ValueError(f"{name!r}: is set twice; set it once")
        names.add(name)
        yield name, value


def _parse_json(path: str, text: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def _parse_yaml(path: str, text: str) -> Any:
    """Return the content with every value as text, which options read by their type, as they do in --set."""
    import yaml  # only a command with such a file needs it

    class Loader(yaml.BaseLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            pairs = [(self.construct_object(key, deep=True), value) for key, value in node.value]
            if any(not isinstance(name, str) for name, _ in pairs):
                raise ValueError("every name must be text")
            return {name: self.construct_object(value, deep=True) for name, value in _each_once(pairs)}

    try:
        return yaml.load(text, Loader)  # a subclass of BaseLoader makes text, lists and dicts alone
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


def _write_yaml(values: Mapping[str, Any], options: Mapping[str, Option], within: str = "") -> Iterator[str]:
    """Yield the lines of a group's options."""
    import yaml

    indent = "  " * within.count(".")
    for name, value in values.items():
        option = options[within + name]
        yield from textwrap.wrap(
            option.text.replace("``", ""),
            _WIDTH,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}# ",
        )
        if option.group and value is not None:
            yield f"{indent}{name}:"
            yield from _write_yaml(value, options, f"{within}{name}.")
        else:
            plain = list(value) if isinstance(value, tuple) else value
            written = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10**9)
            yield f"{indent}{name}: {written.removesuffix('...' + chr(10)).strip()}"
