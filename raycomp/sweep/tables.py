"""The results of a sweep, in tables and sentences."""

import math
from collections.abc import Sequence

from raycomp.config import Domain
from raycomp.config.space import LOGUNIFORM
from raycomp.sweep.choose import Winner, estimate, estimate_apart, is_whole
from raycomp.sweep.journal import DEVELOPMENT, FAILED, REPORT, Trial
from raycomp.sweep.metric import ALL, list_main_metrics
from raycomp.sweep.plan import Plan
from raycomp.sweep.rungs import find_reached, list_rungs, mean_of_rung
from raycomp.table import Cell, Column, Columns, Estimate, Table, plain, write_cell
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
    return [
        _report_winners(plan, winners, metric),
        _report_trials(plan, trials, winners, metric),
        *([_report_rungs(plan, trials, metric)] if plan.config.rungs == "steps" else []),
        _report_unfinished(plan, trials, metric),
        _report_more(plan, trials, metric),
    ]


def _report_winners(plan: Plan, winners: Sequence[Winner], metric: str) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (say_options(plan, one.trial), one.development, one.report) for one in winners
    ]
    name = name_metric(metric)
    columns: Columns = ("Best", Column(f"{name}, development"), Column(f"{name}, report"))
    note = (
        f"{_say_places(plan)} Selection among many trials biases the best value on development seeds "
        "upward; the value on report seeds is unbiased. Intervals: 95 %, Student's t over seeds; none for "
        "fewer than two."
    )
    return Table("Selected trials", columns, rows, note)


def _say_places(plan: Plan) -> str:
    config = plan.config
    first, last = config.seeds, config.seeds + config.report_seeds - 1
    place = "little world" if config.has_worlds else "seed"
    chosen = f"Selected by the mean over development {_say_range(place, 0, first - 1)}"
    if config.rungs == "steps":
        chosen += ", among the trials of the last rung"
    if not config.report_seeds:
        return f"{chosen}; there are no report seeds, so every value here is biased by the selection."
    reported = f"reported on held-out {_say_range(place, first, last)}."
    if config.has_worlds:
        return f"{chosen}; {reported}"
    test_set = (
        "another test set" if config.report_on else "the same test set, which favours options that fit it"
    )
    return f"{chosen}; {reported} Report seeds use {test_set}."


def _say_range(what: str, first: int, last: int) -> str:
    return f"{what} {first}" if first == last else f"{what}s {first} to {last}"


def _report_trials(plan: Plan, trials: Sequence[Trial], winners: Sequence[Winner], metric: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for trial in trials:
        best = next(one.trial for one in winners if one.group.items() <= trial.options.items())
        own = [trial.list_values(metric, split) for split in (DEVELOPMENT, REPORT)]
        rows.append(
            (
                *(trial.options[option] for option in plan.space),
                *(estimate(values) for values in own),
                "the best" if trial.name == best.name else estimate_apart(trial, best, metric),
                sum(one.seconds for one in trial.outcomes.values()),
            )
        )
    name = name_metric(metric)
    columns: Columns = (
        *plan.space,
        Column(f"{name}, development"),
        Column("report"),
        Column("minus the best, paired by seed"),
        Column("training and evaluation", "s", 0),
    )
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
            f"{find_reached(trial, plan.config)} of {len(rungs)}",
            *(Estimate(mean_of_rung(trial, rung, metric)) for rung in rungs),
            sum(one.steps or 0 for one in trial.outcomes.values()),
        )
        for trial in trials
    ]
    columns: Columns = (
        "Trial",
        "rung reached",
        *(Column(f"1/{rung[0].divisor} of the steps") for rung in rungs[:-1]),
        Column("all steps"),
        Column("steps, report seeds included", "", 0),
    )
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
        failed = next((one.why for one in trial.outcomes.values() if one.status == FAILED), "")
        if failed or ended < plan.config.seeds:
            why = failed or _say_stop(plan, trial, ended)
            rows.append((say_options(plan, trial), why))
    return Table("Unfinished trials", ("Trial", "reason"), rows)


def _say_stop(plan: Plan, trial: Trial, ended: int) -> str:
    if plan.config.rungs == "steps":
        return f"stopped at rung {find_reached(trial, plan.config)} of {len(list_rungs(plan.config))}"
    return f"stopped after {ended} of {plan.config.seeds} seeds"


def _report_more(plan: Plan, trials: Sequence[Trial], metric: str) -> Table:
    """Return the other means of the evaluation by trial: the cost of the selection in other metrics."""
    whole = [trial for trial in trials if is_whole(trial, metric, plan.config.seeds)]
    found = {name for trial in whole for one in trial.outcomes.values() for name in one.metrics}
    means = sorted(name for name in found if name.endswith(f".{MACRO}"))
    wanted = list_main_metrics(plan.config.continual) if plan.config.command == "continual" else means
    names = [name for name in wanted if name in found and name != metric]
    rows: list[tuple[Cell, ...]] = [
        (say_options(plan, trial), *(estimate(trial.list_values(name, DEVELOPMENT)) for name in names))
        for trial in whole
    ]
    columns: Columns = ("Trial", *(Column(name_metric(name)) for name in names))
    return Table(
        "Other metrics, development seeds",
        columns,
        rows if names else [],
        "Secondary: not used for the selection.",
    )


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
            domain, value = plan.space[option], one.trial.options[option]
            if _is_at_end(value, domain):
                found.append(f"{option}: the best value, {value}, lies at an end of the range tried")
    failed = sum(any(o.status == FAILED for o in trial.outcomes.values()) for trial in trials)
    if failed:
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
