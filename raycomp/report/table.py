"""A table as HTML; its cells are values, or markup where a page draws them itself."""

from collections.abc import Iterable, Sequence
from typing import Any

from raycomp.report.markup import Html, tag
from raycomp.table import Column, Estimate, as_columns, is_number, write_cell


def table(columns: Sequence[str | Column], rows: Iterable[Sequence[object]], **attributes: object) -> Html:
    """Return a table in its own scrolling box; a column's heading stands as its first row's cell does.

    A cell that is a <td> already stays as it is.
    """
    columns = as_columns(columns)
    body = [[_draw_cell(*pair) for pair in zip(row, columns, strict=True)] for row in rows]
    aligned = [c.startswith('<td class="num') for c in body[0]] if body else [False] * len(columns)
    head = [
        tag("th", column.head, scope="col", class_="num" if right else None)
        for column, right in zip(columns, aligned, strict=True)
    ]
    rows = tag("thead", tag("tr", *head)), tag("tbody", *(tag("tr", *row) for row in body))
    return tag("div", tag("table", *rows, **attributes), class_="scroll")


def _draw_cell(value: Any, column: Column) -> Html:
    """Return one table cell: numbers and estimates to the right, text to the left."""
    if isinstance(value, Html):
        return value if value.startswith("<td") else tag("td", value)
    chance = value.chance if isinstance(value, Estimate) else None
    drawn = None if chance is None else _draw_estimate(value, chance)
    style = "num" if is_number(value) else None
    return tag("td", drawn, write_cell(value, column.digits), class_=style)


def _draw_estimate(estimate: Estimate, chance: float) -> Html:
    """Draw the interval on an axis from 0 to 1, 100 units wide, with a mark at ``chance``."""

    def across(share: float) -> str:
        return f"{100 * share:.1f}"

    at = across(chance)
    parts = [
        tag("line", x1=0, x2=100, y1=8, y2=8, class_="axis"),
        tag("line", x1=at, x2=at, y1=2, y2=14, class_="axis"),
    ]
    if estimate.low <= estimate.high:
        low, high = across(estimate.low), across(estimate.high)
        parts.append(tag("line", x1=low, x2=high, y1=8, y2=8, class_="interval"))
    if 0 <= estimate.value <= 1:
        parts.append(tag("circle", cx=across(estimate.value), cy=8, r=3.5, class_="estimate"))
    return tag("svg", *parts, viewBox="-4 0 108 16", class_="spark", aria_hidden="true")
