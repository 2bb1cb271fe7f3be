"""The page of ``raycomp continual``: what is left of each task, method by method."""

from collections.abc import Mapping, Sequence
from typing import Any

from raycomp.report import run as record
from raycomp.report.markup import Html, tag
from raycomp.report.page import draw_table, draw_warnings, frame, section
from raycomp.table import Table


def render_continual(run: Mapping[str, Any], tables: Sequence[Table], charts: Sequence[Html]) -> str:
    """Return the page as text to be written as UTF-8; ``run`` is the content of run.json."""
    pairs = [tag("div", *charts[i : i + 2], class_="pair") for i in range(0, len(charts), 2)]
    body = [
        _draw_header(run),
        draw_warnings(run["warnings"]),
        section("Figures", *pairs) if charts else None,
        *map(draw_table, tables),
        *record.draw_run(run),
    ]
    return frame("raycomp: continual learning", body)


def _draw_header(run: Mapping[str, Any]) -> Html:
    config, cells = run["config"], run["funnel"]["kept"]
    told = f"{cells} runs on {', '.join(config['stream'])}"
    return tag(
        "header",
        tag("p", tag("b", "raycomp"), " continual", class_="eyebrow"),
        tag("h1", "What is left of task after task: ", tag("b", told)),
    )
