"""Tables for heads only: recovery of primitives, step sizes, margins, sigma."""

import numpy as np

from raycomp.continual.judge import TASK
from raycomp.continual.means import Runs, as_estimate
from raycomp.continual.method import FULL, name_method
from raycomp.continual.results import Result
from raycomp.core.contrasts import wilcoxon
from raycomp.core.regression import correlate_within
from raycomp.table import Cell, Column, Columns, Estimate, PValue, Table


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
        "gradient length are means over the last task's steps."
    )
    return runs.tabulate("heads", metrics, note)


def report_margins(runs: Runs) -> Table:
    """Return a table of margins between a caption and its edits, by category."""
    rows: list[tuple[Cell, ...]] = []
    for method in runs.methods:
        for category in _list_categories(runs):
            metrics = [
                f"{score} margin {category}{end}"
                for score in ("composed", "fused")
                for end in ("", " above", " zero", " p")
            ]
            found = [runs.estimate(method, metric) for metric in metrics]
            if any(found):
                cells = [
                    PValue(one.value) if one is not None and name.endswith(" p") else as_estimate(one)
                    for name, one in zip(metrics, found, strict=True)
                ]
                rows.append((name_method(method), category, *cells))
    ends = ("margin", "above 0", "exactly 0", "p")
    columns: Columns = (
        "Method",
        "Edit",
        *(Column(f"{score}, {end}", digits=3) for score in ("composed", "fused") for end in ends),
    )
    note = (
        "s(image, caption) - s(image, edited caption) on the tests of all tasks after the last one: mean, "
        "shares, and Wilcoxon's p, each a mean over runs. Primitives are phrases: an edited relation leaves "
        "the composition unchanged, so the composed margin is exactly 0. A method without a head has e_c for "
        "both."
    )
    return Table(runs.title("margins"), columns, rows, note)


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
    columns: Columns = (
        "Than",
        "Edit",
        "runs",
        *(
            Column(f"{score}, {end}", digits=3)
            for score in ("composed", "fused")
            for end in ("wider by", "p")
        ),
    )
    note = (
        f"Mean margins of {FULL} minus those of another method, paired by seed; p by Wilcoxon's signed ranks "
        "over runs, at least 2 / 2^runs. Runs that share a backbone are correlated. A method without a head "
        "has e_c for both. Published: wider than the ablations', p < .01."
    )
    return Table(runs.title(f"margins, {FULL} minus other methods"), columns, rows, note)


def _list_categories(runs: Runs) -> list[str]:
    own = [name for found in runs.measured.values() for name in found]
    categories = sorted({name.split(" margin ")[1] for name in own if name.startswith("fused margin")})
    return [one for one in categories if not one.endswith((" above", " zero", " p"))]


def report_correlations(runs: Runs) -> Table:
    """Return the correlation of sigma with recall and CRR over the tasks of a run, runs of all heads
    pooled."""
    every = runs.results.values()
    own = [one for one in every if one.num_tasks > 1 and np.isfinite(one.of_method("sigma_max")).all()]
    rows: list[tuple[Cell, ...]] = []
    for name, values in (("recall, or answers, so far", _list_recall), ("CRR so far", _list_retention)):
        found = [(one.of_method("sigma_max"), values(one)) for one in own]
        found = [pair for pair in found if np.isfinite(pair[1]).all()]
        if not found:
            continue
        sigma, value = (np.concatenate(part) for part in zip(*found, strict=True))
        run = np.repeat(np.arange(len(found)), [len(pair[0]) for pair in found])
        step = np.concatenate([np.arange(len(pair[0]), dtype=np.float64) for pair in found])
        for head, controls in (("runs", []), ("runs and tasks seen", [step])):
            one = correlate_within(sigma, value, controls, run)
            rows.append((name, head, Estimate(one.r, one.low, one.high), one.freedom))
    columns: Columns = (
        "The largest sigma of a task with",
        "controlled for",
        Column("r", digits=2),
        "freedom",
    )
    note = (
        "Partial correlations over the tasks of all runs together; one run has too few tasks. Runs that "
        "share a backbone are correlated, so the intervals are too narrow. Sigma and recall share s(image, "
        "composition), so they are correlated by construction. Published: -.82 and -.81."
    )
    return Table(runs.title("sigma and recall"), columns, rows, note)


def _list_recall(result: Result) -> np.ndarray:
    matrix = result.matrix(result.main)
    return np.array([matrix[t, : t + 1].mean() for t in range(len(matrix))])


def _list_retention(result: Result) -> np.ndarray:
    if (TASK, "fused crr") not in result.values:
        return np.full(result.num_tasks, np.nan)
    matrix = result.matrix("fused crr") / 100
    return np.array([matrix[t, : t + 1].mean() for t in range(len(matrix))])
