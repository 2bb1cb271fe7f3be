"""The description of an option, and the checks of user input: an error names field, value and range.

A mark is metadata of a dataclass field; the mark of a group applies to all its options. The check of a value
is metadata too: ``field(default=1, metadata=FREE | within("between 1 and 16"))``.
"""

import ast
import inspect
import operator
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import lru_cache, partial
from math import copysign, inf
from typing import Annotated, Any, ClassVar, NamedTuple

MOST = 10_000_000
"""Maximum of options that count rows, scenes or steps: a larger value is a typing error."""
MOST_WHOLE = 2**53 - 1
"""Maximum magnitude of whole-number options: every json reader and every array can hold these."""
_MOST_DIGITS = len(str(MOST_WHOLE))


class UserError(ValueError):
    """An error found by a worker that the user can fix; a plain ValueError from there is a bug."""


class DryRun(Exception):
    """Ends a dry run after all checks; its text reports what would run and what it costs."""


class Terminated(KeyboardInterrupt):
    """A signal, by number, asked the process to end; handled like an interrupt, except for the exit code."""

    @property
    def exit_code(self) -> int:
        """The exit code that shells and clusters expect of such a process: 143 after SIGTERM."""
        return 128 + self.args[0]


class TooMuchBadData(Exception):
    """More of the input is bad than ``max_bad_fraction`` allows, or missing than ``max_missing_fraction``."""


class ClusterFailed(Exception):
    """Ray did not start, or lost nodes, workers or its head, so that the run cannot continue on it now."""

    exit_code = 5


class LeaseLost(Exception):
    """Another run took over the output folder; nothing more may be committed there."""


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless an option is a share, 0 to 1; -0.0 is refused as a duplicate of 0.0."""
    wanted = f"between 0 and 1, such as {value / 100:g}" if 1 < value <= 100 else "between 0 and 1"
    check(0 <= value <= 1 and copysign(1, value) > 0, name, value, wanted)


def read_share_or_none(value: str | float | None) -> float | None:
    """Return the number that a value is, none where it is none, as the name of an input."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def check_choice(name: str, value: str, choices: Sequence[str], more: str = "") -> None:
    """Raise ValueError, naming the closest valid value, unless an option has a valid value."""
    if value not in choices:
        by_lower = {choice.lower(): choice for choice in choices}
        closest = get_close_matches(str(value).lower(), by_lower, 1)
        hint = f"; the closest is {by_lower[closest[0]]}" if closest else ""
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(choices)}{more}{hint}")


def read_span(name: str, value: int | str) -> tuple[int, int]:
    """Return the least and the most of an option that holds N or MIN..MAX.

    Raises ValueError unless both are whole numbers and 1 <= MIN <= MAX.
    """
    least, dots, most = str(value).partition("..")
    parts = (least, most if dots else "1")
    fits = all(part.isdecimal() and part.isascii() and len(part) < _MOST_DIGITS for part in parts)
    span = (int(least), int(most or least)) if fits else (0, 0)
    check(1 <= span[0] <= span[1], name, value, "N or MIN..MAX, whole numbers, at least 1")
    return span


def check(condition: bool, name: str, value: Any, wanted: str) -> None:
    """Raise ValueError unless an option has a valid value."""
    if not condition:
        raise ValueError(f"{name}={value!r}: must be {wanted}")


class Machine(NamedTuple):
    """A kind of machine and what an hour of it costs."""

    name: str
    cpus: int
    gpus: int
    price_per_hour: float


def read_machine(name: str, value: str) -> Machine:
    """Parse NAME:CPUS:GPUS:PRICE. Raises ValueError naming the option."""
    parts = value.split(":")
    try:
        machine = Machine(parts[0], int(parts[1]), int(parts[2]), float(parts[3]))
        _, cpus, gpus, price = machine
        fits = len(parts) == 4 and cpus >= 1 and gpus >= 0 and 0 <= price < inf
    except (ValueError, IndexError):
        fits = False
    check(fits, name, value, "NAME:CPUS:GPUS:PRICE, as in g6.4xlarge:16:1:1.32")
    return machine


def read_label(name: str, value: str) -> tuple[str, str]:
    """Return key and value of KEY=VALUE. Raises ValueError naming the option."""
    key, equals, label = value.partition("=")
    check(bool(key and equals and label), name, value, "KEY=VALUE, as in ray.io/market-type=on-demand")
    return key, label


def checked_by(function: Callable[[str, Any], object], wanted: str = "") -> dict[str, Any]:
    """Return the metadata of a field whose value ``function`` checks, given the option's name and the value.

    A tuple is checked entry by entry; none is not checked. ``wanted`` are the valid values, for help.
    """
    return {"check": function, "wanted": wanted}


_BOUND = re.compile(r"(at least|at most|above|below|between|from|and|to|) ?(-?\d[\d.e+-]*|inf)")
_HOLDS = {
    **dict.fromkeys(("at least", "between", "from", ""), operator.ge),
    **dict.fromkeys(("at most", "and", "to"), operator.le),
    "above": operator.gt,
    "below": operator.lt,
}


def within(wanted: str) -> dict[str, Any]:
    """Return the metadata of a number with a range, in the words of its error.

    "between 1 and 64", "0 to 100", "from 0 to below 1", "at least 1", "above 0, and finite".
    """
    found = _BOUND.findall(wanted.replace(",", "").replace("finite", "below inf"))
    bounds = [(_HOLDS[word], float(number)) for word, number in found]

    def check_range(name: str, value: float) -> None:
        check(all(holds(value, bound) for holds, bound in bounds), name, value, wanted)

    return checked_by(check_range, wanted)


def count_from(least: int, most: int = MOST) -> dict[str, Any]:
    """Return the metadata of a whole number from ``least`` to ``most``."""
    return within(f"between {least:,} and {most:,}")


def one_of(choices: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of a text with few valid values."""
    checked = checked_by(partial(check_choice, choices=choices), f"one of {', '.join(choices)}")
    return {**checked, "choices": tuple(choices)}


SHARE = checked_by(check_share, "between 0 and 1")
NUM_PIXELS = within("between 1 and 178,956,970")
"""Pillow refuses larger images."""
RATE, WEIGHT = within("above 0, and at most 1e+30"), within("between 0 and 1,000,000")
"""Learning rates; weight decays and weights of losses: their products stay within fp32."""


@dataclass(frozen=True)
class OptionGroup:
    """The base of config dataclasses: a new one checks the fields whose metadata have a check.

    ``class AlignConfig(OptionGroup, name="align")`` is named in errors as align.keep.
    """

    _prefix: ClassVar[str] = ""

    def __init_subclass__(cls, name: str = "") -> None:
        cls._prefix = f"{name}." if name else ""

    def __post_init__(self) -> None:
        for one in fields(self):
            if check_value := one.metadata.get("check"):
                value = getattr(self, one.name)
                for entry in value if isinstance(one.default, tuple) else (value,):
                    if entry is not None:
                        check_value(self._prefix + one.name, entry)

    def check_typed(self, options: Mapping[str, Any]) -> Any:
        """Return the config. Raises ValueError where an option that was typed has no effect; defaults may."""
        return self


# Results do not depend on it: a run resumes with any value, and the value is not part of a run's identity.
FREE = {"free": True}
# Scores do not depend on it: ``select`` may change it.
SELECT = {"select": True}
# ``update`` may change it: it needs at most the text tower for rows that have an alignment.
UPDATE = {"update": True}
# It names stored data. Names are made absolute before a run starts (data/inputs.py). The values are: the spec
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
        return get_group(self.hint)

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
    group = get_group(typing.get_type_hints(kind)[name])
    return bool(group) and is_marked(group, below, mark)


def split_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without its None, and whether it has one."""
    choices = typing.get_args(hint)
    if type(None) not in choices:
        return hint, False
    return next(one for one in choices if one is not type(None)), True


def get_group(hint: Any) -> Any:
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
