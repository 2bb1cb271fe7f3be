"""Selection of the best trial: selected on development seeds, reported on held-out seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from raycomp.core.contrasts import contrast
from raycomp.sweep.journal import DEVELOPMENT, FAILED, REPORT, Outcome, Trial
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
