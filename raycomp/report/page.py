"""What every page is made of: one file that holds all it shows and asks nobody for anything."""

import importlib.resources
from collections.abc import Iterable, Sequence

from raycomp.report.markup import Html, tag
from raycomp.report.table import table
from raycomp.table import Table

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def frame(title: str, body: Iterable[object]) -> str:
    """Return a whole page, as text to be written as UTF-8, around its sections."""
    html = tag("html", _draw_head(title), tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{html}\n"


def _draw_head(title: str) -> Html:
    style = (importlib.resources.files("raycomp.report") / "data" / "style.css").read_text("utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )


def section(title: str, *children: object) -> Html:
    """Return a section under its heading."""
    return tag("section", tag("h2", title), *children)


def draw_table(extra: Table) -> Html:
    """Return a caller's own table as a section."""
    note = tag("p", extra.note, class_="lead") if extra.note else None
    return section(extra.title, note, table(extra.columns, extra.rows))


def draw_warnings(warnings: Sequence[str]) -> Html | None:
    if not warnings:
        return None
    parts = [text.partition(": ") for text in warnings]
    items = [tag("li", tag("b", name, colon), text) for name, colon, text in parts]
    return tag("aside", tag("ul", *items), class_="warnings", aria_label="Warnings")
