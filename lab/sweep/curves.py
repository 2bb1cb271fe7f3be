"""Response curves: a metric over the values of each option, optionally with a published curve."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raycomp.config.space import GRID, LOGUNIFORM
from raycomp.sweep.choose import estimate, estimate_all, is_whole, of_group
from raycomp.sweep.journal import DEVELOPMENT, REPORT, Trial
from raycomp.sweep.plan import Plan, list_groups
from raycomp.sweep.rows import is_number
from raycomp.sweep.tables import list_varied, name_metric
from raycomp.table import Column, Estimate, Plot, Table, group_by

# Metrics of continual learning, between the name of a stream and its split.
_LEARNED, _LOST = ".learned.", ".forgetting_best."
SOURCE = "Go et al. (arXiv 2605.22651), Table 1: CC3M, ViT-B/32, one seed"


@dataclass(frozen=True)
class Curve:
    """A figure's content: series of (value of the option, estimate)."""

    name: str
    """Name of the x axis, for a file."""
    title: str
    option: str
    """The x axis: an option, or another metric."""
    unit: str
    series: Sequence[tuple[str, Sequence[tuple[float, Estimate]]]]
    is_log: bool = False
    is_measured: bool = False
    """Whether the x axis is a result: series are then not shifted along it to avoid overlap."""


def list_curves(plan: Plan, trials: Sequence[Trial], metric: str) -> list[Curve]:
    """Return a curve for every numeric option, with a point for each of its values.

    A point is the mean over all trials with this value, by Student's t over seeds. There is one series for
    each value of ``per``; report seeds, if all trials were trained on them, are a series of their own.
    """
    whole = [trial for trial in trials if is_whole(trial, metric, plan.config.seeds)]
    numbers = [option for option in list_varied(plan) if is_number(plan, option)]
    return [
        Curve(
            option,
            f"{name_metric(metric)} over {option}",
            option,
            name_metric(metric),
            [one for one in _list_series(plan, whole, option, metric) if one[1]],
            plan.space[option].kind == LOGUNIFORM,
        )
        for option in numbers
    ]


def list_grids(plan: Plan, trials: Sequence[Trial], metric: str) -> list[Curve]:
    """Return a complete grid of two numeric options: one on the x axis, a series for each value of the other.

    A point is one trial, the mean over its development trainings. Empty for other spaces.
    """
    options = list_varied(plan)
    if len(options) != 2 or plan.config.per is not None:
        return []
    if not all(is_number(plan, option) and plan.space[option].kind == GRID for option in options):
        return []
    by, over = sorted(options, key=lambda option: len(plan.space[option].values))
    whole = [trial for trial in trials if is_whole(trial, metric, plan.config.seeds)]
    series = [
        (f"{by} {value}", _list_points(of_group(whole, {by: value}), over, metric, DEVELOPMENT))
        for value in sorted(plan.space[by].values, key=float)
    ]
    title = f"{name_metric(metric)} over {over}, by {by}"
    return [Curve(f"{over}-by-{by}", title, over, name_metric(metric), series)]


def list_trade_offs(plan: Plan, trials: Sequence[Trial], metric: str) -> list[Curve]:
    """Return learning over forgetting, a point for each trial of continual learning.

    A method with less forgetting may have learned less: of two series the better one is higher at the same
    forgetting.
    """
    whole = [trial for trial in trials if is_whole(trial, metric, plan.config.seeds)]
    found = []
    for learned in sorted({name for trial in whole for name in trial.list_metrics() if _LEARNED in name}):
        stream, _, split = learned.partition(_LEARNED)
        lost = f"{stream}{_LOST}{split}"
        series = [
            (
                ", ".join(group.values()) or "trials",
                [
                    (
                        round(estimate(trial.list_values(lost, DEVELOPMENT)).value, 1),
                        estimate(trial.list_values(learned, DEVELOPMENT)),
                    )
                    for trial in of_group(whole, group)
                    if lost in trial.list_metrics()
                ],
            )
            for group in list_groups(plan)
        ]
        title = f"{stream}: learned and forgotten, one point per trial"
        along = "forgotten, points"
        if any(points for _, points in series):
            found.append(Curve(f"{stream}-forgotten", title, along, "learned, %", series, is_measured=True))
    return found


def _list_series(
    plan: Plan, trials: Sequence[Trial], option: str, metric: str
) -> list[tuple[str, list[tuple[float, Estimate]]]]:
    splits = (
        [DEVELOPMENT, REPORT] if plan.config.report == "all" and plan.config.report_seeds else [DEVELOPMENT]
    )
    found = []
    for group in list_groups(plan):
        own = of_group(trials, group)
        for split in splits:
            name = ", ".join([*group.values(), f"{split} seeds"])
            found.append((name, _list_points(own, option, metric, split)))
    return found


def _list_points(
    trials: Sequence[Trial], option: str, metric: str, split: str
) -> list[tuple[float, Estimate]]:
    found = [
        (float(value), estimate_all(own, metric, split)) for value, own in _group(trials, option).items()
    ]
    return [(value, one) for value, one in found if one.value == one.value]


def _group(trials: Sequence[Trial], option: str) -> dict[str, list[Trial]]:
    return group_by(trials, lambda trial: trial.options[option])


def list_plots(plan: Plan, trials: Sequence[Trial], metric: str) -> list[Plot]:
    """Return the estimates of each value of every non-numeric option, one row per value."""
    whole = [trial for trial in trials if is_whole(trial, metric, plan.config.seeds)]
    found = []
    for option in (option for option in list_varied(plan) if not is_number(plan, option)):
        groups = _group(whole, option)
        rows = [(value, estimate_all(own, metric, DEVELOPMENT)) for value, own in groups.items()]
        found.append(Plot(f"{name_metric(metric)} over {option}", "95 % intervals over seeds", rows))
    return found


class Kept(NamedTuple):
    """A row of the table; figures in percent."""

    keep: float
    """Share of the corpus, 0 to 1."""
    sugarcrepe: float
    """Overall."""
    sugarcrepe_pp: float
    """Overall."""
    imagenet: float
    """Zero-shot, top 1."""
    text_to_image: float
    """Flickr recall@1."""


# Selection by alignment alone: trained from scratch on the best aligned shares; the authors call it
# exploratory.
TABLE_1 = (
    Kept(1.0, 57.69, 45.32, 7.413, 10.260),
    Kept(0.9, 57.86, 45.64, 7.492, 10.700),
    Kept(0.8, 57.82, 45.36, 7.458, 10.700),
    Kept(0.7, 58.34, 45.95, 7.558, 11.020),
    Kept(0.6, 58.10, 45.72, 7.592, 10.560),
    Kept(0.5, 57.92, 45.69, 7.477, 10.225),
)


def published_curve() -> Curve:
    """Return the paper's curve, which has other data, another model and another test set."""
    series = [
        ("SugarCrepe, overall", [(row.keep, Estimate(row.sugarcrepe / 100)) for row in TABLE_1]),
    ]
    return Curve("share-kept", f"As published: {SOURCE}", "share kept", "SugarCrepe, overall", series)


def published_table(plan: Plan, trials: Sequence[Trial], metric: str) -> Table:
    """Return the paper's rows with the sweep's results at the same shares."""
    option = next(iter(list_varied(plan)), "attribute.keep")
    whole = [trial for trial in trials if is_whole(trial, metric, plan.config.seeds)]
    mine = dict(_list_points(whole, option, metric, DEVELOPMENT)) if option in plan.space else {}
    rows = [
        (
            f"{row.keep:.0%}",
            row.sugarcrepe,
            row.sugarcrepe_pp,
            row.imagenet,
            row.text_to_image,
            mine[row.keep].times(100) if row.keep in mine else None,
        )
        for row in TABLE_1
    ]
    columns = (
        "Kept by alignment",
        Column("published: SugarCrepe", "%", 2),
        Column("SugarCrepe++", "%", 2),
        Column("ImageNet", "%", 2),
        Column("Flickr text to image", "%", 2),
        Column(f"here: {name_metric(metric)}", "%", 2),
    )
    note = (
        f"Published: {SOURCE}; its authors call it exploratory. Here pairs, model and test set differ, so "
        "compare the shapes, not the levels."
    )
    return Table("Comparison with the published curve", columns, rows, note)
