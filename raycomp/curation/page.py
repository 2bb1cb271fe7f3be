"""The page of ``raycomp curate`` and ``select``, their funnel, and one sample's path from the files
alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from raycomp import words
from raycomp.config import exact_share
from raycomp.core.selection import Threshold
from raycomp.curation import summary as counting
from raycomp.curation.config import (
    MINUS_PAS,
    PAPER_READING,
    PAS,
    SelectionRule,
    describe_rule,
    make_selection,
    read_config,
)
from raycomp.curation.select.marks import list_marked
from raycomp.curation.select.measures import corpus_columns, list_counted, take_columns
from raycomp.curation.select.select import Gates, judge_table
from raycomp.curation.summary import (
    DISPLACEMENT,
    DROP,
    DROPPED,
    SUPPORTED,
    VALID,
    Correlation,
    Sample,
    Summary,
)
from raycomp.data.inputs import say_input
from raycomp.data.parquet import find_rows, read_schema
from raycomp.data.runs import order_reasons, say_noise
from raycomp.language.phrases import make_counterfactual
from raycomp.report.page import Html, Layer, Mark, bars, histogram, rebin, render_page, scatter, tag
from raycomp.table import Cell, Column, Numeral, Table, format_facts, number, percent, write_cell
from raycomp.words import ALIGNMENT, CAPTION, KEPT, KINDS, PHRASES, STATUS, UID, UNSEEN

ALIGNED = "have an alignment"
# The steps that marks add before the corpus, with their reasons.
_MARK_STEPS = (
    ("pass the filter", (words.FILTERED, words.FILTER_NULL)),
    ("are not excluded", (words.EXCLUDED,)),
    ("are not contaminated", (words.CONTAMINATED,)),
    ("are not near-duplicates", (words.NEAR_DUPLICATE,)),
    ("are within the cap of their cluster", (words.CLUSTER_FULL,)),
)
REASON_WORDS = {
    words.DROPPED_RANDOM: "not drawn",
    words.DROPPED_ALIGNMENT: "below the alignment gate",
    words.DROPPED_UNSCORED: "no score for the attribution gate",
    words.DROPPED_ATTRIBUTION: "below the attribution gate",
    words.DROPPED_CONTROL: "below the gate of the rule",
    words.REMOVED: "removed on request",
    words.FILTERED: "the filter is false",
    words.FILTER_NULL: "the filter is null",
    words.EXCLUDED: "left out by filter.exclude",
    words.CONTAMINATED: "contaminated: also in a test set",
    words.NEAR_DUPLICATE: "near-duplicate of a row that stays",
    words.CLUSTER_FULL: "above the cap of its cluster",
    words.FILTERED_AFTER: "past the gates, but the filter is false",
    words.FILTER_NULL_AFTER: "past the gates, but the filter is null",
    words.EXCLUDED_AFTER: "past the gates, but left out by filter.exclude",
}


class FunnelRow(NamedTuple):
    """A step: ``rows`` passed it; ``lost`` counts the others by reason."""

    name: str
    rows: int
    lost: tuple[tuple[str, int], ...] = ()


def make_funnel(reasons: Mapping[str, int]) -> list[FunnelRow]:
    """Return the steps from ``read`` to ``kept`` from the number of rows of each drop reason (and ``kept``).

    A reason that belongs to no gate and no mark is a status, lost before the corpus. Marks follow, then the
    gates in their order. A step that lost no row is omitted, except the last, which leads to ``kept``.
    """
    known = {KEPT, *words.GATE_REASONS, *words.MARK_REASONS, *words.AFTER_REASONS}
    steps: list[tuple[str, Sequence[str]]] = [
        (ALIGNED, [reason for reason in order_reasons(reasons) if reason not in known])
    ]
    steps += [(name, lost) for name, lost in _MARK_STEPS if any(reasons.get(reason) for reason in lost)]
    corpus = f"{steps[-1][0]} (the corpus)"
    steps[-1] = corpus, steps[-1][1]
    steps += [
        ("pass the alignment gate", [words.DROPPED_ALIGNMENT]),
        ("have a score", [words.DROPPED_UNSCORED]),
        (
            KEPT,
            [words.DROPPED_RANDOM, words.DROPPED_ATTRIBUTION, words.DROPPED_CONTROL, *words.AFTER_REASONS],
        ),
    ]
    rows = [FunnelRow("read", sum(reasons.values()))]
    for name, lost_by in steps:
        lost = tuple((reason, reasons[reason]) for reason in lost_by if reasons.get(reason))
        if lost or name in (ALIGNED, corpus, KEPT):
            rows.append(FunnelRow(name, rows[-1].rows - sum(n for _, n in lost), lost))
    return rows


def reason_words(reason: str) -> str:
    """Return the text of a drop reason for readers."""
    return REASON_WORDS.get(reason, reason.replace("_", " "))


_MOST_NAMED = 12


def say_outcome(
    row: Mapping[str, Any], reason: str, score: float | None, selection: SelectionRule, gates: Gates
) -> str:
    """Return in plain words why a row is kept or dropped: what ranks it, the cut, and the words that count.

    ``row`` has the columns of scores/; ``reason`` and ``score`` are those of ``judge_table``.
    """
    if reason in words.STATUSES:
        return f"{reason}: {words.STATUSES[reason]}"
    if reason in (*words.MARK_REASONS, *words.AFTER_REASONS):
        return reason_words(reason)
    if gates.attribute is None:
        all_stay = "; the rule keeps every pair with an alignment" * selection.rule.keeps_all
        return _say_cut(selection.ranking, score, gates.align) + all_stay
    if reason == words.DROPPED_ALIGNMENT:
        return _say_cut(ALIGNMENT, row[ALIGNMENT], gates.align)
    if reason == words.DROPPED_UNSCORED:
        status = row[STATUS]
        why = words.STATUSES[status] if status != words.OK else "no word of the caption counts"
        return f"no {selection.reading}: {why}"
    if selection.by_pas is not selection:
        return _say_cut(selection.ranking, score, gates.attribute)
    counted = list_counted(row, selection)
    one_or_more = selection.named if len(counted) != 1 else selection.named.removesuffix("s")
    ranking = selection.ranking.replace(selection.named, f"{len(counted):,} {one_or_more}")
    said = _say_cut(ranking, score, gates.attribute)
    is_top = (selection.aggregate == "max") != (selection.rule.attribute_by == MINUS_PAS)
    target, value = (max if is_top else min)(counted, key=lambda pair: pair[1])
    unit = "drop" if selection.unit == words.PER_TARGET else "drop per displacement"
    decisive = f"{target['target']!r}: {unit} {value:.3f}"
    names = ", ".join(one["target"] for one, _ in counted[:_MOST_NAMED])
    more = f" and {len(counted) - _MOST_NAMED} more" if len(counted) > _MOST_NAMED else ""
    if reason == KEPT:
        return f"{said}; {'highest' if is_top else 'lowest'} {decisive}; counted: {names}{more}"
    return f"lost on {decisive}; {said}; counted: {names}{more}"


def _say_cut(name: str, value: float | None, cut: Threshold | None) -> str:
    """Return "alignment 0.102, cut 0.122", with as many digits as the two need to differ."""
    if value is None or value != value or cut is None or cut.value is None:
        return f"{name} {_number(value)}, the gate keeps no row"
    said = ((f"{value:.{digits}f}", f"{cut.value:.{digits}f}") for digits in range(3, 10))
    own, limit = next((pair for pair in said if pair[0] != pair[1]), (f"{value:.3f}", f"{cut.value:.3f}"))
    tie = " (of equal values the smaller uids stay)" if own == limit and cut.uid else ""
    return f"{name} {own}, cut {limit}{tie}"


def say_corpus(funnel: Mapping[str, Any]) -> str:
    """Return the corpus of a curation or selection, whose shares are of it, and which rows it is."""
    corpus, read = funnel["corpus"], funnel["read"]
    if corpus == read:
        return f"the corpus of {corpus:,}"
    is_marked = any(reason in words.MARK_REASONS for reason in funnel["dropped"])
    passed = " and are dropped neither by a filter nor as near-duplicates" * is_marked
    return f"the corpus of {corpus:,}: the rows of the {read:,} read that have an alignment{passed}"


_NESTED = (words.IMAGE_EMBEDDING, PHRASES, words.CONTENT_WORDS)


def explain_sample(run: dict[str, Any], source: str, uid: str) -> str | None:
    """Return every score, gate, value and threshold of one sample of the run in ``source``, if present.

    A bad row or a duplicate may share the uid of a scored row. The scored row is explained in full, the
    others in one line.
    """
    config, gates = read_config(run["config"]), Gates.from_dict(run["gates"])
    selection = make_selection(config)
    columns = corpus_columns(selection, with_attribute=True)
    wanted = [words.SHARD, words.POSITION, CAPTION, PHRASES, words.IMAGE_EMBEDDING, *columns]
    tables = []
    for file in list_marked(run, source):
        if rows := find_rows(file.uri, UID, uid):
            table = file.read(list(dict.fromkeys([*read_schema(file.uri).names, *wanted])))
            tables += [table.slice(row, 1) for row in rows]
    if not tables:
        return None
    table = next((one for one in tables if one[STATUS][0].as_py() in words.ALIGNED_STATUSES), tables[0])
    row = table.select([name for name in table.column_names if name not in _NESTED]).to_pylist()[0]
    lines = [format_facts(row)]
    nested = {name: table[name].to_pylist()[0] for name in _NESTED[1:] if name in table.column_names}
    counted = [phrase for phrase, _ in list_counted(nested, selection)]
    for phrase in chain.from_iterable(found or () for found in nested.values()):
        lines += _describe_phrase(row[CAPTION], phrase, phrase in counted)
    reason_N, score_N = judge_table(take_columns(table, selection, with_attribute=True), selection, gates)
    score, reason = float(score_N[0]), reason_N[0]
    name, first = (ALIGNMENT, row[ALIGNMENT]) if gates.attribute else (selection.ranking, score)
    lines += ["", f"rule {describe_rule(config)}; shares are of {say_corpus(run['funnel'])}"]
    lines.append(f"gate 1: {name} {_number(first)} against {_describe_threshold(gates.align)}")
    if gates.attribute is not None:
        threshold = _describe_threshold(gates.attribute)
        lines.append(f"gate 2: {selection.ranking} {_number(score)} against {threshold}")
    lines.append(f"kept: {'yes' if reason == KEPT else 'no, ' + reason}")
    lines.append(f"why: {say_outcome(row | nested, reason, score, selection, gates)}")
    for other in tables:
        if other is not table:
            shard, position, status = (
                other[name][0].as_py() for name in (words.SHARD, words.POSITION, STATUS)
            )
            lines.append(f"the same uid again: {shard}, row {position}: {status}")
    return "\n".join(lines)


def _describe_phrase(caption: str, phrase: dict[str, Any], is_counted: bool) -> list[str]:
    line = f"  {phrase['kind']}: {phrase['text']!r}, target {phrase['target']!r}"
    if phrase["target_class"] == UNSEEN:
        line += ", which an image cannot show"
    line += ", counted" if is_counted else ", not counted"
    if not phrase["nonces"]:
        return [line + ", no valid nonce"]
    lines = [line]
    for nonce, drop in zip(phrase["nonces"], phrase["drops"], strict=True):
        text = make_counterfactual(caption, phrase["target_start"], phrase["target_end"], nonce)
        lines.append(f"    drop {drop:+.6f}  {text!r}")
    return lines


def _describe_threshold(cut: Threshold | None) -> str:
    if cut is None or cut.value is None:
        return "a gate that drops everything"
    tie = f" (at exactly that score: uids up to {cut.to_dict()['uid']})" if cut.uid else ""
    return f"{_number(cut.value)} or more{tie}"


def _number(value: float | None) -> str:
    return "none" if value is None or value != value else f"{value:.6f}"


LOWEST_AUC = 0.6
"""The page warns if the scorer's AUC of matched against shuffled pairs is below this."""
NUM_LEANING = 12
NUM_SHADES = 4
PAPER = "Go et al., arXiv 2605.22651, section 7"
PAPER_CORRELATIONS = {PAS: (0.084, 0.088), DROP: (-0.215, -0.204)}
"""(Pearson, Spearman): CC3M, ViT-B/16. pas: mean drop of nouns past the gate, D_align70. drop: drops over
50,000 interventions; the paper does not state whether they are past the gate."""
MOST_DRIVEN = 0.3
"""Cohen's medium correlation: displacement alone then explains a tenth of the variance of drops."""
BOTH_SIDES = (Layer("kept", "kept"), Layer("dropped", "dropped"))


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
    - ``phases`` and ``stages``: duration of each phase and utilization of its stages, as ``run/run.py``
      describes them; a phase without ``gpu_busy_share`` had no GPU;
    - ``scorer_check``: {matched_mean, shuffled_mean, auc, n}: cosines of pairs against shuffled pairs;
    - ``warnings``: additional warnings.
    """
    for before, after in pairwise(funnel):
        lost = sum(n for _, n in after.lost)
        if before.rows != after.rows + lost:
            raise ValueError(
                f"funnel: {before.rows} {before.name} != {after.rows} {after.name} + {lost} lost"
            )
    read, kept = summary.rows, summary.reasons[KEPT]
    if not funnel or (funnel[0].rows, funnel[-1].rows) != (read, kept):
        raise ValueError(f"funnel: must lead from {read} rows read to {kept} kept, not {funnel}")
    selection = make_selection(read_config(run.get("config", {})))
    pas = selection.by_pas.ranking
    gates = Gates.from_dict(run["gates"]) if run.get("gates") else None

    def say_why(sample: Sample) -> str:
        if gates is None:
            return reason_words(sample.reason)
        row = {STATUS: sample.status, ALIGNMENT: sample.alignment, PHRASES: sample.phrases}
        row |= {words.CONTENT_WORDS: sample.content_words}
        return say_outcome(row, sample.reason, sample.score, selection, gates)

    lowest = summary.lowest.get(ALIGNMENT) if summary.reasons[words.DROPPED_ALIGNMENT] else None
    lowest_score = summary.lowest.get(words.SCORE) if selection.by_pas is selection else None
    statuses = _by_count(summary.statuses)
    draw_sides = partial(_draw_sides, summary)
    return render_page(
        "curation/page.html.jinja",
        run=run,
        input=say_input(run.get("config", {}).get("input") or ""),
        summary=summary,
        shown=counting.choose_shown(summary),
        photos=photos,
        funnel=funnel,
        num_shards=sum(summary.statuses[status] for status in words.SHARD_STATUSES),
        dropped=order_reasons(summary.reasons - Counter({KEPT: kept})).items(),
        warnings=find_warnings(summary, run),
        score=selection.ranking,
        pas=pas,
        scale=shade_scale(summary),
        shade=shade,
        split_caption=partial(split_caption, selection=selection),
        say_why=say_why,
        reason_words=reason_words,
        num_nearest=counting.NUM_NEAREST,
        extra_tables=extra_tables,
        scores=[
            draw_sides(ALIGNMENT, "Alignment", "cosine of image and caption", lowest),
            draw_sides(PAS, "PAS", pas, lowest_score),
        ],
        has_gate=selection.attribute_share is not None,
        paper=PAPER,
        correlations=_report_correlations(counting.correlate(summary, selection), pas),
        scatters=_draw_points(summary, pas),
        kinds=_report_kinds(summary),
        drops=_draw_drops(summary) if summary.kinds else None,
        leaning=_draw_leaning(summary),
        lengths=[
            draw_sides(counting.WORDS, "Caption length", "words", whole=True),
            draw_sides(PHRASES, "Phrases of a caption", "phrases", whole=True),
        ],
        statuses=statuses,
        meanings=words.STATUSES,
        examples=[s for name, _ in statuses if name in summary.picks for s in summary.picks[name].samples],
    )


def _by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def find_warnings(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """Return the warnings of the page, the most severe first."""
    config, check = run.get("config", {}), run.get("scorer_check")
    found = list(filter(None, [say_noise({"config": config})]))
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
    keep, asked = config.get("attribute", {}).get("keep"), summary.num_aligned
    if config.get("select", {}).get("rule", "cpi") != "full":
        asked = 0 if keep is None else exact_share(keep, asked)
    if summary.reasons[KEPT] < asked:
        found.append(
            f"Fewer rows than requested: the options ask for {number(asked)} of "
            f"{number(summary.num_aligned)}, {number(summary.reasons[KEPT])} have a score."
        )
    selection = make_selection(read_config(config))
    drops = [one for one in counting.correlate(summary, selection) if one.what == DROP]
    if selection.unit == words.PER_TARGET and drops and drops[0].pearson.low > MOST_DRIVEN:
        one = drops[0]
        found.append(
            "Displacement explains drops: Pearson's r of the shift of the text embedding (displacement) and "
            f"the drop is {write_cell(one.pearson, 3)} over {number(one.num_rows)} {one.over} (n of the "
            f"interval {number(one.num_apart)}), above {MOST_DRIVEN}; the paper has "
            f"{number(PAPER_CORRELATIONS[DROP][0], 3)}. PAS here partly measures how far a nonsense word "
            "moves the text. Compare with the baselines select.rule=displacement and "
            "select.rule=pas_residual; raycomp probe pas measures the drops with a wrong picture."
        )
    return [*found, *map(str, run.get("warnings", ()))]


def shade(drop: float | None, scale: float) -> str:
    """Return the class that shades a drop: -4 to 4 in equal steps up to ``scale`` > 0."""
    if drop is None:
        return "shade-none"
    step = round(min(abs(drop) / scale, 1.0) * NUM_SHADES)
    return f"shade-{'n' if drop < 0 else 'p'}{step}" if step else "shade-0"


def split_caption(
    sample: Sample, selection: SelectionRule
) -> Iterator[tuple[str, str, dict[str, Any] | None, bool]]:
    """Yield the caption in pieces: the text before a target, the target, and whether it counts.

    The pieces join to the caption: a target that overlaps an earlier one, or whose places are out of order,
    stays part of the text around it. The last piece has no target.
    """
    text, at = sample.caption or "", 0
    row = {PHRASES: sample.phrases, words.CONTENT_WORDS: sample.content_words}
    counted = [phrase for phrase, _ in list_counted(row, selection)]
    for phrase in sorted((*sample.phrases, *sample.content_words), key=lambda p: p["target_start"]):
        first, last = phrase["target_start"], phrase["target_end"]
        if at <= first <= last:
            yield text[at:first], text[first:last], phrase, phrase in counted
            at = last
    yield text[at:], "", None, False


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


def _draw_bars(
    summary: Summary,
    names: Sequence[tuple[str, str]],
    title: str,
    x_name: str,
    layers: Sequence[Layer],
    **how: Any,
) -> Html:
    """Return the histograms of these names as bars; values out of range count in the end bins."""
    parts = [summary.histograms[name] for name in names]
    count_LF = np.array([part.counts for part in parts])
    count_LF[:, 0] += [part.under for part in parts]
    count_LF[:, -1] += [part.over for part in parts]
    low, high = parts[0].low, parts[0].high
    counts, edges = rebin(count_LF, low, (high - low) / count_LF.shape[1])
    return histogram(title, x_name, layers, counts, edges, **how)


def _draw_sides(
    summary: Summary, measure: str, title: str, x_name: str, gate: float | None = None, whole: bool = False
) -> Html:
    """Return the histograms of kept and dropped rows, with the threshold of a gate."""
    if (measure, KEPT) not in summary.histograms:
        return tag("figure", tag("figcaption", title), tag("p", "No rows.", class_="quiet"), class_="chart")
    marks = () if gate is None else (Mark(gate, f"gate {number(gate)}"),)
    names = [(measure, side) for side in counting.SIDES]
    return _draw_bars(summary, names, title, x_name, BOTH_SIDES, marks=marks, whole=whole)


def _draw_drops(summary: Summary) -> Html:
    layers = [Layer(kind, f"kind-{kind}") for kind in KINDS]
    names = [(DROP, kind) for kind in KINDS]
    return _draw_bars(summary, names, "Drops by kind of phrase", "drop of cosine", layers, y_name="phrases")


def _report_kinds(summary: Summary) -> Table:
    """Return the counts of phrases by kind and side."""
    rows = []
    for kind in (*KINDS, UNSEEN):
        sides = [summary.kinds[kind, side] for side in counting.SIDES]
        valid, supported = summary.kinds[kind, VALID], summary.kinds[kind, SUPPORTED]
        mean = summary.moments[kind].mean_y if valid else None
        name = f"{kind}, of these" if kind == UNSEEN else kind
        rows.append((name, sum(sides), *sides, valid, mean, Numeral(percent(supported, valid))))
    columns = ("Kind", "phrases", "kept", "dropped", "with nonce", "mean drop", "drop > 0")
    return Table("Phrases", columns, rows)


def _draw_leaning(summary: Summary) -> Html:
    """Return the head nouns most over-represented among kept or dropped rows, if there are any."""
    if not summary.heads:
        return Html()
    rows = [
        (word, z, f"{number(kept)} kept, {number(dropped)} dropped")
        for word, kept, dropped, z in counting.rank_leanings(
            summary.heads[KEPT], summary.heads[DROPPED], NUM_LEANING
        )
    ]
    return bars("Most over-represented head nouns", rows, "z score of the log-odds") if rows else Html()


def _report_correlations(found: list[Correlation], pas: str) -> Table:
    """Return the correlations with the paper's values; of PAS, named ``pas``, only if it is the paper's."""
    names = ("Pearson r", "Spearman rho", "r in paper", "rho in paper")
    r, rho, r_in_paper, rho_in_paper = (Column(name, digits=3) for name in names)
    columns = ("Correlation of", "over", "n", r, rho, "points", r_in_paper, rho_in_paper)
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        what = "displacement, drop" if one.what == DROP else f"alignment, {pas}"
        is_theirs = one.inside and (one.what == DROP or pas == PAPER_READING)
        paper = PAPER_CORRELATIONS[one.what] if is_theirs else (None, None)
        rows.append((what, one.over, one.num_rows, one.pearson, one.spearman, one.num_points, *paper))
    return Table("Correlates of PAS", columns, rows)


def _draw_points(summary: Summary, pas: str) -> list[Html]:
    """Return both scatters; ``pas`` names PAS."""
    charts = []
    points = {what: found.columns for what, found in summary.points.items() if found.num_seen > 1}
    if PAS in points:
        x_M, y_M, kept_M = (points[PAS][name] for name in (ALIGNMENT, PAS, KEPT))
        sides = zip(BOTH_SIDES, (kept_M, ~kept_M), strict=True)
        layers = [(layer, x_M[at_M], y_M[at_M]) for layer, at_M in sides]
        charts.append(scatter("PAS by alignment, pairs", "alignment", pas, layers))
    if DROP in points:
        title = "Drop by displacement of the text embedding, phrases"
        layers = [(Layer("phrase", "kind-object"), points[DROP][DISPLACEMENT], points[DROP][DROP])]
        charts.append(scatter(title, "displacement of the text embedding, 1 - cosine", "drop", layers))
    return charts
