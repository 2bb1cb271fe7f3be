"""The page of a sweep: tables, sentences, and curves of the response."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from raycomp.config import Domain
from raycomp.config.options import GRID, LOGUNIFORM
from raycomp.report.page import Html, intervals, response
from raycomp.sweep import result
from raycomp.sweep.plan import ALL, Plan, list_main_metrics
from raycomp.sweep.result import Winner, of_group
from raycomp.sweep.trials import DEVELOPMENT, FAILED, REPORT, Trial, list_rungs
from raycomp.table import Cell, Column, Columns, Estimate, Plot, Table, group_by, plain, write_cell
from raycomp.words import MACRO

# Share of a range at either end: a best value there suggests that the range is too narrow.
_EDGE = 0.05


def name_metric(metric: str) -> str:
    """Return a metric's name for readers."""
    return metric.removesuffix(f".{MACRO}").removesuffix(f".{ALL}")


def say_options(plan: Plan, trial: Trial) -> str:
    """Return the options in which a trial differs from others."""
    own = [f"{option}={trial.options[option]}" for option in list_varied(plan)]
    return ", ".join(own) or ", ".join(f"{option}={value}" for option, value in trial.options.items())


def list_varied(plan: Plan) -> list[str]:
    """Return the options that may have more than one value."""
    return [option for option, domain in plan.space.items() if len(domain.values) > 1]


def say_winner(winner: Winner, plan: Plan, metric: str) -> str:
    """Return one line with the best trial and its reported metric."""
    figures = f"{name_metric(metric)} {plain(write_cell(winner.development))} on development seeds"
    if winner.report.value == winner.report.value:
        figures += f", {plain(write_cell(winner.report))} on report seeds"
    return f"best: {say_options(plan, winner.trial)}: {figures}"


def make_tables(plan: Plan, trials: Sequence[Trial], winners: Sequence[Winner], metric: str) -> list[Table]:
    """Return the tables of the page: the selected trials, then every trial, then further metrics."""
    name, config = name_metric(metric), plan.config
    note = (
        f"{_say_seeds(plan)} Selection among many trials biases the best value on development seeds "
        "upward; the value on report seeds is unbiased. Intervals: 95 %, Student's t over seeds; none for "
        "fewer than two."
    )
    columns: Columns = ("Best", Column(f"{name}, development"), Column(f"{name}, report"))
    best: list[tuple[Cell, ...]] = [(say_options(plan, w.trial), w.development, w.report) for w in winners]
    whole = result.list_whole(plan, trials, metric)
    # The other means of the evaluation: the cost of the selection in other metrics.
    found = {other for trial in whole for one in trial.outcomes.values() for other in one.metrics}
    means = sorted(other for other in found if other.endswith(f".{MACRO}"))
    wanted = list_main_metrics(config.continual) if config.command == "continual" else means
    names = [other for other in wanted if other in found and other != metric]
    rows: list[tuple[Cell, ...]] = [
        (say_options(plan, trial), *(trial.estimate(other, DEVELOPMENT) for other in names))
        for trial in whole
        if names
    ]
    heads: Columns = ("Trial", *(Column(name_metric(other)) for other in names))
    return [
        Table("Selected trials", columns, best, note),
        _report_trials(plan, trials, winners, metric),
        *([_report_rungs(plan, trials, metric)] if config.rungs == "steps" else []),
        _report_unfinished(plan, trials, metric),
        Table("Other metrics, development seeds", heads, rows, "Secondary: not used for the selection."),
    ]


def _say_seeds(plan: Plan) -> str:
    config = plan.config
    first, last = config.seeds, config.seeds + config.report_seeds - 1

    def say(first: int, last: int) -> str:
        return f"seed {first}" if first == last else f"seeds {first} to {last}"

    chosen = f"Selected by the mean over development {say(0, first - 1)}"
    if config.rungs == "steps":
        chosen += ", among the trials of the last rung"
    if not config.report_seeds:
        return f"{chosen}; there are no report seeds, so every value here is biased by the selection."
    is_same = config.at_seed(0).evaluate == config.at_seed(first).evaluate
    test_set = "the same test set, which favours options that fit it" if is_same else "another test set"
    return f"{chosen}; reported on held-out {say(first, last)}. Report seeds use {test_set}."


def _report_trials(plan: Plan, trials: Sequence[Trial], winners: Sequence[Winner], metric: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for trial in trials:
        best = next(one.trial for one in winners if one.group.items() <= trial.options.items())
        own = [trial.estimate(metric, split) for split in (DEVELOPMENT, REPORT)]
        apart = "the best" if trial.name == best.name else result.estimate_apart(trial, best, metric)
        seconds = sum(one.seconds for one in trial.outcomes.values())
        rows.append((*(trial.options[option] for option in plan.space), *own, apart, seconds))
    heads = (f"{name_metric(metric)}, development", "report", "minus the best, paired by seed")
    columns: Columns = (*plan.space, *heads, Column("training and evaluation", "s", 0))
    best_of = f"the best of its {plan.config.per}" if plan.config.per else "the best"
    note = (
        "By number, with search=optuna in order of their start; trials.parquet has a row per training. Minus "
        f"the best: differences from {best_of} on the development seeds, which trials share. Where the "
        "interval contains 0, the difference is not significant. The best was selected on these seeds and "
        "compared with many trials, so some intervals exclude 0 by chance."
    )
    return Table("All trials", columns, rows, note)


def _report_rungs(plan: Plan, trials: Sequence[Trial], metric: str) -> Table:
    """Return the mean over development seeds of each trial on each of its rungs."""
    rungs = list_rungs(plan.config)
    rows: list[tuple[Cell, ...]] = [
        (
            say_options(plan, trial),
            f"{result.get_reached(trial, plan.config)} of {len(rungs)}",
            *(Estimate(result.mean_of_rung(trial, rung, metric)) for rung in rungs),
            sum(one.steps or 0 for one in trial.outcomes.values()),
        )
        for trial in trials
    ]
    shares = (*(f"1/{rung[0].divisor} of the steps" for rung in rungs[:-1]), "all steps")
    columns: Columns = ("Trial", "rung reached", *shares, Column("steps, report seeds included", "", 0))
    note = (
        f"{name_metric(metric)}, mean over development seeds. Each rung is a complete training from step 0 "
        "with a schedule of its own. The best third of a rung, rounded up, advances; ties go to the smaller "
        "number."
    )
    return Table("Rungs", columns, rows, note)


def _report_unfinished(plan: Plan, trials: Sequence[Trial], metric: str) -> Table:
    """Return why trials lack seeds: the failure, or where the search stopped them."""
    rows: list[tuple[Cell, ...]] = []
    for trial in trials:
        ended = len(trial.list_values(metric, DEVELOPMENT))
        stopped = f"stopped after {ended} of {plan.config.seeds} seeds"
        if plan.config.rungs == "steps":
            reached, rungs = result.get_reached(trial, plan.config), list_rungs(plan.config)
            stopped = f"stopped at rung {reached} of {len(rungs)}"
        if trial.failure or ended < plan.config.seeds:
            rows.append((say_options(plan, trial), trial.failure or stopped))
    return Table("Unfinished trials", ("Trial", "reason"), rows)


def list_warnings(plan: Plan, trials: Sequence[Trial], winners: Sequence[Winner], metric: str) -> list[str]:
    """Return caveats on the best trial."""
    found = []
    if plan.config.seeds < 2:
        found.append("seeds: one training per trial; the variation between seeds is unknown")
    if not plan.config.report_seeds:
        found.append("report_seeds: none, so the best trial has no unbiased value")
    if plan.config.rungs == "steps" and 1 < len(trials) <= 9 * len(winners):
        found.append(
            "rungs: one trial reached the last rung, so a shorter schedule selected it; try more trials"
        )
    for one in winners:
        for option in list_varied(plan):
            value = one.trial.options[option]
            if _is_at_end(value, plan.space[option]):
                found.append(f"{option}: the best value, {value}, lies at an end of the range tried")
    if failed := sum(any(o.status == FAILED for o in trial.outcomes.values()) for trial in trials):
        found.append(f"failed: {failed} of {len(trials)} trials; the reasons are in Unfinished trials")
    return list(dict.fromkeys(found))


def _is_at_end(value: str, domain: Domain) -> bool:
    """Whether a number is the smallest or largest of at least three tried values, or in the outer twentieth
    of a range."""
    if domain.is_range:
        low, high = domain.ends
        at = [math.log(one) if domain.kind == LOGUNIFORM else one for one in (low, float(value), high)]
        share = (at[1] - at[0]) / (at[2] - at[0])
        return not _EDGE <= share <= 1 - _EDGE
    try:
        numbers = sorted(float(one) for one in domain.values)
    except ValueError:
        return False
    return len(numbers) > 2 and float(value) in (numbers[0], numbers[-1])


# Metrics of continual learning, between the name of a stream and its split.
_LEARNED, _LOST = ".learned.", ".forgetting_best."


@dataclass(frozen=True)
class Curve:
    """A figure's content."""

    name: str
    """Name of the x axis, for a file."""
    title: str
    option: str
    """The x axis: an option, or another metric."""
    unit: str
    series: Sequence[tuple[str, Sequence[tuple[float, Estimate]]]]
    """Names, and points: value of the x axis, estimate."""
    is_log: bool = False
    is_measured: bool = False
    """Whether the x axis is a result: series are then not shifted along it to avoid overlap."""


def list_curves(plan: Plan, trials: Sequence[Trial], metric: str) -> list[Curve]:
    """Return a curve for every numeric option, with a point for each of its values.

    A point is the mean over all trials with this value, by Student's t over seeds. There is one series for
    each value of ``per``; report seeds, if all trials were trained on them, are a series of their own.
    """
    whole, name = result.list_whole(plan, trials, metric), name_metric(metric)
    has_report = plan.config.report == "all" and plan.config.report_seeds
    splits = [DEVELOPMENT, REPORT] if has_report else [DEVELOPMENT]
    curves = []
    for option in (option for option in list_varied(plan) if result.is_number(plan, option)):
        series = []
        for group, split in product(plan.list_groups(), splits):
            if points := _list_points(of_group(whole, group), option, metric, split):
                series.append((", ".join([*group.values(), f"{split} seeds"]), points))
        is_log = plan.space[option].kind == LOGUNIFORM
        curves.append(Curve(option, f"{name} over {option}", option, name, series, is_log))
    return curves


def list_grids(plan: Plan, trials: Sequence[Trial], metric: str) -> list[Curve]:
    """Return a complete grid of two numeric options: one on the x axis, a series for each value of the other.

    A point is one trial, the mean over its development trainings. Empty for other spaces.
    """
    options, name = list_varied(plan), name_metric(metric)
    fits = all(result.is_number(plan, one) and plan.space[one].kind == GRID for one in options)
    if len(options) != 2 or plan.config.per is not None or not fits:
        return []
    by, over = sorted(options, key=lambda option: len(plan.space[option].values))
    whole = result.list_whole(plan, trials, metric)
    series = [
        (f"{by} {value}", _list_points(of_group(whole, {by: value}), over, metric, DEVELOPMENT))
        for value in sorted(plan.space[by].values, key=float)
    ]
    return [Curve(f"{over}-by-{by}", f"{name} over {over}, by {by}", over, name, series)]


def list_trade_offs(plan: Plan, trials: Sequence[Trial], metric: str) -> list[Curve]:
    """Return learning over forgetting, a point for each trial of continual learning.

    A method with less forgetting may have learned less: of two series the better one is higher at the same
    forgetting.
    """
    whole, found = result.list_whole(plan, trials, metric), []
    for learned in sorted({name for trial in whole for name in trial.list_metrics() if _LEARNED in name}):
        stream, _, split = learned.partition(_LEARNED)
        lost = f"{stream}{_LOST}{split}"
        series = []
        for group in plan.list_groups():
            own = [trial for trial in of_group(whole, group) if lost in trial.list_metrics()]
            lost_T = [round(trial.estimate(lost, DEVELOPMENT).value, 1) for trial in own]
            learned_T = [trial.estimate(learned, DEVELOPMENT) for trial in own]
            series.append((", ".join(group.values()) or "trials", list(zip(lost_T, learned_T, strict=True))))
        title = f"{stream}: learned and forgotten, one point per trial"
        if any(points for _, points in series):
            curve = (f"{stream}-forgotten", title, "forgotten, points", "learned, %", series)
            found.append(Curve(*curve, is_measured=True))
    return found


def _list_points(
    trials: Sequence[Trial], option: str, metric: str, split: str
) -> list[tuple[float, Estimate]]:
    groups = group_by(trials, lambda trial: trial.options[option])
    found = [(float(value), result.estimate_all(own, metric, split)) for value, own in groups.items()]
    return [(value, one) for value, one in found if one.value == one.value]


def list_plots(plan: Plan, trials: Sequence[Trial], metric: str) -> dict[str, Plot]:
    """Return the estimates of each value of every non-numeric option, one row per value, by option."""
    whole, found = result.list_whole(plan, trials, metric), {}
    for option in (option for option in list_varied(plan) if not result.is_number(plan, option)):
        values = dict.fromkeys(trial.options[option] for trial in whole)
        groups = {value: of_group(whole, {option: value}) for value in values}
        rows = [(value, result.estimate_all(own, metric, DEVELOPMENT)) for value, own in groups.items()]
        title = f"{name_metric(metric)} over {option}"
        found[option] = Plot(title, "95 % intervals over seeds", rows)
    return found


def draw_charts(plan: Plan, trials: Sequence[Trial], metric: str) -> dict[str, Html]:
    """Return the charts by the names of their files, in the order of the page."""
    charts = {}
    for make in (list_curves, list_grids, list_trade_offs):
        for one in make(plan, trials, metric):
            drawn = (one.title, one.option, one.unit, one.series, one.is_log, not one.is_measured)
            charts[one.name] = response(*drawn)
    return charts | {option: intervals(plot) for option, plot in list_plots(plan, trials, metric).items()}
