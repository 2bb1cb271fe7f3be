"""HTML built so that text cannot become markup: whatever is not ``Html`` is escaped."""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

VOID_TAGS = frozenset({"meta", "img", "path", "line", "rect", "circle"})
# What XML and HTML forbid: controls other than tab and new line, lone surrogates, non-characters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Return ``value`` as markup: ``Html`` as it is, all else escaped, forbidden characters as U+FFFD."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(_FORBIDDEN.sub("\ufffd", str(value)), quote=True))


def join(children: Iterable[object], separator: str = "") -> Html:
    """Return the children, escaped, one after another; None is skipped."""
    return Html(separator.join(escape(child) for child in children if child is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return one element. ``class_`` writes class, ``data_x`` writes data-x; None and False leave one out.

    Names are the caller's own words and are not escaped; values and children are.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape("" if value is True else value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID_TAGS and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval, in [0, 1] or NaN, drawn on a small axis with a mark at ``chance``."""

    value: float
    low: float
    high: float
    chance: float = 0.5


@dataclass(frozen=True)
class Table:
    """A section of the report that holds one table. Cells are text, numbers, ``Interval`` or None."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


def number(value: float | int | None, digits: int = 4) -> str:
    """Return a number as it is read: thousands set apart, floats to ``digits`` places, a true minus sign."""
    if value is None or value != value:
        return "\u2013"
    text = f"{value:,}" if isinstance(value, Integral) else f"{value:z,.{digits}f}"
    return text.replace("-", "\u2212")


def percent(part: int, whole: int) -> str:
    """Return ``part`` of ``whole`` as "50.0 %"; a dash where the whole is 0."""
    return f"{100 * part / whole:.1f}\u00a0%" if whole else "\u2013"


def numeral(text: str) -> Html:
    """Return a table cell of a number that is written already."""
    return tag("td", text, class_="num")


def cell(value: object) -> Html:
    """Return one table cell: numbers and intervals to the right, text to the left."""
    if isinstance(value, Interval):
        bounds = f" [{number(value.low, 3)}, {number(value.high, 3)}]" if value.low <= value.high else ""
        return tag("td", _interval(value), number(value.value, 3), bounds, class_="num")
    if value is None or (isinstance(value, Real) and not isinstance(value, bool)):
        return numeral(number(value))
    return tag("td", value)


def table(columns: Sequence[object], rows: Iterable[Sequence[object]], **attributes: object) -> Html:
    """Return a table in its own scrolling box; a column's heading stands as its first row's cell does."""
    body = [[part if _is_cell(part) else cell(part) for part in row] for row in rows]
    aligned = [c.startswith('<td class="num') for c in body[0]] if body else [False] * len(columns)
    head = [
        tag("th", name, scope="col", class_="num" if right else None)
        for name, right in zip(columns, aligned, strict=True)
    ]
    rows = tag("thead", tag("tr", *head)), tag("tbody", *(tag("tr", *row) for row in body))
    return tag("div", tag("table", *rows, **attributes), class_="scroll")


def _is_cell(part: object) -> bool:
    return isinstance(part, Html) and part.startswith("<td")


def _interval(estimate: Interval) -> Html:
    """Draw the interval on an axis from 0 to 1, 100 units wide."""

    def across(share: float) -> str:
        return f"{100 * share:.1f}"

    parts = [
        tag("line", x1=0, x2=100, y1=8, y2=8, class_="axis"),
        tag("line", x1=across(estimate.chance), x2=across(estimate.chance), y1=2, y2=14, class_="axis"),
    ]
    if estimate.low <= estimate.high:
        low, high = across(estimate.low), across(estimate.high)
        parts.append(tag("line", x1=low, x2=high, y1=8, y2=8, class_="interval"))
    if 0 <= estimate.value <= 1:
        parts.append(tag("circle", cx=across(estimate.value), cy=8, r=3.5, class_="estimate"))
    return tag(
        "svg",
        *parts,
        viewBox="-4 0 108 16",
        class_="spark",
        aria_hidden="true",
    )
