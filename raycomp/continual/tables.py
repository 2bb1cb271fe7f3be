"""The tables of continual learning: each method, compared with frozen and the whole method, over runs.

S runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raycomp.config.commands import name_own
from raycomp.continual.data import StreamRun, name_stream
from raycomp.continual.method import FULL, name_method
from raycomp.continual.scoring import (
    ANSWERS,
    CHANCE,
    CRR,
    CRR_LEARNED,
    METHOD,
    PRIOR,
    SCORES,
    SHUFFLED,
    STATE_DISTANCE,
    SUBSPACE_DRIFT,
    Result,
    average_so_far,
)
from raycomp.core.intervals import Contrast, contrast, mean_by, wilcoxon
from raycomp.core.metrics import correlate_within
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
from raycomp.words import OK

Results = Mapping[StreamRun, Result]
Measured = Mapping[StreamRun, Mapping[str, float]]
FROZEN = "frozen"
# Heads of columns that have three decimals.
_SMALL, _STARTS_SMALL = ("sigma", "step taken", "gamma"), ("alpha", "CCE", "PR", "ROC")


@dataclass(frozen=True)
class Runs:
    """All runs on one stream, and the metrics of each."""

    stream: str
    results: Results
    measured: Measured

    @property
    def methods(self) -> list[str]:
        """Methods that have a run, in their order."""
        return list(dict.fromkeys(one_run.method for one_run in self.results))

    @property
    def main(self) -> str:
        """The main figure."""
        return next(iter(self.results.values())).main

    def title(self, what: str) -> str:
        """Return the title of a table of this stream."""
        return f"{name_stream(self.stream)}: {what}"

    def estimate(self, method: str, metric: str) -> Contrast | None:
        """Return the mean of a metric over runs, with its interval over backbones if there are several, else
        over seeds; none if no run has it."""
        own = {one_run: found for one_run, found in self.measured.items() if one_run.method == method}
        return self._spread({one_run: found[metric] for one_run, found in own.items() if metric in found})

    def compare(self, method: str, other: str, metric: str) -> Contrast | None:
        """Return the mean difference of two methods in runs of the same seed, as ``estimate`` does."""
        return self._spread(self.list_gaps(method, other, metric))

    def list_gaps(self, method: str, other: str, metric: str) -> dict[StreamRun, float]:
        """Return one method's metric minus another's in runs of the same seed, by the first method's runs."""
        gaps = {}
        for one_run, found in self.measured.items():
            base = self.measured.get(replace(one_run, method=other), {})
            if one_run.method == method and metric in found and metric in base:
                gaps[one_run] = found[metric] - base[metric]
        return gaps

    def are_equal(self, method: str, other: str) -> bool:
        """Whether two methods have runs of the same seeds and bit-identical evaluation figures; the methods'
        own figures are not compared."""

        def list_figures(result: Result) -> list[tuple[object, ...]]:
            own = {name: found for name, found in result.values.items() if name[0] != METHOD}
            # As text, NaN equals NaN.
            return sorted(
                (*name, *at, repr(value)) for name, found in own.items() for at, value in found.items()
            )

        pairs = [
            (result, self.results.get(replace(one_run, method=other)))
            for one_run, result in self.results.items()
            if one_run.method == method
        ]
        return bool(pairs) and all(b is not None and list_figures(a) == list_figures(b) for a, b in pairs)

    def _spread(self, value: Mapping[StreamRun, float]) -> Contrast | None:
        if not value:
            return None
        backbone_S = np.array([self.results[one_run].facts["backbone"] for one_run in value])
        value_S = np.array(list(value.values()))
        is_many = len(set(backbone_S.tolist())) > 1
        return contrast(mean_by(value_S, backbone_S) if is_many else value_S)._replace(num=len(value_S))

    def tabulate(self, title: str, metrics: Mapping[str, str], note: str, digits: int | None = None) -> Table:
        """Return a row for each method that has any of the metrics, by column header."""
        rows: list[tuple[Cell, ...]] = []
        for method in self.methods:
            found = [self.estimate(method, metric) for metric in metrics.values()]
            if any(found):
                runs = max(one.num for one in found if one is not None)
                rows.append((name_method(method), runs, *map(as_estimate, found)))
        small = {head for head in metrics if head in _SMALL or head.startswith(_STARTS_SMALL)}
        heads = (
            Column(head, digits=digits or (3 if head in small else 0 if "buffer," in head else 1))
            for head in metrics
        )
        return Table(self.title(title), ("Method", "runs", *heads), rows, note)


def by_stream(results: Results, measured: Measured) -> dict[str, Runs]:
    """Return the runs of each stream, in their order."""
    return {
        stream: Runs(stream, {one: results[one] for one in own}, {one: measured[one] for one in own})
        for stream, own in group_by(results, lambda one_run: one_run.stream).items()
    }


def as_estimate(found: Contrast | None) -> Estimate | None:
    """Return a table cell; none for none."""
    return None if found is None else Estimate.of(found)


def report_head(runs: Runs) -> Table:
    """Return a table of the recovery of primitives from compositions, and of step sizes."""
    metrics = {
        "CCE": "cce_transpose",
        "CCE by solve": "cce_solve",
        "PR-AUC": "pr_auc_transpose",
        "ROC-AUC": "roc_auc_transpose",
        "ROC-AUC by solve": "roc_auc_solve",
        "sigma": "sigma_max",
        "alpha": "alpha_mean",
        "step taken": "realised_mean",
        "alpha, all tasks": "alpha_realised",
        "gamma": "gamma",
        "s(image, composition)": "similarity_mean",
        "gradient": "gradient_mean",
        "buffer, entries": "buffer_entries",
        "buffer, bytes": "buffer_bytes",
    }
    note = (
        "CCE: the distance between the direction decoded from a composition and each of its primitives, 0 "
        "to 2. AUC: the composition's primitives against all names of the stream. Sigma: the largest of a "
        "step. Alpha: the factor on steps or gradients. Step taken: the length of every tenth step relative "
        "to a full step; under Adam a shorter gradient does not change it. Alpha, step taken, similarity and "
        "gradient length are means over the last task's steps. A head leaves CLIP frozen, so by "
        "construction none of its layers drifts."
    )
    return runs.tabulate("heads", metrics, note)


def report_margins(runs: Runs) -> Table:
    """Return a table of margins between a caption and its edits, by category."""
    rows: list[tuple[Cell, ...]] = []
    for method in runs.methods:
        for category in _list_categories(runs):
            cells: list[Cell] = []
            for score in ("composed", "fused"):
                names = [f"{score} margin {category}{end}" for end in ("", " above", " zero", " p")]
                *found, p = (runs.estimate(method, name) for name in names)
                cells += [*map(as_estimate, found), None if p is None else PValue(p.value)]
            if any(cell is not None for cell in cells):
                rows.append((name_method(method), category, *cells))

    ends = ("margin", "above 0", "exactly 0", "p")
    heads = [Column(f"{score}, {end}", digits=3) for score in ("composed", "fused") for end in ends]
    note = (
        "s(image, caption) - s(image, edited caption) on the tests of all tasks after the last one: mean, "
        "shares, and Wilcoxon's p, each a mean over runs. Primitives are phrases: an edited relation leaves "
        "the composition unchanged, so the composed margin is exactly 0. A method without a head has e_c for "
        "both."
    )
    return Table(runs.title("margins"), ("Method", "Edit", *heads), rows, note)


def report_margin_gaps(runs: Runs) -> Table:
    """Return the differences of margins, the whole method minus each other, in runs of the same seed."""
    rows: list[tuple[Cell, ...]] = []
    for method in runs.methods:
        for category in _list_categories(runs) if method != FULL else ():
            names = [f"{score} margin {category}" for score in ("composed", "fused")]
            gaps = [list(runs.list_gaps(FULL, method, name).values()) for name in names]
            if all(len(gap) > 1 for gap in gaps):
                reported: list[Cell] = []
                for name, gap in zip(names, gaps, strict=True):
                    reported += [as_estimate(runs.compare(FULL, method, name)), PValue(wilcoxon(gap))]
                rows.append((name_method(method), category, len(gaps[0]), *reported))
    ends = ("wider by", "p")
    heads = [Column(f"{score}, {end}", digits=3) for score in ("composed", "fused") for end in ends]
    note = (
        f"Mean margins of {FULL} minus those of another method, paired by seed; p by Wilcoxon's signed ranks "
        "over runs, at least 2 / 2^runs. Runs that share a backbone are correlated. A method without a head "
        "has e_c for both. Published: wider than the ablations', p < .01."
    )
    return Table(
        runs.title(f"margins, {FULL} minus other methods"), ("Than", "Edit", "runs", *heads), rows, note
    )


def _list_categories(runs: Runs) -> list[str]:
    own = [name for found in runs.measured.values() for name in found]
    categories = sorted({name.split(" margin ")[1] for name in own if name.startswith("fused margin")})
    return [one for one in categories if not one.endswith((" above", " zero", " p"))]


def report_correlations(runs: Runs) -> Table:
    """Return the correlation of sigma with recall and CRR over the tasks of a run, all heads' runs pooled."""
    every = runs.results.values()
    own = [one for one in every if one.num_tasks > 1 and np.isfinite(one.of_method("sigma_max")).all()]
    rows: list[tuple[Cell, ...]] = []
    for name, figure in (("recall, or answers, so far", runs.main), ("CRR to primitives", "fused crr")):
        found = [(one.of_method("sigma_max"), average_so_far(one, figure)) for one in own]
        found = [pair for pair in found if np.isfinite(pair[1]).all()]
        if not found:
            continue
        sigma, value = (np.concatenate(part) for part in zip(*found, strict=True))
        run = np.repeat(np.arange(len(found)), [len(pair[0]) for pair in found])
        step = np.concatenate([np.arange(len(pair[0]), dtype=np.float64) for pair in found])
        for controlled, controls in (("runs", []), ("runs and tasks seen", [step])):
            one = correlate_within(sigma, value, controls, run)
            rows.append((name, controlled, Estimate(one.r, one.low, one.high), one.freedom))
    heads = ("The largest sigma of a task with", "controlled for", Column("r", digits=2), "freedom")
    note = (
        "Partial correlations over the tasks of all runs together; one run has too few tasks. Runs that "
        "share a backbone are correlated, so the intervals are too narrow. Sigma and recall share s(image, "
        "composition), so they are correlated by construction. Published: -.82 and -.81."
    )
    return Table(runs.title("sigma and recall"), heads, rows, note)


def report_drift(runs: Runs) -> Table:
    """Return how far each layer of the text tower moved, the mean over a method's runs; a method that trains
    the model and has no such figures is named."""
    rows: list[tuple[Cell, ...]] = []
    num_tasks = max(result.num_tasks for result in runs.results.values())

    def average(results: Sequence[Result], figure: str) -> list[Cell]:
        found = [one.of_method(figure) for one in results if (METHOD, figure) in one.values]
        return [value if np.isfinite(value) else None for value in np.mean(found, axis=0).tolist()]

    for method in runs.methods:
        every = runs.results.values()
        own = [one for one in every if one.one_run.method == method and one.one_run.is_tuned]
        names = dict.fromkeys(name for one in own for of, name in one.values if of == METHOD)
        layers = [name.removeprefix(SUBSPACE_DRIFT) for name in names if name.startswith(SUBSPACE_DRIFT)]
        for layer in layers:
            drifts = average(own, f"{SUBSPACE_DRIFT}{layer}")
            distances = average(own, f"{STATE_DISTANCE}{layer}")
            rows.append((name_method(method), layer, *drifts, distances[-1]))
        if own and not layers:
            rows.append((name_method(method), "not recorded", *[None] * (num_tasks + 1)))
    heads = [f"after task {t + 1}" for t in range(num_tasks)] + ["cosine distance, at the end"]
    note = (
        "By task, the subspace drift of the states at the end-of-text token of up to 256 test texts of the "
        "first task, after each block, from the start model's: one minus the mean squared cosine of the "
        "principal angles between their main directions, at most 16; 0 to 1, at right angles. The cosine "
        "distance is a mean over texts, 0 to 2. The paper's text defines neither the subspace nor the token. "
        "Other methods train heads: CLIP is frozen, so their drift is 0 by construction. Not recorded: the "
        "text tower is not a list of blocks pooled at that token, a method of your own trains the model in "
        "another way, or the run is of an earlier version. Published: largest in deep layers and later tasks."
    )
    columns: Columns = ("Method", "layer", *(Column(head, digits=4) for head in heads))
    return Table(runs.title("drift of the text tower by layer"), columns, rows, note)


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
            report_drift(runs),
            *report_matrices(runs),
        ]
    return [table for table in made if table.rows]


def report_samples(streams: Mapping[str, Any]) -> list[Table]:
    """Return a table of how many samples each half of each task has, and how many of them are used; no table
    if all are used. ``streams``: the recorded facts of each."""
    halves = {said: counts for facts in streams.values() for said, counts in facts["samples"].items()}
    rows: list[tuple[Cell, ...]] = [
        (said, counts.get(OK, 0), sum(counts.values())) for said, counts in halves.items()
    ]
    note = "All results use these samples; the warnings above give the reasons for excluding the others."
    is_whole = all(used == num for _, used, num in rows)
    return [] if is_whole else [Table("Samples used", ("Stream, task, half", "used", "of"), rows, note)]


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
    heads = [*(name.replace("_", " ") for name in metrics), "detectable, last"]
    columns: Columns = ("Method", "runs", *(Column(head, "points", 1) for head in heads), "")
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
    """Return CRR by both readings, with its components."""
    heads = {"CRR to primitives": CRR, "CRR to learned": CRR_LEARNED}
    heads |= {"pair": "a_pair", "attributes": "a_attribute", "objects": "a_object"}
    metrics = {head: f"fused {name}" for head, name in heads.items()}
    note = (
        "After the last task, shares of the captions that images retrieve from the merged gallery by the "
        "fused score: all primitives right, all attributes right, all objects right. The paper's text leaves "
        "CRR open. To primitives: pair / (attributes x objects), 1 where both are right independently, also "
        "at chance, so compare it with the pair. To learned: pair of all tasks except the last, relative to "
        "pair right after each of them, 1 where nothing is lost."
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
    for stream, runs in by_stream(results, measured).items():
        for method in runs.methods:
            own = [found for one_run, found in runs.measured.items() if one_run.method == method]
            names = dict.fromkeys(name for found in own for name in found)
            figures = {name: runs.estimate(method, name) for name in names}
            for other in (FROZEN, FULL):
                if method != other:
                    figures |= {f"{name} minus {other}": runs.compare(method, other, name) for name in MAIN}
            lines += [
                (name_stream(stream), name_own(method), metric, found.value, found.low, found.high, found.num)
                for metric, found in figures.items()
                if found is not None
            ]
    return write_csv(lines)


def write_runs(measured: Measured) -> str:
    """Return all metrics of each run but its seconds, as CSV: track, method, seed, metric, value."""
    lines: list[tuple[object, ...]] = [("track", "method", "seed", "metric", "value")]
    for one, found in measured.items():
        own = name_stream(one.stream), name_own(one.method), one.seed
        lines += [
            (*own, metric.replace(" ", "_"), value) for metric, value in found.items() if metric != "seconds"
        ]
    return write_csv(lines)


def say_main(results: Results, measured: Measured) -> list[str]:
    """Return a sentence for each method of each stream: the main figure, minus frozen's if that was run."""
    lines = []
    for stream, runs in by_stream(results, measured).items():
        for method in runs.methods:
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
            unit = "points" + ", with 95 % intervals" * any(one.low <= one.high for _, one in rows)
            plots[name_stream(stream)] = Plot(runs.title("last minus frozen, fused score"), unit, rows, 0.0)
    return plots
