"""The page of ``raycomp compare``: differences, their intervals, and examples that part the two models."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.report import run as record
from raycomp.report.markup import Html, tag
from raycomp.report.page import draw_table, draw_warnings, frame, section
from raycomp.report.photos import make_thumbnail
from raycomp.table import Table, number
from raycomp.train.page import LOSS, draw_metric

_LEAD = (
    "The same examples, one by one; a difference is the second's figure minus the first's. Its interval, "
    "95 %, counts the examples of one image together; McNemar's test takes each for itself. Of twenty "
    "differences that are none, one lies outside its interval by chance."
)


def render_compare(
    run: Mapping[str, Any],
    models: Sequence[Mapping[str, Any]],
    figures: Sequence[Table],
    partings: Sequence[Any],
    photos: Mapping[tuple[str, str], bytes],
    losses: Sequence[Mapping[str, np.ndarray] | None],
) -> str:
    """Return the page as text to be written as UTF-8.

    ``models``: their dials. ``figures``: a table for each benchmark and metric. ``partings``: examples, with
    images by benchmark and name in ``photos``. ``losses``: the metrics of each model's own training.
    """
    body = [
        _draw_header(models, run["funnel"]),
        draw_warnings(run["warnings"]),
        section("Figures", tag("p", _LEAD, class_="lead")),
        *(draw_table(one) for one in figures),
        _draw_partings(partings, photos),
        _draw_losses(losses),
        *record.draw_run(run),
    ]
    return frame("raycomp: two models compared", body)


def _draw_header(models: Sequence[Mapping[str, Any]], funnel: Mapping[str, Any]) -> Html:
    told = [
        tag("p", tag("b", which), tag("span", model["name"]), tag("span", model["weights"]), class_="eyebrow")
        for which, model in zip(("first", "second"), models, strict=True)
    ]
    num, num_all = funnel["kept"], funnel["read"]
    said = " common rows." if num == num_all else f" common rows of {number(num_all)}."
    title = tag("h1", "Compared on ", tag("b", number(num)), tag("span", said, class_="quiet"))
    return tag("header", tag("p", tag("b", "raycomp"), " compare", class_="eyebrow"), title, *told)


def _draw_partings(partings: Sequence[Any], photos: Mapping[tuple[str, str], bytes]) -> Html | None:
    if not partings:
        return None
    text = "The clearest ones: by how much each model prefers the true caption to the false one, in cosines."
    groups: dict[str, list[Any]] = {}
    for parting in partings:
        which = "first" if parting.first > 0 else "second"
        groups.setdefault(f"{parting.benchmark}: only the {which} is right", []).append(parting)
    drawn = []
    for title, own in groups.items():
        cards = (_draw_card(parting, photos.get((parting.benchmark, parting.image))) for parting in own)
        drawn += [tag("h3", title), tag("div", *cards, class_="cards")]
    return section("Where they part", tag("p", text, class_="lead"), *drawn)


def _draw_card(parting: Any, data: bytes | None) -> Html:
    uri = make_thumbnail(data) if data else None
    missing = tag("span", "unreadable image" if data else "no image")
    scores = (("first", parting.first), ("second", parting.second))
    text = [
        tag("p", tag("b", "true", class_="badge"), parting.positive, class_="caption", dir="auto"),
        tag("p", tag("span", "false", class_="badge quiet"), parting.negative, class_="caption", dir="auto"),
        *(tag("p", tag("span", name), tag("b", number(lead)), class_="score") for name, lead in scores),
        tag("p", f"{parting.split} {parting.id}", class_="quiet uid"),
    ]
    return tag(
        "article",
        tag("div", tag("img", src=uri, alt="") if uri else missing, class_="photo"),
        tag("div", *text, class_="text"),
        class_="card kept-card" if parting.second > 0 else "card dropped-card",
    )


def _draw_losses(losses: Sequence[Mapping[str, np.ndarray] | None]) -> Html | None:
    drawn = [
        draw_metric(f"Loss of the {which}", "", metrics, LOSS)
        for which, metrics in zip(("first", "second"), losses, strict=True)
        if metrics
    ]
    return section("How their trainings went", tag("div", *drawn, class_="pair")) if drawn else None
