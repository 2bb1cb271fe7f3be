"""Search spaces: the values that a sweep tries for each option, read from text.

    attribute.keep=grid(1.0,0.8,0.7,0.5) train.learning_rate=loguniform(1e-4,1e-3) select.rule=align_only

An entry is OPTION=grid(A,B,...), whose values are combined with those of all other grids; choice(A,B,...),
uniform(A,B) or loguniform(A,B), which are drawn from; or OPTION=VALUE, which all trials share. Use ``;``
between values that contain a comma.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from raycomp.config.change import as_setting

GRID, CHOICE, UNIFORM, LOGUNIFORM, FIXED = "grid", "choice", "uniform", "loguniform", "fixed"
KINDS = (GRID, CHOICE, UNIFORM, LOGUNIFORM)
_FORM = "OPTION=VALUE, or OPTION= and one of grid(A,B,...), choice(A,B,...), uniform(A,B), loguniform(A,B)"
_ENTRY = re.compile(
    r"(?P<option>[^\s=()]+)=(?:(?P<kind>\w+)\((?P<values>[^()]*)\)|(?P<value>[^\s()]+))(?:\s+|$)"
)


@dataclass(frozen=True)
class Domain:
    """The values tried for one option, as text that ``override`` reads; for a range both ends."""

    kind: str
    values: tuple[str, ...]

    @property
    def is_range(self) -> bool:
        """Whether it holds all numbers between two."""
        return self.kind in (UNIFORM, LOGUNIFORM)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest number of a range."""
        return float(self.values[0]), float(self.values[-1])

    def __str__(self) -> str:
        between = ";" if any("," in value for value in self.values) else ","
        return self.values[0] if self.kind == FIXED else f"{self.kind}({between.join(self.values)})"


def read_space(text: str) -> dict[str, Domain]:
    """Return the values tried for each option. Raises ValueError for an invalid entry, and an empty space."""
    found: dict[str, Domain] = {}
    text, start = text.strip(), 0
    while start < len(text):
        entry = _ENTRY.match(text, start)
        if entry is None:
            raise ValueError(f"space={text[start:]!r}: must be {_FORM}")
        if entry["option"] in found:
            raise ValueError(f"space: names {entry['option']} twice; remove one of them")
        found[entry["option"]] = _read_domain(entry)
        start = entry.end()
    if not found:
        raise ValueError(f"space: is empty, must have an entry: {_FORM}")
    return found


def write_space(space: Mapping[str, Domain]) -> str:
    """Return what ``read_space`` reads."""
    return " ".join(f"{option}={domain}" for option, domain in space.items())


def spell_values(option: str, domain: Domain, read: Callable[[str], Any]) -> Domain:
    """Return the domain of ``option`` with every value in canonical spelling.

    1e-3 and 0.001 become 0.001. ``read`` returns the value of a text.

    Raises ValueError, naming both, if two texts are one value, which would be tried twice.
    """
    found: dict[str, str] = {}
    for text in domain.values:
        spelled = spell_value(text, read(text))
        if spelled in found:
            raise ValueError(
                f"space={option}={domain}: {found[spelled]} and {text} are the same value; remove one of them"
            )
        found[spelled] = text
    return replace(domain, values=tuple(found))


def spell_value(text: str, value: Any) -> str:
    """Return the canonical spelling of the value that was read from ``text``."""
    if isinstance(value, float) and value == 0:
        value = 0.0  # -0.0 is the same number
    return as_setting(value) or text  # a space has no entry for an empty list


def _read_domain(entry: re.Match[str]) -> Domain:
    said, kind = f"space={entry[0].strip()!r}", entry["kind"]
    if kind is None:
        return Domain(FIXED, (entry["value"],))
    if kind not in KINDS:
        raise ValueError(f"{said}: must be one of {', '.join(KINDS)}")
    between = ";" if ";" in entry["values"] else ","
    domain = Domain(kind, tuple(value.strip() for value in entry["values"].split(between)))
    if not all(domain.values):
        raise ValueError(f"{said}: must have a value before and after each {between!r}")
    if len({*domain.values}) < len(domain.values):
        raise ValueError(f"{said}: must have different values")
    if not domain.is_range:
        return domain
    try:
        low, high = map(float, domain.values)
        fits = isfinite(low) and isfinite(high) and low < high and (kind == UNIFORM or low > 0)
    except ValueError:
        fits = False
    if not fits:
        above = ", above 0" if kind == LOGUNIFORM else ""
        raise ValueError(f"{said}: must have two finite numbers{above}, the larger one last")
    return domain
