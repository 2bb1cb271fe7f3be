"""The demo's page: what was done, what came of it, and where each step's own report is."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raycomp.report.markup import Html, join, tag
from raycomp.report.page import draw_table, frame, section
from raycomp.table import Estimate, Table, number

INDEX = "index.html"


def render_demo(
    learned: Mapping[str, Any],
    runs: Mapping[str, Mapping[str, Any]],
    means: tuple[Estimate, Estimate],
    told: Mapping[str, str],
    figures: Sequence[Table],
) -> str:
    """Return the page as text to be written as UTF-8; its links are relative.

    ``learned``: the tiny CLIP's ``losses`` by step and ``num_train`` pairs. ``runs``: run.json by folder.
    ``means``: the mean accuracy before and after NegCLIP. ``told``: sentences by what they are about.
    """
    sentences = (tag("p", tag("b", name, ": "), text, class_="lead") for name, text in told.items())
    body = [
        _draw_header(means),
        section("What was done", tag("ol", *_list_steps(learned, runs))),
        section("What came of it", *sentences),
        *(draw_table(one) for one in figures),
    ]
    return frame("raycomp: the demo", body)


def _draw_header(means: tuple[Estimate, Estimate]) -> Html:
    values = " to ".join(number(one.value, 3) for one in means)
    told = " on scenes that no training saw, before and after hard negatives."
    return tag(
        "header",
        tag("p", tag("b", "raycomp"), " demo", class_="eyebrow"),
        tag("h1", "The little world: accuracy ", tag("b", values), tag("span", told, class_="quiet")),
    )


def _list_steps(learned: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]]) -> Iterator[Html]:
    curated, written, taught = (runs[name] for name in ("curated", "negatives", "negclip"))
    read, kept = (number(curated["funnel"][name]) for name in ("read", "kept"))
    steps, more = number(len(learned["losses"])), number(taught["steps"])
    asked = number(runs["compared"]["funnel"]["read"])
    yield _draw_step(
        f"A tiny CLIP learned from {number(learned['num_train'])} rendered scenes with true captions, in "
        f"{steps} steps."
    )
    yield _draw_step(
        f"It scored {read} other pairs, some with a planted fault; {kept} were kept.", curated="curation"
    )
    yield _draw_step(
        f"Rules changed their captions into {number(written['written'])} hard negatives.",
        negatives="negatives",
    )
    yield _draw_step(
        f"NegCLIP went on from the tiny CLIP: {more} steps of {number(taught['batch_size'])} kept pairs and "
        f"their negatives, in {number(taught['train_s'], 0)} s.",
        negclip="training",
    )
    names = {"evaluated/clip": "before", "evaluated/negclip": "after", "compared": "the two compared"}
    yield _draw_step(
        f"Both sat an exam of {asked} questions about scenes that nothing else has seen.", **names
    )


def _draw_step(text: str, **reports: str) -> Html:
    links = (tag("a", name, href=f"{folder}/report.html") for folder, name in reports.items())
    return tag("li", text, " " if reports else None, join(links, ", "))
