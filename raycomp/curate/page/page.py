"""The report: one HTML page that holds everything it shows and asks nobody for anything."""

from collections.abc import Mapping, Sequence
from typing import Any

from raycomp.config import exact_share
from raycomp.curate.page import sections
from raycomp.curate.page.cards import draw_cards, draw_legend
from raycomp.curate.page.correlations import draw_correlations, warn_of_displacement
from raycomp.curate.page.funnel import FunnelRow, check_funnel, reason_words
from raycomp.curate.page.summary import NUM_NEAREST, Summary, choose_shown
from raycomp.curate.rules import find_rule
from raycomp.report import run as record
from raycomp.report.markup import Html, tag
from raycomp.report.page import draw_table, draw_warnings, frame, section
from raycomp.report.table import table
from raycomp.table import Table, number, percent
from raycomp.words import KEPT, SCORE, SHARD_STATUSES

DROP_WORDS = (
    "A phrase's drop is how far the cosine of photo and caption falls when its underlined word becomes a "
    "nonsense word: blue where it falls, red where it rises."
)
LOWEST_AUC = 0.6
"""A scorer that tells matched from shuffled pairs less well than this is warned about."""


def render(
    summary: Summary,
    photos: Mapping[str, bytes],
    run: Mapping[str, Any],
    funnel: Sequence[FunnelRow],
    extra_sections: Sequence[Table] = (),
) -> str:
    """Return the page as text to be written as UTF-8.

    ``photos``: image bytes by uid, of ``choose_shown(summary).samples``; a missing or unreadable one is a
    grey tile. ``funnel``: as ``close_funnel(summary.reasons)`` returns it; ValueError where it does not lead
    from the summary's rows to its kept rows. ``run``: the content of run.json; what is missing is not shown:

    - ``config``: nested dict (``to_dict``), ``versions``: dict, ``fingerprint``: str;
    - ``commands``: what it does -> exact command line;
    - ``phases`` and ``stages``: how long each phase took and how busy its stages were, as
      ``run/record.py`` describes them; a phase without ``gpu_busy_share`` had no GPU;
    - ``scorer_check``: {matched_mean, shuffled_mean, auc, n}: cosines of pairs against shuffled pairs;
    - ``warnings``: more lines for the warnings.
    """
    check_funnel(funnel, summary.rows, summary.reasons[KEPT])
    config = run.get("config", {})
    body = [
        _draw_header(summary, config),
        draw_warnings(find_warnings(summary, run)),
        _draw_funnel(funnel, summary.num_aligned),
        _draw_around(summary, photos, config),
        *(draw_table(extra) for extra in extra_sections),
        sections.draw_scores(summary, config),
        draw_correlations(summary, config),
        sections.draw_kinds(summary),
        _draw_extremes(summary, photos, config),
        sections.draw_removed(summary),
        sections.draw_statuses(summary),
        *record.draw_run(run),
    ]
    return frame(f"raycomp: kept {number(summary.reasons[KEPT])} of {number(summary.rows)}", body)


def find_warnings(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know before believing the page, worst first."""
    config, check = run.get("config", {}), run.get("scorer_check")
    weights = str(config.get("scorer", {}).get("weights", ""))
    found = []
    if weights.startswith("random:"):
        found.append(f"Random weights ({weights}): every score on this page is noise; a plumbing run.")
    if check and not check["auc"] >= LOWEST_AUC:
        found.append(
            "Scorer near chance: it ranks a pair above a shuffled one "
            f"{100 * check['auc']:.1f} % of the time (chance is 50 %, n = {number(check['n'])})."
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
            f"Fewer rows than asked for: {number(asked)} of {number(summary.num_aligned)} were to be kept, "
            f"{number(summary.reasons[KEPT])} could be."
        )
    driven = warn_of_displacement(summary, config)
    return [*found, *([driven] if driven else []), *map(str, run.get("warnings", ()))]


def _rows_asked(summary: Summary, config: Mapping[str, Any]) -> int | None:
    keep, rule = config.get("attribute", {}).get("keep"), config.get("select", {}).get("rule", "cpi")
    if find_rule(rule).keeps_all:
        return summary.num_aligned
    return None if keep is None else exact_share(keep, summary.num_aligned)


def _draw_header(summary: Summary, config: Mapping[str, Any]) -> Html:
    shards = sum(summary.statuses[status] for status in SHARD_STATUSES)
    kept, read = summary.reasons[KEPT], f"{number(summary.rows)} pairs"
    if shards:
        faulty = f"{number(shards)} faulty shard{'s' if shards > 1 else ''}"
        read = f"{number(summary.rows)} rows ({number(summary.rows - shards)} pairs, {faulty})"
    reasons = sorted(
        (item for item in summary.reasons.items() if item[0] != KEPT), key=lambda i: (-i[1], i[0])
    )
    why = ", ".join(f"{number(n)}\u00a0{reason_words(reason)}" for reason, n in reasons)
    dropped = f", dropped {number(summary.rows - kept)}" + (f": {why}." if why else ".")
    scorer, rule = config.get("scorer", {}), config.get("select", {}).get("rule")
    parts = [scorer.get("model"), scorer.get("weights"), rule and f"rule {rule}", config.get("input")]
    return tag(
        "header",
        tag(
            "p",
            tag("b", "raycomp"),
            " curate",
            *(tag("span", part) for part in parts if part),
            class_="eyebrow",
        ),
        tag(
            "h1",
            f"Read {read}, kept ",
            tag("b", f"{number(kept)} ({percent(kept, summary.rows)})"),
            tag("span", dropped, class_="quiet"),
        ),
    )


def _draw_funnel(funnel: Sequence[FunnelRow], corpus: int) -> Html:
    read, rows, before = funnel[0].rows, [], None
    for i, step in enumerate(funnel):
        share = 100 * step.rows / read if read else 0
        bar = tag("svg", tag("rect", width=f"{share:.2f}%", height="100%"), class_="bar", aria_hidden="true")
        lost = ", ".join(f"\u2212{number(n)}\u00a0{reason_words(reason)}" for reason, n in step.lost)
        numbers = [
            number(step.rows),
            percent(step.rows, read),
            percent(step.rows, corpus) if i else "",
            percent(step.rows, before.rows) if before else "",
        ]
        rows.append(
            [
                tag("td", step.name, class_="step"),
                tag("td", bar, class_="bar-cell"),
                *(tag("td", text, class_="num") for text in numbers),
                tag("td", lost, class_="lost"),
            ]
        )
        before = step
    columns = ("Step", "", "rows", "of read", "of corpus", "of step before", "lost here")
    return tag("section", table(columns, rows, class_="funnel"), aria_label="Funnel")


def _draw_around(summary: Summary, photos: Mapping[str, bytes], config: Mapping[str, Any]) -> Html:
    shown, scale, score = choose_shown(summary), sections.shade_scale(summary), sections.name_score(config)
    seed = config.get("seed")
    drawn = "drawn by seed" + ("" if seed is None else f" {seed}")
    if shown.has_threshold:
        title = f"{_spell(len(shown.around))} around the threshold"
        text = (
            f"Pairs just kept and pairs just dropped, {drawn} from the {NUM_NEAREST} nearest on each side of "
            f"{score} {number(summary.lowest.get(SCORE))}."
        )
    else:
        title = f"{_spell(len(shown.around))} of the pairs"
        text = f"No pair was dropped by its score, so there is no threshold to look around; {drawn}."
    return section(
        title,
        tag("p", text, " ", DROP_WORDS, class_="lead"),
        draw_legend(scale),
        draw_cards(shown.around, photos, scale, score),
    )


def _draw_extremes(summary: Summary, photos: Mapping[str, bytes], config: Mapping[str, Any]) -> Html | None:
    shown, scale, score = choose_shown(summary), sections.shade_scale(summary), sections.name_score(config)
    if not shown.top:
        return None
    return section(
        f"Highest and lowest {score}",
        tag("h3", "Highest"),
        draw_cards(shown.top, photos, scale, score),
        tag("h3", "Lowest that the last gate ranked"),
        draw_cards(shown.bottom, photos, scale, score),
    )


def _spell(count: int) -> str:
    return "Twelve" if count == 12 else number(count)
