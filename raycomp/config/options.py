"""What an option knows of itself: its path, type, default, sentence and marks.

A mark is metadata of a dataclass field; the mark of a group is that of all its options.
"""

import ast
import inspect
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any

# No result depends on it: a run goes on whatever it is, and takes no part in telling two runs apart.
FREE = {"free": True}
# No score depends on it: ``select`` may change it.
SELECT = {"select": True}
# It names what lies in storage, by a name that is made whole before a run begins (data/whole.py): the spec
# of inputs; a file, or else the name of something; a folder if it has a slash, or else the name of something;
# a folder, whatever it is called; FILE.py:NAME, or else the name of something.
INPUT, FILE, FOLDER, PLACE, CODE = ({"path": name} for name in ("input", "file", "folder", "place", "code"))

# An option of this type takes 90, 30s, 10m or 2h.
Seconds = Annotated[float, "seconds"]

# An option of this type takes a number, or the least and the most: 4, 1..8.
Span = Annotated[int | str, "number or MIN..MAX"]

# A dial of this type holds what a library takes beyond our own dials, text by name: llm.engine.NAME=VALUE.
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
        """The docstring under the field, or else its group's; nothing where there is no source to read."""
        own = _read_texts(self.owner.__module__).get((self.owner.__name__, self.path.rpartition(".")[2]))
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
    """Whether the dial at ``path``, or a group that it is in, has a mark; an unknown one has its group's."""
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
    """Return the dataclass that a field of this type holds, None where it holds a value."""
    kind, _ = split_none(hint)
    return kind if is_dataclass(kind) else None


def name_type(hint: Any) -> str:
    """Return a type as a reader says it: float, int or none, tuple of text."""
    kind, is_optional = split_none(hint)
    if typing.get_origin(kind) is tuple:
        return f"tuple of {name_type(typing.get_args(kind)[0])}"
    return _NAMES.get(kind, "group") + " or none" * is_optional


@lru_cache
def _read_texts(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings under the fields of a module's classes, which only its source has."""
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
