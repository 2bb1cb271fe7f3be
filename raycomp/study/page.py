"""The page of ``raycomp study``: the contrasts named in advance, then the rest."""

from collections.abc import Mapping, Sequence
from typing import Any

from raycomp.report import run as record
from raycomp.report.markup import Html, tag
from raycomp.report.page import draw_table, draw_warnings, frame, section
from raycomp.table import Table


def render_study(run: Mapping[str, Any], tables: Sequence[Table], charts: Sequence[Html]) -> str:
    """Return the page as text to be written as UTF-8; ``run`` is the content of run.json."""
    verdicts = [tag("li", line) for line in run["verdicts"]]
    pairs = [tag("div", *charts[i : i + 2], class_="pair") for i in range(0, len(charts), 2)]
    body = [
        _draw_header(run),
        draw_warnings(run["warnings"]),
        section("What was decided", tag("ul", *verdicts)) if verdicts else None,
        draw_table(tables[0]),
        section("Figures", *pairs),
        *map(draw_table, tables[1:]),
        *record.draw_run(run),
    ]
    return frame("raycomp: the study on the little world", body)


def _draw_header(run: Mapping[str, Any]) -> Html:
    config, cells = run["config"], run["funnel"]["kept"]
    told = f"{cells} trainings of {config['steps']} steps on {config['worlds']} worlds"
    return tag(
        "header",
        tag("p", tag("b", "raycomp"), " study", class_="eyebrow"),
        tag("h1", "Which pairs and which negatives teach composition: ", tag("b", told)),
    )
