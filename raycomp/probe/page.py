"""The page of ``raycomp probe``: its tables with what must be said beside them, its plot, its record."""

from collections.abc import Mapping, Sequence
from typing import Any

from raycomp.report.markup import Html, tag
from raycomp.report.page import draw_table, frame, section
from raycomp.report.run import draw_run
from raycomp.table import Table

_HEADS = {
    "probe overlap": "How much of the benchmarks SWAP, REPLACE and ADD explain",
    "probe composition": "What the text encoder makes of edited captions",
    "probe theory": "What order-blind and order-sensitive encoders learn",
    "probe pas": "What the drops of phrases are worth",
}


def render_probe(run: Mapping[str, Any], blocks: Sequence[Table | str], plot: str | None = None) -> str:
    """Return the page as text to be written as UTF-8; ``plot`` is an SVG file's text, our own."""
    title = f"raycomp {run['kind']}"
    eyebrow = (tag("b", "raycomp"), f" {run['kind']}", tag("span", run["config"]["input"] or "made worlds"))
    body = [
        tag("header", tag("p", *eyebrow, class_="eyebrow"), tag("h1", _HEADS[run["kind"]])),
        _draw_plot(plot) if plot else None,
        *(
            draw_table(block) if isinstance(block, Table) else tag("p", block, class_="lead told")
            for block in blocks
        ),
        *draw_run(run),
    ]
    return frame(title, body)


def _draw_plot(plot: str) -> Html:
    text = "Dashes mark the paper's range; a thin bar is of a split's paraphrases, the null of the thick one."
    return section("In one picture", tag("p", text, class_="lead"), tag("div", Html(plot), class_="scroll"))
