"""Rungs of a sweep: the trainings of each rung, and the trials that advance to the next one.

With ``rungs=steps``: synchronous successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) with
reduction factor 3. A rung is a complete training with a shorter schedule, not a halfway metric of a longer
one, so trials are compared after their learning rates have fallen. The outcomes of a rung alone decide which
trials advance, not the order in which they arrive: a resumed sweep advances the same trials.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from raycomp.run.run import Say
from raycomp.sweep.choose import of_group
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.journal import DEVELOPMENT, REPORT, Journal, SeedTraining, Trial
from raycomp.sweep.plan import Options, Plan, list_points

REDUCTION = 3
DIVISORS = (9, 3, 1)
"""The schedules of the rungs have 1/9, 1/3 and all of the steps."""
Train = Callable[[Sequence[Options], Sequence[SeedTraining]], None]
"""Trains these trials on these seeds; outcomes go to the journal, those that are there are kept."""


def list_rungs(config: SweepConfig) -> list[list[SeedTraining]]:
    """Return the development trainings of a trial, rung by rung; one rung without ``rungs=steps``."""
    divisors = DIVISORS if config.rungs == "steps" else (1,)
    return [[SeedTraining(DEVELOPMENT, n, divisor) for n in range(config.seeds)] for divisor in divisors]


def list_report(config: SweepConfig) -> list[SeedTraining]:
    """Return the trainings on report seeds; their numbers follow those of the development seeds."""
    return [SeedTraining(REPORT, config.seeds + n) for n in range(config.report_seeds)]


def find_rung(config: SweepConfig, training: SeedTraining) -> int | None:
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
    numbers = {tuple(point.items()): n for n, point in enumerate(list_points(plan))}
    return sorted(trials, key=lambda trial: numbers.get(_order(plan, trial.options), len(numbers)))


def _order(plan: Plan, options: Options) -> tuple[tuple[str, str], ...]:
    return tuple((option, options[option]) for option in plan.space)


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


def find_reached(trial: Trial, config: SweepConfig) -> int:
    """Return the last rung, from 1, that a trial was trained on; 0 for none."""
    rungs = enumerate(list_rungs(config), 1)
    return max((n for n, rung in rungs if any(one in trial.outcomes for one in rung)), default=0)


def _count_advancing(num: int) -> int:
    return -(-num // REDUCTION)
