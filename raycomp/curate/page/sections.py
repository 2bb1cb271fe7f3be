"""The sections of the report below the first screen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.core.metrics import Histogram
from raycomp.curate.page.summary import (
    DROP,
    DROPPED,
    SIDES,
    SUPPORTED,
    VALID,
    WORDS,
    Summary,
)
from raycomp.curate.page.words import find_leanings
from raycomp.curate.rules import name_ranking
from raycomp.report.charts import Layer, Mark, bars, histogram, rebin
from raycomp.report.markup import Html, tag
from raycomp.report.page import section
from raycomp.report.table import table
from raycomp.table import Numeral, number, percent
from raycomp.words import (
    ALIGNMENT,
    DROPPED_ALIGNMENT,
    KEPT,
    KINDS,
    MEAN_PAS,
    OK,
    PHRASES,
    SCORE,
    STATUSES,
    UNSEEN,
)

NUM_LEANING = 12
MOST_CAPTION = 80
BOTH_SIDES = (Layer("kept", "kept"), Layer("dropped", "dropped"))
KIND_LAYERS = tuple(Layer(kind, f"kind-{kind}") for kind in KINDS)


def name_score(config: Mapping[str, Any]) -> str:
    """Return what the final gate compared, as a reader says it."""
    attribute = config.get("attribute", {})
    rule, how = config.get("select", {}).get("rule", "cpi"), attribute.get("aggregate", "mean")
    return name_ranking(rule, how, bool(attribute.get("unseen")))


def shade_scale(summary: Summary) -> float:
    """Return the drop at which shading is full: the 95th percentile of |drop|, to two figures; never 0."""
    parts = [part.counts for (measure, _), part in summary.histograms.items() if measure == DROP]
    count_B = np.sum(parts, axis=0)
    if not np.any(count_B):
        return 0.05
    size_B = np.abs((np.arange(len(count_B)) + 0.5) / len(count_B) * 2 - 1)
    order = np.argsort(size_B, kind="stable")
    total_B = np.cumsum(count_B[order])
    return float(f"{size_B[order][np.searchsorted(total_B, 0.95 * total_B[-1])]:.1e}")


def _rows_and_edges(parts: list[Histogram]) -> tuple[np.ndarray, np.ndarray]:
    """Join the histograms' bins to bars; what lies beyond counts in the end bins."""
    count_LF = np.array([part.counts for part in parts])
    count_LF[:, 0] += [part.under for part in parts]
    count_LF[:, -1] += [part.over for part in parts]
    low, high = parts[0].low, parts[0].high
    return rebin(count_LF, low, (high - low) / count_LF.shape[1])


def _draw_sides(
    summary: Summary, measure: str, title: str, x_name: str, marks: Sequence[Mark] = (), whole: bool = False
) -> Html:
    if (measure, KEPT) not in summary.histograms:
        return tag("figure", tag("figcaption", title), tag("p", "No rows.", class_="quiet"), class_="chart")
    counts, edges = _rows_and_edges([summary.histograms[measure, side] for side in SIDES])
    return histogram(title, x_name, BOTH_SIDES, counts, edges, marks, whole=whole)


def _find_alignment_gate(summary: Summary) -> float | None:
    """Return the lowest alignment that passed, where rows were dropped for theirs."""
    return summary.lowest.get(ALIGNMENT) if summary.reasons[DROPPED_ALIGNMENT] else None


def _find_pas_gate(summary: Summary, config: Mapping[str, Any]) -> float | None:
    """Return the mean PAS at which the last gate cut, where that is what it ranked by, up or down."""
    sign = {"mean PAS": 1, "minus mean PAS": -1}.get(name_score(config))
    return sign * summary.lowest[SCORE] if sign and SCORE in summary.lowest else None


def draw_scores(summary: Summary, config: Mapping[str, Any]) -> Html:
    """Return the histograms of alignment and mean PAS, kept against dropped, with the gates."""
    cuts = {ALIGNMENT: _find_alignment_gate(summary), MEAN_PAS: _find_pas_gate(summary, config)}
    marks = {name: () if at is None else (Mark(at, f"gate {number(at)}"),) for name, at in cuts.items()}
    return section(
        "Scores",
        tag(
            "div",
            _draw_sides(summary, ALIGNMENT, "Alignment", "cosine of image and caption", marks[ALIGNMENT]),
            _draw_sides(summary, MEAN_PAS, "Mean PAS", "mean drop of cosine over phrases", marks[MEAN_PAS]),
            class_="pair",
        ),
    )


def draw_kinds(summary: Summary) -> Html | None:
    """Return the phrases by kind: how many, on which side, and the histogram of their drops."""
    if not summary.kinds:
        return None
    rows = []
    for kind in (*KINDS, UNSEEN):
        kept, dropped, valid, supported = (
            summary.kinds[kind, what] for what in (KEPT, DROPPED, VALID, SUPPORTED)
        )
        mean = summary.moments[kind].mean_y if valid else None
        name = f"{kind}, of these" if kind == UNSEEN else kind
        rows.append((name, kept + dropped, kept, dropped, valid, mean, Numeral(percent(supported, valid))))
    columns = ("Kind", "phrases", "kept", "dropped", "with nonce", "mean drop", "drop > 0")
    counts, edges = _rows_and_edges([summary.histograms[DROP, kind] for kind in KINDS])
    chart = histogram(
        "Drops by kind of phrase", "drop of cosine", KIND_LAYERS, counts, edges, y_name="phrases"
    )
    note = (
        "Unseen: the target is nothing that a picture can show, such as a day, a view or a background. Such "
        "phrases are counted under their kind too; the column mean_pas is without them."
    )
    lead = tag("p", note, class_="lead")
    return section("Phrases", lead, tag("div", chart, table(columns, rows), class_="pair"))


def draw_removed(summary: Summary) -> Html | None:
    """Return what selection changed: head nouns, caption length, number of phrases."""
    if not all(side in summary.heads for side in SIDES):
        return None
    heads = [summary.heads[side] for side in SIDES]
    leanings = find_leanings(heads[0], heads[1], NUM_LEANING)
    drawn = [
        (lean.word, lean.z, f"{number(lean.kept)} kept, {number(lean.dropped)} dropped") for lean in leanings
    ]
    note = (
        f"Head nouns of {number(heads[0].total)} phrases in kept and {number(heads[1].total)} in "
        "dropped pairs, where parsed; ranked by the z score of their log-odds (Monroe et al. 2008)."
    )
    lost = max(words.most_lost for words in heads)
    if lost:
        note += f" Rare words were forgotten: a count may lack up to {number(lost)}."
    lengths = tag(
        "div",
        _draw_sides(summary, WORDS, "Caption length", "words", whole=True),
        _draw_sides(summary, PHRASES, "Phrases of a caption", "phrases", whole=True),
        class_="stack",
    )
    words = bars("Head nouns that lean most", drawn, "z score of the log-odds") if drawn else None
    return section(
        "What selection removed", tag("p", note, class_="lead"), tag("div", words, lengths, class_="pair")
    )


def draw_statuses(summary: Summary) -> Html:
    """Return every status with its count and meaning, and a few examples of each but ok."""
    counts = sorted(summary.statuses.items(), key=lambda item: (-item[1], item[0]))
    rows = [
        (tag("td", tag("code", name)), STATUSES.get(name, ""), n, Numeral(percent(n, summary.rows)))
        for name, n in counts
    ]
    examples = [
        (
            tag("td", tag("code", name)),
            sample.shard,
            sample.position,
            sample.key,
            tag("td", _start(sample.caption), dir="auto"),
            tag("td", tag("code", sample.uid)),
        )
        for name, _ in counts
        if name != OK and name in summary.picks
        for sample in summary.picks[name].samples
    ]
    columns = ("Example of", "shard", "position", "key", "caption", "uid")
    return section(
        "Rows by status",
        table(("Status", "meaning", "rows", "of read"), rows),
        tag("details", tag("summary", "Examples"), table(columns, examples)) if examples else None,
    )


def _start(caption: str | None) -> str:
    text = caption or ""
    return text if len(text) <= MOST_CAPTION else text[: MOST_CAPTION - 1] + "\u2026"
