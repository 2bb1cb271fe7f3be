"""The description of an option: its path, type, default, help text and marks.

A mark is metadata of a dataclass field; the mark of a group applies to all its options.
"""

import ast
import inspect
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any

# Results do not depend on it: a run resumes with any value, and the value is not part of a run's identity.
FREE = {"free": True}
# Scores do not depend on it: ``select`` may change it.
SELECT = {"select": True}
# ``update`` may change it: it needs at most the text tower for rows that have an alignment.
UPDATE = {"update": True}
# It names stored data. Names are made absolute before a run starts (data/whole.py). The values are: the spec
# of inputs; a file, or else the name of something; a folder if it has a slash, or else the name of something;
# a folder under any name; FILE.py:NAME, or else the name of something.
INPUT, FILE, FOLDER, PLACE, CODE = ({"path": name} for name in ("input", "file", "folder", "place", "code"))
# It holds a share, or names an input.
SHARE_OR_INPUT = {"path": "share_or_input"}

# An option of this type accepts 90, 30s, 10m or 2h.
Seconds = Annotated[float, "seconds"]

# An option of this type accepts a number, or the minimum and the maximum: 4, 1..8.
Span = Annotated[int | str, "number or MIN..MAX"]

# An option of this type holds further arguments of a library, text by name: llm.engine.NAME=VALUE.
Arguments = Annotated[dict[str, str], "arguments"]

_NAMES = {
    str: "text",
    bool: "bool",
    int: "int",
    float: "float",
    Seconds: "seconds",
    Span: "N or MIN..MAX",
    Arguments: "NAME=VALUE",
}


@dataclass(frozen=True)
class Option:
    """One option of a config, or a group of them; ``owner`` is the dataclass that has it as a field."""

    path: str
    hint: Any
    default: Any
    owner: type
    marks: Mapping[str, Any]

    @property
    def group(self) -> Any:
        """The dataclass of a group, None of a single option."""
        return find_group(self.hint)

    @property
    def text(self) -> str:
        """The docstring below the field, which may be inherited, or else its group's; empty if the source is
        not available."""
        name, kinds = self.path.rpartition(".")[2], filter(is_dataclass, self.owner.__mro__)
        texts = (_read_texts(kind.__module__).get((kind.__name__, name)) for kind in kinds)
        own = next(filter(None, texts), None)
        return " ".join((own or (self.group.__doc__ if self.group else "")).split())


def list_options(kind: Any, mark: str | None = None) -> list[Option]:
    """Return the options of a config class, or those that have a mark, in the order of their fields."""
    options = (option for option in iterate_options(kind) if not option.group)
    return [option for option in options if mark is None or mark in option.marks]


def iterate_options(kind: Any, within: Option | None = None) -> Iterator[Option]:
    """Yield the groups and options of a config class, a group before its options."""
    hints = typing.get_type_hints(kind, include_extras=True)
    default = (within and within.default) or kind()
    prefix, marks = (f"{within.path}.", within.marks) if within else ("", {})
    for one in fields(kind):
        value = getattr(default, one.name)
        option = Option(prefix + one.name, hints[one.name], value, kind, {**marks, **one.metadata})
        yield option
        if option.group:
            yield from iterate_options(option.group, option)


def is_marked(kind: Any, path: str, mark: str) -> bool:
    """Whether the option at ``path``, or a group above it, has a mark; an unknown path takes its group's."""
    name, _, below = path.partition(".")
    found = next((one for one in fields(kind) if one.name == name), None)
    if found is None or mark in found.metadata:
        return found is not None
    group = find_group(typing.get_type_hints(kind)[name])
    return bool(group) and is_marked(group, below, mark)


def split_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without its None, and whether it has one."""
    choices = typing.get_args(hint)
    if type(None) not in choices:
        return hint, False
    return next(one for one in choices if one is not type(None)), True


def find_group(hint: Any) -> Any:
    """Return the dataclass that a field of this type holds, None if it holds a value."""
    kind, _ = split_none(hint)
    return kind if is_dataclass(kind) else None


def name_type(hint: Any) -> str:
    """Return the name of a type for readers: float, int or none, tuple of text."""
    kind, is_optional = split_none(hint)
    if typing.get_origin(kind) is tuple:
        return f"tuple of {name_type(typing.get_args(kind)[0])}"
    return _NAMES.get(kind, "group") + " or none" * is_optional


@lru_cache
def _read_texts(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings below the fields of a module's classes; only the source has them."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {
        (node.name, before.target.id): after.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for before, after in zip(node.body, node.body[1:], strict=False)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
