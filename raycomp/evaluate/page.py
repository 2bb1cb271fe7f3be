"""The page of ``raycomp evaluate``: every figure with its interval, and what is reached without looking."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.report import run as record
from raycomp.report.markup import Html, tag
from raycomp.report.page import draw_table, draw_warnings, frame, section
from raycomp.table import Table, number, percent
from raycomp.train.page import LOSS, draw_metric

_LEAD = (
    "Each figure has its 95 % interval, with the examples of one image counted together, and a mark at "
    "chance. Detectable is the least difference that two models as good as this would show on these examples "
    "in four of five comparisons. Controls stand beside it: what the shorter caption, text-only models, "
    "another image and the mean image get right. A benchmark tells of seeing only as far as the model lies "
    "above them."
)


def render_evaluate(
    run: Mapping[str, Any],
    figures: Sequence[Table],
    before: Sequence[Table],
    losses: Mapping[str, np.ndarray] | None = None,
) -> str:
    """Return the page as text to be written as UTF-8.

    ``run``: the content of run.json. ``figures``: a table for each benchmark and metric. ``before``: what is
    wrong with benchmarks' rows. ``losses``: the metrics of the model's own training, where they are known.
    """
    body = [
        _draw_header(run),
        draw_warnings(run["warnings"]),
        section("Figures", tag("p", _LEAD, class_="lead")),
        *(draw_table(one) for one in figures),
        _draw_losses(losses),
        *(draw_table(one) for one in before),
        draw_table(_tell_rows(run["funnel"])),
        *record.draw_run(run),
    ]
    return frame(f"raycomp: evaluated {run['config']['model']['name']}", body)


def _draw_header(run: Mapping[str, Any]) -> Html:
    model, funnel = run["config"]["model"], run["funnel"]
    parts = (model["name"], model["weights"], ", ".join(run["config"]["benchmarks"]))
    told = f" of {number(funnel['read'])} rows scored."
    return tag(
        "header",
        tag("p", tag("b", "raycomp"), " evaluate", *(tag("span", part) for part in parts), class_="eyebrow"),
        tag("h1", "Evaluated: ", tag("b", number(funnel["kept"])), tag("span", told, class_="quiet")),
    )


def _draw_losses(losses: Mapping[str, np.ndarray] | None) -> Html | None:
    drawn = draw_metric("Loss", "", losses, LOSS) if losses else None
    return drawn and section("How the model's own training went", tag("div", drawn, class_="pair"))


def _tell_rows(funnel: Mapping[str, Any]) -> Table:
    rows = [("read", funnel["read"], percent(funnel["read"], funnel["read"]))]
    rows += [(why, -count, percent(count, funnel["read"])) for why, count in funnel["dropped"].items()]
    rows.append(("scored", funnel["kept"], percent(funnel["kept"], funnel["read"])))
    return Table("From rows read to rows scored", ("Rows", "number", "of read"), rows)
