"""The page of ``raycomp study``: the contrasts named in advance, then the rest, with figures to keep."""

from collections.abc import Mapping, Sequence
from typing import Any

from raycomp.loops.study.compare import Compared, list_groups
from raycomp.loops.study.results import Results
from raycomp.loops.study.tables import METRICS, mean_of, say_verdicts
from raycomp.report import run as record
from raycomp.report.charts import Mark, intervals
from raycomp.report.markup import Html, tag
from raycomp.report.page import draw_table, draw_warnings, frame, section
from raycomp.table import Estimate, Table


def draw_figures(results: Results, planned: Sequence[Compared]) -> dict[str, Html]:
    """Return the figures of the page by the name of the file that each is kept in."""
    groups = list_groups(results)
    figures = {}
    if planned:
        rows = [
            (f"{one.first} - {one.second}", Estimate(one.by_seed.value, one.by_seed.low, one.by_seed.high))
            for one in planned
        ]
        title = "Differences in the primary metric"
        figures["contrasts"] = intervals(title, rows, "points, 95 % over seeds", Mark(0.0))
    for name in METRICS:
        rows = [(group, mean_of(results, group, METRICS[name])) for group in groups]
        figures[name.replace(" ", "-").replace("@", "")] = intervals(_title(name), rows, "percent")
    return figures


def _title(metric: str) -> str:
    return f"Every cell: {metric}"


def render_study(
    run: Mapping[str, Any], tables: Sequence[Table], figures: Mapping[str, Html], planned: Sequence[Compared]
) -> str:
    """Return the page as text to be written as UTF-8; ``run`` is the content of run.json."""
    verdicts = [tag("li", line) for line in say_verdicts(planned)]
    drawn = list(figures.values())
    charts = [tag("div", *drawn[i : i + 2], class_="pair") for i in range(0, len(drawn), 2)]
    body = [
        _draw_header(run),
        draw_warnings(run["warnings"]),
        section("What was decided", tag("ul", *verdicts)) if verdicts else None,
        *(draw_table(one) for one in tables[:1]),
        section("Figures", *charts),
        *(draw_table(one) for one in tables[1:]),
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
