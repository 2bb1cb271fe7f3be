"""The screen's tables and figures: the world is the unit of every interval."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lab.screen.judge import ALIGNMENT, KEEP, REGISTERED
from lab.worlds.crowds import KINDS, WRONG_RELATION
from raycomp.core.intervals import Contrast, contrast, holm
from raycomp.table import (
    Cell,
    Column,
    Columns,
    Estimate,
    Plot,
    PValue,
    Table,
    group_by,
    write_cell,
    write_csv,
)

Found = Sequence[Mapping[str, Any]]
STRATA = "faults_kept_in_strata"
SEEN_KINDS = tuple(kind for kind in KINDS if kind != WRONG_RELATION)
"""Kinds of fault that these scorers detect; a relation is at chance."""
_COUNTS = "pairs planted planted_in_pool kept faults_kept faults_kept_in_strata auc auc_in_strata".split()


def write_faults(found: Found) -> str:
    """Return a row for every world, cue, kind, rule and share as CSV."""
    lines: list[tuple[object, ...]] = [("world", "cue", "kind", "rule", "keep", *_COUNTS)]
    for one in found:
        for row in one["rows"]:
            counts = (round(row[name], 4) if isinstance(row[name], float) else row[name] for name in _COUNTS)
            lines.append((one["world"], one["cue"], row["kind"], row["rule"], row["keep"], *counts))
    return write_csv(lines)


def write_traits(found: Found) -> str:
    """Return the share of the correct pairs that each rule keeps, by caption traits, as CSV."""
    lines: list[tuple[object, ...]] = [("cue", "kind", "rule", "trait", "worlds", "kept", "low", "high")]
    rows = [{"cue": one["cue"], **row} for one in found for row in one["traits"] if row["sound"]]
    for key, some in group_by(
        rows, lambda row: tuple(row[n] for n in ("cue", "kind", "rule", "trait"))
    ).items():
        mean = contrast([row["kept"] / row["sound"] for row in some])
        lines.append((*key, mean.num, *(round(value, 4) for value in (mean.value, mean.low, mean.high))))
    return write_csv(lines)


def _read_auc(row: Mapping[str, Any]) -> list[float]:
    """Return the area and its interval; json has null for NaN, where a kind has too few captions."""
    return [np.nan if row[name] is None else row[name] for name in ("auc", "auc_low", "auc_high")]


def write_text(checked: Found) -> str:
    """Return the results of a text-only classifier on other captions of the same kind and cue, as CSV."""
    lines: list[tuple[object, ...]] = [("cue", "kind", "captions", "auc", "low", "high")]
    for one in checked:
        for row in one["text"]:
            lines.append((one["cue"], row["kind"], one["captions"], *(round(x, 4) for x in _read_auc(row))))
    return write_csv(lines)


def list_shares(
    found: Found, cue: str, kind: str, rule: str, keep: float = KEEP, name: str = "faults_kept"
) -> list[float]:
    """Return the share of the planted faults that a rule keeps, in percent, world by world."""
    return [
        100 * row[name] / row["planted"]
        for one in found
        if one["cue"] == cue
        for row in one["rows"]
        if (row["kind"], row["rule"], row["keep"]) == (kind, rule, keep)
    ]


def compare(found: Found, cue: str, kind: str, rule: str, other: str = ALIGNMENT, **how: Any) -> Contrast:
    """Return the difference in kept faults between two rules, in percentage points, paired by world."""
    pairs = zip(
        list_shares(found, cue, kind, rule, **how), list_shares(found, cue, kind, other, **how), strict=True
    )
    return contrast([one - base for one, base in pairs])


def make_tables(found: Found, checked: Found) -> list[Table]:
    """Return the tables of the page."""
    cues = list(dict.fromkeys(one["cue"] for one in found))
    return [
        report_registered(found, cues),
        *(report_faults(found, cue) for cue in cues),
        report_text(checked),
        report_scorers(found, cues),
    ]


def compare_registered(found: Found, cue: str, name: str = STRATA) -> Contrast:
    """Return the registered figure of a cue, or the same by another count: the mean over the kinds that a
    scorer can detect."""
    by_kind = [
        np.subtract(
            list_shares(found, cue, kind, REGISTERED, name=name),
            list_shares(found, cue, kind, ALIGNMENT, name=name),
        )
        for kind in SEEN_KINDS
    ]
    return contrast(np.mean(by_kind, axis=0))


def say_registered(found: Found) -> str:
    """Return a sentence with the registered result: the first cue, mean of the kinds that scorers detect."""
    cue = found[0]["cue"]
    points = write_cell(_estimate(compare_registered(found, cue)), 2)
    return (
        f"{REGISTERED} minus alignment alone: {points} points of the planted faulty pairs kept "
        f"(mean of {len(SEEN_KINDS)} kinds, {cue})"
    )


def report_registered(found: Found, cues: Sequence[str]) -> Table:
    """Return the share of faults kept by the rule selected on other worlds, compared with alignment."""
    rows: list[tuple[Cell, ...]] = []
    for cue in cues:
        kinds = [compare(found, cue, kind, REGISTERED, name=STRATA) for kind in KINDS]
        free = [compare(found, cue, kind, REGISTERED) for kind in KINDS]
        means = compare_registered(found, cue), compare_registered(found, cue, "faults_kept")
        rows.append((cue, "mean of four kinds", *_list_estimates(*means), None))
        adjusted = holm([one.p for one in kinds])
        for kind, *pair, p in zip(KINDS, kinds, free, adjusted, strict=True):
            rows.append((cue, kind.replace("_", " "), *_list_estimates(*pair), PValue(p)))
    columns: Columns = (
        "Cue",
        "Kind of fault",
        "worlds",
        Column("equal share per caption length", "points", 2),
        Column("any caption length", "points", 2),
        Column("detectable", digits=2),
        Column("p"),
        Column("p after Holm"),
    )
    note = (
        f"Faulty pairs kept by {REGISTERED}, in percent of those planted, minus those kept by alignment; "
        "below 0 it keeps fewer. The first column of points, without a logo, mean of wrong object, phantom "
        "object, wrong attribute and missing stamp, is the registered result. In that column both rules keep "
        "the same share of pairs for every number of target nouns; p and detectable refer to it. All other "
        "values are exploratory."
    )
    return Table("Alignment and PAS minus alignment alone", columns, rows, note)


def _list_estimates(strata: Contrast, free: Contrast) -> tuple[Cell, ...]:
    return strata.num, _estimate(strata), _estimate(free), strata.detectable, PValue(strata.p)


def _estimate(found: Contrast) -> Estimate:
    return Estimate(found.value, found.low, found.high)


def list_rules(found: Found) -> list[str]:
    """Return the rules in their order."""
    return list(dict.fromkeys(row["rule"] for row in found[0]["rows"]))


def report_faults(found: Found, cue: str) -> Table:
    """Return the share of each kind of fault that every rule keeps under one cue."""
    rows: list[tuple[Cell, ...]] = []
    for rule in list_rules(found):
        cells: list[Cell] = []
        for kind in KINDS:
            if rule == ALIGNMENT:
                reported = contrast(list_shares(found, cue, kind, rule))
            else:
                reported = compare(found, cue, kind, rule)
            cells.append(_estimate(reported))
        rows.append((rule if rule == ALIGNMENT else f"{rule}, minus alignment", *cells))
    columns: Columns = ("Rule", *(Column(kind.replace("_", " "), "%", 1) for kind in KINDS))
    note = (
        "Faulty pairs kept, in percent of those planted: for alignment the share, for every other rule the "
        "difference from alignment in points; below 0 a rule keeps fewer. Each kind is a corpus of its own, "
        f"a third of it faulty; all rules keep {100 * KEEP:.0f} % after an alignment gate of 70 %. 95 % "
        "intervals by Student's t over worlds, not adjusted for their number. Captions of correct and faulty "
        "pairs have one distribution, except under the cue text-visible."
    )
    return Table(f"Faults kept: {cue}", columns, rows, note)


def report_text(checked: Found) -> Table:
    """Return the results of a text-only classifier."""
    rows: list[tuple[Cell, ...]] = [
        (one["cue"], row["kind"].replace("_", " "), Estimate(*_read_auc(row)))
        for one in checked
        for row in one["text"]
    ]
    columns: Columns = ("Cue", "Kind", Column("AUC of a text-only classifier", digits=3))
    note = (
        "Logistic regression on n-grams and the number of words, fitted to "
        f"{checked[0]['captions']:,} drawn captions and tested on as many others; .5 is chance."
    )
    return Table("Faults predicted from the caption alone", columns, rows, note)


def report_scorers(found: Found, cues: Sequence[str]) -> Table:
    """Return the retrieval of the scorers, and the words that have nonces."""
    rows: list[tuple[Cell, ...]] = []
    for cue in cues:
        own = [one for one in found if one["cue"] == cue]
        recall = contrast([100 * float(np.mean(one["recall"])) for one in own])
        shares = [
            100 * sum(one["coverage"][name][1] for one in own) / sum(one["coverage"][name][0] for one in own)
            for name in own[0]["coverage"]
        ]
        estimate = _estimate(recall)
        rows.append((cue, len(own), estimate, *shares, float(np.mean([one["seconds"] for one in own]))))
    columns: Columns = (
        "Cue",
        "worlds",
        Column("scoring model's recall@1", "%", 1),
        Column("nouns with a nonce", "%", 1),
        Column("other content words", "%", 1),
        Column("time of a run", "s", 0),
    )
    return Table(
        "Scoring models", columns, rows, "recall@1: the mean of both directions among 500 correct pairs."
    )


def list_plots(found: Found) -> dict[str, Plot]:
    """Return the plots, by the name of the file: the first cue, each kind."""
    cue = found[0]["cue"]
    plots = {}
    for kind in KINDS:
        rows = []
        for rule in list_rules(found)[1:]:
            reported = compare(found, cue, kind, rule)
            rows.append((rule, _estimate(reported)))
        title = f"Faults kept, minus alignment: {kind.replace('_', ' ')}, {cue}"
        plots[kind] = Plot(title, "percentage points; below 0 the rule keeps fewer", rows, 0.0)
    return plots
