"""Selection: the best trial, and the trials that advance from a rung to the next one.

The best is selected on development seeds and reported on held-out seeds. ``rungs=steps`` is synchronous
successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) with reduction factor 3. A rung is a
complete training with a shorter schedule, not a halfway metric of a longer one, so trials are compared after
their learning rates have fallen. The outcomes of a rung alone decide which trials advance, not the order in
which they arrive: a resumed sweep advances the same trials.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from raycomp.core.intervals import contrast
from raycomp.run.run import Say
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import Options, Plan, list_points
from raycomp.sweep.trials import (
    DEVELOPMENT,
    DIVISORS,
    FAILED,
    REPORT,
    Journal,
    Outcome,
    SeedTraining,
    Trial,
    list_rungs,
)
from raycomp.table import Estimate


@dataclass(frozen=True)
class Winner:
    """The best trial of a group."""

    group: Mapping[str, str]
    """The group's value of ``per``; nothing if there is one group."""
    trial: Trial
    development: Estimate
    report: Estimate
    """NaN if there is no report seed."""

    @property
    def name(self) -> str:
        """A short name of the group."""
        return next(iter(self.group.values()), "best")


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean over trainings with its 95 % interval by Student's t; no interval for fewer than
    two."""
    return Estimate.of(contrast(values))


def estimate_all(trials: Sequence[Trial], metric: str, split: str) -> Estimate:
    """Return the mean over trials, by Student's t over the seeds that all of them have, each counted once."""
    found = [trial.find_values(metric, split) for trial in trials]
    shared = sorted(set.intersection(*map(set, found))) if found else []
    return estimate([fmean(values[seed] for values in found) for seed in shared])


def estimate_apart(trial: Trial, other: Trial, metric: str) -> Estimate:
    """Return the difference of a trial from another on development seeds, paired by seed."""
    own, others = (one.find_values(metric, DEVELOPMENT) for one in (trial, other))
    return estimate([own[seed] - others[seed] for seed in own if seed in others])


def is_whole(trial: Trial, metric: str, num_seeds: int) -> bool:
    """Whether all development trainings of a trial finished: only such trials are compared."""
    values = trial.list_values(metric, DEVELOPMENT)
    return len(values) == num_seeds and all(value == value for value in values)


def of_group(trials: Sequence[Trial], group: Mapping[str, str]) -> list[Trial]:
    return [trial for trial in trials if group.items() <= trial.options.items()]


def choose_best(
    trials: Sequence[Trial], group: Mapping[str, str], metric: str, mode: str, num_seeds: int
) -> Winner:
    """Return the best trial of a group by its mean over development seeds; ties go to the first one.

    Raises ValueError if no trial of the group finished.
    """
    own = of_group(trials, group)
    whole = [trial for trial in own if is_whole(trial, metric, num_seeds)]
    if not whole:
        reasons = [f": {one.why}" for trial in own for one in trial.outcomes.values() if one.status == FAILED]
        said = ", ".join(f"{option}={value}" for option, value in group.items())
        why = (reasons or [f": {metric} was not reported" if own else ""])[0]
        raise ValueError(f"space: no trial{said and ' of '}{said} finished{why}")
    sign = 1 if mode == "max" else -1

    def rank(trial: Trial) -> float:
        return sign * estimate(trial.list_values(metric, DEVELOPMENT)).value

    best = max(whole, key=rank)
    development, report = (estimate(best.list_values(metric, split)) for split in (DEVELOPMENT, REPORT))
    return Winner(group, best, development, report)


def mean_so_far(outcomes: Sequence[Outcome], metric: str) -> float:
    """Return the mean of a metric over finished trainings; NaN if one of them failed."""
    values = [one.value(metric) for one in outcomes]
    return sum(values) / len(values)


REDUCTION = 3
Train = Callable[[Sequence[Options], Sequence[SeedTraining]], None]
"""Trains these trials on these seeds; outcomes go to the journal, those that are there are kept."""


def get_rung(config: SweepConfig, training: SeedTraining) -> int | None:
    """Return the rung of a training, from 1; None on report seeds and without ``rungs=steps``."""
    is_rung = config.rungs == "steps" and training.split == DEVELOPMENT
    return DIVISORS.index(training.divisor) + 1 if is_rung else None


def count_rungs(num_trials: int) -> list[int]:
    """Return the number of trials on each rung, if enough of them finish."""
    counts = [num_trials]
    while len(counts) < len(DIVISORS):
        counts.append(_count_advancing(counts[-1]))
    return counts


def share_of_steps(num_trials: int) -> float:
    """Return the steps of all rungs, as a share of those that train every trial for all steps."""
    counts = zip(count_rungs(num_trials), DIVISORS, strict=True)
    return sum(num / divisor for num, divisor in counts) / num_trials


def read_trials(plan: Plan, journal: Journal) -> list[Trial]:
    """Return the trials by number: their order in the plan; with search=optuna that of their start."""
    trials = journal.read()
    if plan.config.search == "optuna":
        return trials
    numbers = {tuple(point[option] for option in plan.space): n for n, point in enumerate(list_points(plan))}

    def find_number(trial: Trial) -> int:
        return numbers.get(tuple(trial.options[option] for option in plan.space), len(numbers))

    return sorted(trials, key=find_number)


def climb(
    plan: Plan, journal: Journal, group: Mapping[str, str], metric: str, train: Train, say: Say
) -> None:
    """Train the best trials of each rung on the next one, once the first rung has ended."""
    rungs = list_rungs(plan.config)
    for number, (ended, following) in enumerate(pairwise(rungs), 1):
        trials = of_group(read_trials(plan, journal), group)
        best = list_advancing(trials, ended, metric, plan.config.mode)
        say(f"rung {number} of {len(rungs)}: {len(best)} trials advance")
        train([trial.options for trial in best], following)


def list_advancing(
    trials: Sequence[Trial], rung: Sequence[SeedTraining], metric: str, mode: str
) -> list[Trial]:
    """Return the trials that advance from a rung, in their order: its best third, rounded up.

    Compared by the mean over seeds; ties go to the smaller number. A trial with a seed that failed or lacks
    the metric never advances, but counts among those of which a third advances.
    """
    tried = [trial for trial in trials if any(training in trial.outcomes for training in rung)]
    means = {n: mean_of_rung(trial, rung, metric) for n, trial in enumerate(tried)}
    sign = -1 if mode == "max" else 1
    ranked = sorted((n for n in means if means[n] == means[n]), key=lambda n: (sign * means[n], n))
    return [tried[n] for n in sorted(ranked[: _count_advancing(len(tried))])]


def mean_of_rung(trial: Trial, rung: Sequence[SeedTraining], metric: str) -> float:
    """Return the mean of a metric over the seeds of a rung; NaN unless all of them have it."""
    outcomes = [trial.outcomes.get(training) for training in rung]
    return fmean(one.value(metric) if one else float("nan") for one in outcomes)


def get_reached(trial: Trial, config: SweepConfig) -> int:
    """Return the last rung, from 1, that a trial was trained on; 0 for none."""
    rungs = enumerate(list_rungs(config), 1)
    return max((n for n, rung in rungs if any(one in trial.outcomes for one in rung)), default=0)


def _count_advancing(num: int) -> int:
    return -(-num // REDUCTION)
