"""The tables of continual learning: results of each method, compared with frozen and the whole method, and
all figures as CSV."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.config.own_code import name_own
from raycomp.continual.controls import CHANCE, PRIOR, SHUFFLED
from raycomp.continual.head_tables import report_correlations, report_head, report_margin_gaps, report_margins
from raycomp.continual.judge import ANSWERS, SCORES
from raycomp.continual.means import Measured, Results, Runs, as_estimate, by_stream, list_groups
from raycomp.continual.method import FULL, name_method
from raycomp.continual.runs import name_stream
from raycomp.table import Cell, Column, Columns, Estimate, Plot, Table, write_cell, write_csv
from raycomp.words import OK

FROZEN = "frozen"
MINUS_FROZEN = " minus frozen"
MINUS_FULL = f" minus {FULL}"
_SAID = "In percent; 95 % intervals by Student's t, over backbones where there are several, else over seeds."
MAIN = ("last", "learned", "forgetting_best", "transfer", "average")


def make_tables(results: Results, measured: Measured) -> list[Table]:
    """Return the tables of the page, stream by stream."""
    made: list[Table] = []
    for runs in by_stream(results, measured).values():
        made += [
            report_main(runs),
            report_against(runs, FROZEN),
            report_against(runs, FULL),
            report_scores(runs),
            report_binding(runs),
            report_head(runs),
            report_margins(runs),
            report_margin_gaps(runs),
            report_correlations(runs),
            *report_matrices(runs),
        ]
    return [table for table in made if table.rows]


def report_samples(streams: Mapping[str, Any]) -> Table | None:
    """Return how many samples each half of each task has, and how many of them are used; None if all are
    used. ``streams``: the recorded facts of each."""
    halves = {said: counts for facts in streams.values() for said, counts in facts["samples"].items()}
    rows: list[tuple[Cell, ...]] = [
        (said, counts.get(OK, 0), sum(counts.values())) for said, counts in halves.items()
    ]
    note = "All results use these samples; the warnings above give the reasons for excluding the others."
    is_whole = all(used == num for _, used, num in rows)
    return None if is_whole else Table("Samples used", ("Stream, task, half", "used", "of"), rows, note)


def report_main(runs: Runs) -> Table:
    """Return the figures of each method by the main score."""
    heads = {name.replace("_", " "): name for name in MAIN}
    what = (
        "Share of questions whose right answer is scored above the other candidates"
        if runs.main.endswith(ANSWERS)
        else "Recall@1, the mean of both directions, among the candidates of all tasks together"
    )
    note = (
        f"{what}, by the fused score; a tie is wrong. {_SAID} Last: the mean over tasks after the last one. "
        "Learned: each task right after its own training. Forgetting: the best value of a task minus its "
        "final value. Transfer: tasks not yet trained on (ZSCL). ZSTD: the gain on test sets that are never "
        "trained on, in points. Frozen trains nothing; joint trains on all tasks at once. Task identity is "
        "not available at test time."
    )
    return runs.tabulate("results by method", {**heads, "ZSTD": "fused zstd"}, note)


def report_against(runs: Runs, other: str) -> Table:
    """Return the difference of each method from another in runs of the same seed."""
    metrics = ("last", "forgetting_best", "learned")
    rows: list[tuple[Cell, ...]] = []
    for method in runs.methods:
        found = [runs.compare(method, other, metric) for metric in metrics]
        if method != other and found[0] is not None:
            equal = "equal" if runs.are_equal(method, other) else ""
            rows.append(
                (name_method(method), found[0].num, *map(as_estimate, found), found[0].detectable, equal)
            )
    columns: Columns = (
        "Method",
        "runs",
        *(Column(name.replace("_", " "), "points", 1) for name in metrics),
        Column("detectable, last", "points", 1),
        "",
    )
    note = (
        "Paired by seed, which draws the order of tasks. Detectable: the smallest difference that as many "
        "runs would show in 80 % of studies, at 5 % two-sided. Not adjusted for the number of rows. Equal: "
        "both methods have bit-identical results in every run, so the part that differs has no effect here."
    )
    return Table(runs.title(f"minus {other}"), columns, rows, note)


def report_scores(runs: Runs) -> Table:
    """Return Last and forgetting by each score and gallery."""
    if runs.main.endswith(ANSWERS):
        names = [f"{score} {ANSWERS}" for score in SCORES]
    else:
        names = [f"{score} {gallery} both" for score in SCORES for gallery in ("own", "merged")]
        names += ["fused merged image_to_text", "fused merged text_to_image"]
    metrics = {f"{name.removesuffix(' both')}, last".replace("_", " "): f"{name} last" for name in names}
    metrics |= {"composed, forgetting": f"{names[3] if len(names) > 3 else names[1]} forgetting_best"}
    if runs.main.endswith(ANSWERS):
        baselines = {"by prior": PRIOR, "shuffled picture": SHUFFLED, "by chance": CHANCE}
        metrics |= {head: f"{name} {ANSWERS} last" for head, name in baselines.items()}
    note = (
        "Scores: e_c, the caption's embedding; e^_c, the composition of its primitives; fused, both weighted "
        "by w. No head changes e_c, so only methods that train the model differ there. A method without a "
        "head has e_c for all three. Own: among the candidates of the task itself. By prior: answers "
        "weighted by their frequency in training. Shuffled picture: the fused score with a task's pictures "
        f"shuffled. {_SAID}"
    )
    return runs.tabulate("by score and gallery", metrics, note)


def report_binding(runs: Runs) -> Table:
    """Return CRR with its components."""
    heads = {"CRR": "crr", "pair": "a_pair", "attributes": "a_attribute", "objects": "a_object"}
    metrics = {head: f"fused {name}" for head, name in heads.items()}
    note = (
        "After the last task, shares of the captions that images retrieve from the merged gallery by the "
        "fused score: all primitives right, all attributes right, all objects right. CRR = pair / "
        "(attributes x objects) is 1 where attributes and objects are right independently, also at chance, "
        "so compare it with the pair."
    )
    return runs.tabulate("binding", metrics, note, digits=3)


def report_matrices(runs: Runs) -> Iterator[Table]:
    """Yield R[t, i] of each method, the mean over its runs, tasks in training order."""
    for method in runs.methods:
        own = [one for one in runs.results.values() if one.one_run.method == method]
        mean_TT = np.mean([one.matrix(one.main) for one in own], axis=0)
        before_T = np.mean([one.before(one.main) for one in own], axis=0)
        rows: list[tuple[Cell, ...]] = [("none", *map(float, before_T))]
        rows += [(f"task {t + 1}", *map(float, row)) for t, row in enumerate(mean_TT)]
        columns = [Column(f"task {i + 1}", digits=1) for i in range(len(before_T))]
        yield Table(runs.title(f"{name_method(method)}, task by task"), ("After", *columns), rows)


def write_long(results: Results, measured: Measured) -> str:
    """Return all metrics as CSV: track, method, metric, mean, low, high, seeds."""
    lines: list[tuple[object, ...]] = [("track", "method", "metric", "mean", "low", "high", "seeds")]
    streams = by_stream(results, measured)
    for stream, method in list_groups(results):
        runs = streams[stream]
        own = [found for one_run, found in runs.measured.items() if one_run.method == method]
        names = dict.fromkeys(name for found in own for name in found)
        figures = {name: runs.estimate(method, name) for name in names}
        if method != FROZEN:
            figures |= {f"{name}{MINUS_FROZEN}": runs.compare(method, FROZEN, name) for name in MAIN}
        if method != FULL:
            figures |= {f"{name}{MINUS_FULL}": runs.compare(method, FULL, name) for name in MAIN}
        lines += [
            (name_stream(stream), name_own(method), metric, found.value, found.low, found.high, found.num)
            for metric, found in figures.items()
            if found is not None
        ]
    return write_csv(lines)


def say_main(results: Results, measured: Measured) -> list[str]:
    """Return a sentence for each method of each stream: the main figure, minus frozen's if that was run."""
    lines, streams = [], by_stream(results, measured)
    for stream, method in list_groups(results):
        runs = streams[stream]
        last, lost = (as_estimate(runs.estimate(method, name)) for name in ("last", "forgetting_best"))
        against = as_estimate(runs.compare(method, FROZEN, "last"))
        if last is None:
            continue
        said = f"{name_stream(stream)}, {name_method(method)}: last {write_cell(last, 1)}"
        said += f", forgetting {write_cell(lost, 1)}" if lost is not None else ""
        if against is not None and method != FROZEN:
            said += f", last minus frozen {write_cell(against, 1)}"
        lines.append(said)
    return lines


def choose_headline(lines: Sequence[str]) -> str:
    """Return the sentence of the whole method on the first stream, else the first one; "" without any."""
    return next((line for line in lines if f", {name_method(FULL)}: " in line), next(iter(lines), ""))


def list_plots(results: Results, measured: Measured) -> dict[str, Plot]:
    """Return the plots, by the name of the file."""
    plots = {}
    for stream, runs in by_stream(results, measured).items():
        others = [method for method in runs.methods if method != FROZEN]
        found = {method: runs.compare(method, FROZEN, "last") for method in others}
        rows = [(name_method(method), Estimate.of(one)) for method, one in found.items() if one is not None]
        if rows:
            unit = "points, with 95 % intervals"
            plots[name_stream(stream)] = Plot(runs.title("last minus frozen, fused score"), unit, rows, 0.0)
    return plots
