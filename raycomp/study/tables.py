"""The study's tables: planned contrasts first, then all others, which are marked as secondary."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from raycomp.core.contrasts import Contrast, contrast
from raycomp.study.results import (
    AUGMENTED,
    BRITTLE,
    CLEANED,
    PRIMARY,
    Compared,
    Result,
    Results,
    compare,
    list_groups,
    of_group,
)
from raycomp.study.runs import FULL, HALVES, METHODS, ORACLE, RANDOM
from raycomp.table import Cell, Column, Columns, Estimate, Plot, PValue, Table, number, write_csv
from raycomp.words import OPERATIONS
from raycomp.worlds.faults import NO_FAULT
from raycomp.worlds.test_set import CATEGORIES

NAMES = tuple(" ".join(category) for category in CATEGORIES)
Metric = Callable[[Result], float]
METRICS: dict[str, Metric] = {
    "primary": Result.macro,
    "augmented": lambda result: result.macro(AUGMENTED),
    "brittle": lambda result: result.macro(BRITTLE),
    "recall@1": Result.recall,
    "unseen pairs": lambda result: result.macro(seen=False),
}
_SAID = "In percent; 95 % intervals by Student's t over seeds. "
_OF_METRICS = (
    "Augmented: caption and paraphrase are both scored above the negative. Brittleness: the negative "
    "lies between them; lower is better. recall@1: both directions among the scenes of seen pairs. The last "
    "column covers scenes with a pair of colour and shape that no training pair shows or names, though "
    "training negatives may. A negative often names fewer such pairs than its caption, so a preference for "
    "familiar pairs can score below chance. ADD writes no negative for captions of three objects."
)


def make_tables(results: Results, planned: Sequence[Compared]) -> list[Table]:
    """Return the tables of the page, for the runs that exist."""
    groups = list_groups(results)
    methods = ("clip", "negclip")
    halves = [
        name for method in methods for subset in (FULL, *HALVES) if (name := f"{method}-{subset}") in groups
    ]
    whole = [name for method in METHODS if (name := f"{method}-{FULL}") in groups]
    drawn = [
        (f"{method}-{subset}", f"{method}-{other}")
        for method in methods
        for other in (RANDOM, ORACLE)
        for subset in HALVES
        if subset not in (RANDOM, other)
    ]
    calls = [(f"{name}_mc-{FULL}", f"{name}-{FULL}") for name in METHODS]
    only = [f"negclip-{FULL}-{operation.lower()}" for operation in OPERATIONS]
    operations = [(group, f"clip-{FULL}") for group in (*only, f"negclip-{FULL}")]
    made = [
        report_contrasts(planned),
        report_groups("Selection rules, half of the pairs each", results, halves, METRICS, _OF_METRICS),
        report_differences(
            "Selection rules minus random halves, of all pairs and of correct pairs", results, drawn
        ),
        report_faults(results, halves),
        report_groups("Training methods on all pairs", results, whole, METRICS, _OF_METRICS),
        report_differences("Negatives of several calls minus single calls", results, calls),
        report_differences("Negatives of one operation", results, operations),
        *(
            report_groups(title, results, groups, _by_category(seen), "Chance is 50.")
            for title, seen in (("By category, seen pairs", True), ("By category, unseen pairs", False))
        ),
        report_worlds(results),
    ]
    return [table for table in made if table.rows]


def report_contrasts(planned: Sequence[Compared]) -> Table:
    """Return the planned contrasts and their reference."""
    rows: list[tuple[Cell, ...]] = [
        (
            f"{one.first} minus {one.second}",
            one.by_seed.num,
            Estimate.of(one.by_seed),
            PValue(one.by_seed.p),
            None if one.p_holm is None else PValue(one.p_holm),
            one.by_seed.detectable,
            Estimate.of(one.by_world),
            Estimate(one.by_seed.value, *one.bootstrap) if one.bootstrap else None,
            one.by_seed.sd,
            one.verdict if one.p_holm is not None else "not planned",
        )
        for one in planned
    ]
    columns: Columns = (
        "Contrast",
        "seeds",
        Column("difference", "points", 2),
        "p",
        "p after Holm",
        Column("detectable", "points", 2),
        Column("by world", "points", 2),
        Column("bootstrap", "points", 2),
        Column("SD of a pair", "points", 2),
        "verdict",
    )
    note = (
        f"The primary metric is the mean accuracy of {', '.join(PRIMARY)} on scenes of seen pairs; a tie is "
        "wrong. Two contrasts were planned in advance; their p values are adjusted after Holm. Trainings of "
        "one seed share their initial weights and batch order, so they are compared in pairs: by a paired t "
        "test over seeds; by world, with one mean difference per world, which includes the variation of a "
        "selection between worlds; and by a bootstrap over seeds and test images. Detectable is the smallest "
        "difference that as many pairs would show in 80 % of studies, at 5 % two-sided. Undecided: the test "
        f"is not significant. {' minus '.join(CLEANED)} is the gain from removing faulty pairs alone; a rule "
        "may gain more, because it also selects among correct pairs. A table below gives the faulty pairs of "
        "each selection rule; faulty pairs cannot explain a difference between two rules with equal numbers."
    )
    return Table("Planned contrasts", columns, rows, note)


def report_groups(
    title: str, results: Results, groups: Iterable[str], metrics: Mapping[str, Metric], note: str
) -> Table:
    """Return the metrics of groups of runs, each with its own interval over seeds."""
    rows: list[tuple[Cell, ...]] = [
        (
            group,
            len(of_group(results, group)),
            *(mean_of(results, group, metric) for metric in metrics.values()),
        )
        for group in groups
    ]
    columns: Columns = ("Run", "seeds", *(Column(name, digits=1) for name in metrics))
    return Table(title, columns, rows, _SAID + note)


def mean_of(results: Results, group: str, metric: Metric) -> Estimate:
    """Return a group's mean of a metric over its seeds."""
    return Estimate.of(contrast([metric(result) for result in of_group(results, group).values()]))


def report_differences(title: str, results: Results, pairs: Sequence[tuple[str, str]]) -> Table:
    """Return paired differences by metric, and by the operation that made the test set's negatives.

    ``pairs``: groups of runs, some of which may be missing.
    """
    metrics = {
        **METRICS,
        **{operation: _metric_of(operation) for operation in OPERATIONS},
    }
    rows: list[tuple[Cell, ...]] = []
    groups = set(list_groups(results))
    for first, second in (pair for pair in pairs if groups.issuperset(pair)):
        found = [compare(results, first, second, metric) for metric in metrics.values()]
        rows.append(
            (
                f"{first} minus {second}",
                found[0].by_seed.num if found[0] else 0,
                *(Estimate.of(one.by_seed) if one else None for one in found),
                found[0].by_seed.detectable if found[0] else None,
            )
        )
    columns: Columns = (
        "Runs",
        "seeds",
        *(Column(name, digits=1) for name in metrics),
        Column("detectable, primary", digits=1),
    )
    note = (
        "Secondary: points, with 95 % intervals of paired differences over seeds, not adjusted for their "
        "number. SWAP, REPLACE and ADD are means over the test set's categories of that operation."
    )
    return Table(title, columns, rows, note)


def _metric_of(operation: str) -> Metric:
    names = [name for name in NAMES if name.startswith(operation)]
    return lambda result: result.macro(categories=names)


def _by_category(seen: bool) -> dict[str, Metric]:
    return {name: partial(Result.share, category=name, seen=seen) for name in NAMES}


def report_faults(results: Results, groups: Sequence[str]) -> Table:
    """Return the number of faulty pairs that each selection rule trains on, as means over its trainings."""
    clip = [group for group in groups if group.startswith("clip-")] or list(groups)
    facts = {group: [result.facts for result in of_group(results, group).values()] for group in clip}
    faults = sorted(
        {fault for some in facts.values() for one in some for fault in one["faults"]} - {NO_FAULT}
    )
    rows: list[tuple[Cell, ...]] = []
    for group, some in facts.items():
        counts = [
            sum((Counter(one["faults"]) for one in some), Counter())[fault] / len(some) for fault in faults
        ]
        pairs = float(np.mean([one["pairs"] for one in some]))
        rows.append((group, round(pairs), *counts, 100 * sum(counts) / pairs))
    columns: Columns = (
        "Selection rule",
        "pairs",
        *(Column(fault.replace("_", " "), digits=0) for fault in faults),
        Column("with a fault", "%", 1),
    )
    return Table("Training pairs of each selection rule", columns, rows, "Means over trainings.")


def report_worlds(results: Results) -> Table:
    """Return the scorers of the worlds, and a summary of their trainings."""
    rows: list[tuple[Cell, ...]] = []
    for world in sorted({result.facts["world"] for result in results.values()}):
        own = [result for result in results.values() if result.facts["world"] == world]
        scorer = own[0].facts["scorer"]
        means = [100 * scorer[way] for way in ("image_to_text", "text_to_image")]
        rows.append((str(world), len(own), *means, float(np.mean([one.facts["seconds"] for one in own]))))
    columns: Columns = (
        "World",
        "runs",
        Column("scoring model's recall@1, image to text", "%", 1),
        Column("text to image", "%", 1),
        Column("time of a run", "s", 0),
    )
    return Table("Worlds", columns, rows)


def write_long(results: Results, planned: Sequence[Compared]) -> str:
    """Return all figures as CSV, one a row: what, metric, value, low, high, seeds, detectable, p."""
    lines: list[tuple[object, ...]] = [
        ("what", "metric", "value", "low", "high", "seeds", "detectable", "p", "p_holm")
    ]
    for one in planned:
        name = f"{one.first} minus {one.second}"
        lines.append((name, "primary", *_list_figures(one.by_seed), one.p_holm))
        lines.append((name, "primary by world", *_list_figures(one.by_world), None))
    categories = [
        (f"{name}, {said}", metric)
        for said, seen in (("seen", True), ("unseen", False))
        for name, metric in _by_category(seen).items()
    ]
    for group in list_groups(results):
        for name, metric in (*METRICS.items(), *categories):
            found = contrast([metric(result) for result in of_group(results, group).values()])
            lines.append((group, name, *_list_figures(found)[:4], None, None, None))
    return write_csv(lines)


def _list_figures(found: Contrast) -> list[float | None]:
    figures = (found.value, found.low, found.high, found.num, found.detectable, found.p)
    return [None if value != value else value for value in figures]


def say_verdicts(planned: Sequence[Compared]) -> list[str]:
    """Return a sentence for each planned contrast."""
    return [
        f"{one.first} minus {one.second}: {number(one.by_seed.value, 2)} points "
        f"[{number(one.by_seed.low, 2)}, {number(one.by_seed.high, 2)}], detectable "
        f"{number(one.by_seed.detectable, 2)}: {one.verdict}"
        for one in planned
        if one.p_holm is not None
    ]


def list_plots(results: Results, planned: Sequence[Compared]) -> dict[str, Plot]:
    """Return the plots, by the name of the file."""
    rows = [(f"{one.first} - {one.second}", Estimate.of(one.by_seed)) for one in planned]
    title, unit = "Differences in the primary metric", "points, with 95 % intervals over seeds"
    plots = {"contrasts": Plot(title, unit, rows, 0.0)} if rows else {}
    for name, metric in METRICS.items():
        rows = [(group, mean_of(results, group, metric)) for group in list_groups(results)]
        file = name.replace(" ", "-").replace("@", "")
        plots[file] = Plot(f"All runs: {name}", "percent, with 95 % intervals over seeds", rows)
    return plots
