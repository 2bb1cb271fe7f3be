"""The page of ``raycomp curate`` and ``raycomp select``: its warnings, tables and charts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.config import exact_share
from raycomp.core.metrics import Histogram
from raycomp.curation.config import SelectionRule, find_selection, read_config
from raycomp.curation.correlations import (
    BOTH_SIDES,
    PAPER,
    correlate,
    draw_points,
    report_correlations,
    warn_of_displacement,
)
from raycomp.curation.funnel import FunnelRow, check_funnel, reason_words
from raycomp.curation.rules import PAS
from raycomp.curation.samples import Sample, find_leanings
from raycomp.curation.summary import (
    DROP,
    DROPPED,
    NUM_NEAREST,
    SIDES,
    SUPPORTED,
    VALID,
    WORDS,
    Summary,
    choose_shown,
)
from raycomp.report.charts import Layer, Mark, bars, histogram, rebin
from raycomp.report.markup import Html, tag
from raycomp.report.page import render_page
from raycomp.table import Numeral, Table, number, percent
from raycomp.words import (
    ALIGNMENT,
    DROPPED_ALIGNMENT,
    KEPT,
    KINDS,
    PHRASES,
    SCORE,
    SHARD_STATUSES,
    STATUSES,
    UNSEEN,
)

LOWEST_AUC = 0.6
"""The page warns if the scorer's AUC of matched against shuffled pairs is below this."""
NUM_LEANING = 12
NUM_SHADES = 4


def render_curate(
    summary: Summary,
    photos: Mapping[str, bytes],
    run: Mapping[str, Any],
    funnel: Sequence[FunnelRow],
    extra_tables: Sequence[Table] = (),
) -> str:
    """Return the page as text to be written as UTF-8.

    ``photos``: image bytes by uid, of ``choose_shown(summary).samples``; a missing or unreadable one is a
    grey tile. ``funnel``: as ``make_funnel(summary.reasons)`` returns it; ValueError if its counts do not add
    up from the summary's rows to its kept rows. ``run``: the content of run.json; missing parts are omitted:

    - ``config``: nested dict (``to_dict``), ``versions``: dict, ``fingerprint``: str;
    - ``commands``: purpose -> exact command line;
    - ``phases`` and ``stages``: duration of each phase and utilization of its stages, as ``run/record.py``
      describes them; a phase without ``gpu_busy_share`` had no GPU;
    - ``scorer_check``: {matched_mean, shuffled_mean, auc, n}: cosines of pairs against shuffled pairs;
    - ``warnings``: additional warnings.
    """
    check_funnel(funnel, summary.rows, summary.reasons[KEPT])
    config = run.get("config", {})
    selection = find_selection(read_config(config))
    statuses = _by_count(summary.statuses)
    faults = [name for name, _ in statuses if name in summary.picks]
    return render_page(
        "curation/page.html.jinja",
        run=run,
        summary=summary,
        shown=choose_shown(summary),
        photos=photos,
        funnel=funnel,
        num_shards=sum(summary.statuses[status] for status in SHARD_STATUSES),
        dropped=_by_count(summary.reasons - Counter({KEPT: summary.reasons[KEPT]})),
        warnings=find_warnings(summary, run),
        score=selection.ranking,
        pas=selection.by_pas.ranking,
        scale=shade_scale(summary),
        shade=shade,
        split_caption=split_caption,
        reason_words=reason_words,
        num_nearest=NUM_NEAREST,
        extra_tables=extra_tables,
        scores=_draw_scores(summary, selection),
        has_pool=selection.attribute_share is not None,
        paper=PAPER,
        correlations=report_correlations(correlate(summary, selection), selection.by_pas.ranking),
        scatters=draw_points(summary, selection.by_pas.ranking),
        kinds=_report_kinds(summary),
        drops=_draw_drops(summary) if summary.kinds else None,
        leaning=_draw_leaning(summary),
        lengths=[
            _draw_sides(summary, WORDS, "Caption length", "words", whole=True),
            _draw_sides(summary, PHRASES, "Phrases of a caption", "phrases", whole=True),
        ],
        statuses=statuses,
        meanings=STATUSES,
        examples=[sample for name in faults for sample in summary.picks[name].samples],
    )


def _by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def find_warnings(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """Return the warnings of the page, the most severe first."""
    config, check = run.get("config", {}), run.get("scorer_check")
    weights = str(config.get("scorer", {}).get("weights", ""))
    found = []
    if weights.startswith("random:"):
        found.append(f"Random weights ({weights}): every score on this page is noise.")
    if check and not check["auc"] >= LOWEST_AUC:
        found.append(
            "Scoring model near chance: it scores a pair above a shuffled pair "
            f"in {100 * check['auc']:.1f} % of cases (chance is 50 %, n = {number(check['n'])})."
        )
    if summary.num_bad:
        limit = config.get("max_bad_fraction")
        found.append(
            f"Bad data: {number(summary.num_bad)} of {number(summary.rows)} rows "
            f"({percent(summary.num_bad, summary.rows)}) have no alignment"
            + (f"; the run stops above {100 * limit:g} %." if limit is not None else ".")
        )
    asked = _rows_asked(summary, config)
    if asked is not None and summary.reasons[KEPT] < asked:
        found.append(
            f"Fewer rows than requested: the options ask for {number(asked)} of "
            f"{number(summary.num_aligned)}, {number(summary.reasons[KEPT])} have a score."
        )
    selection = find_selection(read_config(config))
    return [*found, *warn_of_displacement(summary, selection), *map(str, run.get("warnings", ()))]


def _rows_asked(summary: Summary, config: Mapping[str, Any]) -> int | None:
    keep, rule = config.get("attribute", {}).get("keep"), config.get("select", {}).get("rule", "cpi")
    if rule == "full":
        return summary.num_aligned
    return None if keep is None else exact_share(keep, summary.num_aligned)


def shade(drop: float | None, scale: float) -> str:
    """Return the class that shades a drop: -4 to 4 in equal steps up to ``scale`` > 0."""
    if drop is None:
        return "shade-none"
    step = round(min(abs(drop) / scale, 1.0) * NUM_SHADES)
    return f"shade-{'n' if drop < 0 else 'p'}{step}" if step else "shade-0"


def split_caption(sample: Sample) -> Iterator[tuple[str, str, str, str, dict[str, Any] | None]]:
    """Yield the caption in pieces: the text before a phrase, the phrase left of, at and right of its target.

    The pieces join to the caption: a phrase that overlaps an earlier one, or whose places are out of order,
    stays part of the text around it. The last piece has no phrase.
    """
    text, at = sample.caption or "", 0
    for phrase in sorted(sample.phrases, key=lambda p: p["start"]):
        start, first, last, end = (phrase[name] for name in ("start", "target_start", "target_end", "end"))
        if at <= start <= first <= last <= end:
            yield text[at:start], text[start:first], text[first:last], text[last:end], phrase
            at = end
    yield text[at:], "", "", "", None


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
    """Merge the histograms' bins into bars; values out of range count in the end bins."""
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


def _draw_scores(summary: Summary, selection: SelectionRule) -> list[Html]:
    """Return the histograms of alignment and PAS, kept against dropped, with the gates."""
    cuts = {
        ALIGNMENT: summary.lowest.get(ALIGNMENT) if summary.reasons[DROPPED_ALIGNMENT] else None,
        PAS: summary.lowest.get(SCORE) if selection.by_pas is selection else None,
    }
    marks = {name: () if at is None else (Mark(at, f"gate {number(at)}"),) for name, at in cuts.items()}
    return [
        _draw_sides(summary, ALIGNMENT, "Alignment", "cosine of image and caption", marks[ALIGNMENT]),
        _draw_sides(summary, PAS, "PAS", selection.by_pas.ranking, marks[PAS]),
    ]


def _report_kinds(summary: Summary) -> Table:
    """Return the counts of phrases by kind and side."""
    rows = []
    for kind in (*KINDS, UNSEEN):
        kept, dropped, valid, supported = (
            summary.kinds[kind, what] for what in (KEPT, DROPPED, VALID, SUPPORTED)
        )
        mean = summary.moments[kind].mean_y if valid else None
        name = f"{kind}, of these" if kind == UNSEEN else kind
        rows.append((name, kept + dropped, kept, dropped, valid, mean, Numeral(percent(supported, valid))))
    columns = ("Kind", "phrases", "kept", "dropped", "with nonce", "mean drop", "drop > 0")
    return Table("Phrases", columns, rows)


def _draw_drops(summary: Summary) -> Html:
    counts, edges = _rows_and_edges([summary.histograms[DROP, kind] for kind in KINDS])
    layers = [Layer(kind, f"kind-{kind}") for kind in KINDS]
    return histogram("Drops by kind of phrase", "drop of cosine", layers, counts, edges, y_name="phrases")


def _draw_leaning(summary: Summary) -> Html:
    """Return the head nouns most over-represented among kept or dropped rows, if there are any."""
    if not summary.heads:
        return Html()
    rows = [
        (lean.word, lean.z, f"{number(lean.kept)} kept, {number(lean.dropped)} dropped")
        for lean in find_leanings(summary.heads[KEPT], summary.heads[DROPPED], NUM_LEANING)
    ]
    return bars("Most over-represented head nouns", rows, "z score of the log-odds") if rows else Html()
