"""The page of ``raycomp sweep``: what is best, what it is worth on other seeds, how the metric responds."""

from collections.abc import Mapping, Sequence
from typing import Any

from raycomp.report import run as record
from raycomp.report.markup import Html, tag
from raycomp.report.page import draw_table, draw_warnings, frame, section
from raycomp.table import Table


def render_sweep(
    run: Mapping[str, Any], said: Sequence[str], tables: Sequence[Table], charts: Sequence[Html]
) -> str:
    """Return the page as text to be written as UTF-8; ``run`` is the content of run.json."""
    pairs = [tag("div", *charts[i : i + 2], class_="pair") for i in range(0, len(charts), 2)]
    body = [
        _draw_header(run, said),
        draw_warnings(run["warnings"]),
        draw_table(tables[0]),
        section("Response", *pairs) if pairs else None,
        *(draw_table(one) for one in tables[1:] if one.rows),
        *record.draw_run(run),
    ]
    return frame("raycomp: sweep", body)


def _draw_header(run: Mapping[str, Any], said: Sequence[str]) -> Html:
    config = run["config"]
    return tag(
        "header",
        tag("p", tag("b", "raycomp"), " sweep", tag("span", config["space"]), class_="eyebrow"),
        *(tag("h1", tag("b", line)) for line in said),
    )
