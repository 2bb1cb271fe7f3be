"""Plans, trials and trainings that take no time; workers of Ray import them by name."""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from raycomp.config import to_dict
from raycomp.curation.config import AlignConfig, AttributeConfig, CurateConfig
from raycomp.data.files import Folder
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import Plan, make_plan
from raycomp.sweep.result import climb, read_trials
from raycomp.sweep.trials import (
    DEVELOPMENT,
    FAILED,
    FINISHED,
    REPORT,
    Journal,
    Outcome,
    Result,
    SeedTraining,
    Trial,
    list_rungs,
    name_trial,
)
from raycomp.table import Estimate
from raycomp.training.config import FitConfig

METRIC = "sugarcrepe.accuracy.macro"
RATE = "train.learning_rate"
STEPS = 90
SCORED = to_dict(CurateConfig(align=AlignConfig(keep=0.7), attribute=AttributeConfig(keep=0.5, pool=1.0)))
"""The options of a curation to select from."""
Values = dict[tuple[int, int, int], float | None]
"""By trial, seed and divisor; None = the training fails."""


def plan_of(space: str, **options) -> Plan:
    return make_plan(SweepConfig(space=space, **options), SCORED)


def plan_of_rungs(num: int = 3, space: str = "", **options) -> Plan:
    """``num`` learning rates on rungs of steps."""
    rates = space or f"{RATE}=grid({','.join(str((n + 1) / 1000) for n in range(num))})"
    rungs = {"scheduler": "asha", "rungs": "steps", "seeds": 1, "train": FitConfig(steps=STEPS)}
    return plan_of(rates, **{**rungs, **options})


def of_workers(workers: int, **options) -> SweepConfig:
    return SweepConfig(space="a=1", train=FitConfig(workers=workers), **options)


def trial_of(options: Mapping[str, str], development: Sequence, report: Sequence = (), **more) -> Trial:
    """A trial with the values of its seeds, None for one that failed; ``more``: those of other metrics."""
    outcomes = {}
    for number, value in enumerate([*development, *report]):
        metrics = {METRIC: value, **{name: values[number] for name, values in more.items()}}
        outcome = Outcome(FAILED, {}, why="loss is not finite")
        if value is not None:
            estimates = {name: Estimate(one, one - 0.1, one + 0.1) for name, one in metrics.items()}
            outcome = Outcome(FINISHED, estimates, 2.0)
        outcomes[SeedTraining(DEVELOPMENT if number < len(development) else REPORT, number)] = outcome
    return Trial(name_trial(options), options, "2026-01-01", outcomes)


def note(job, options, training, folder) -> Result:
    """Leave a file for each start; the higher the learning rate below 1, the better; 1 fails, 2 breaks."""
    rate = float(options[RATE])
    open(f"{job.folder}/started-{options[RATE]}-{training.name}-{time.time_ns()}", "x").close()
    if rate >= 1:
        raise {1: ValueError("train.loss: is not finite"), 2: KeyError("ours"), 3: OSError("disk full")}[rate]
    return {METRIC: Estimate(rate + training.number / 100, math.nan, math.nan)}, 90 // training.divisor


class Cut(Exception):
    """Stands for a kill."""


class Fake:
    """Trains in a random order; the values are drawn beforehand. After ``cut`` trainings it is killed."""

    def __init__(self, plan: Plan, folder: Path, values: Values, rng: random.Random):
        self.plan, self.journal, self.values, self.rng = plan, Journal(Folder(str(folder))), values, rng
        self.numbers = {name_trial(point): n for n, point in enumerate(plan.list_points())}
        self.trained: list[tuple[str, SeedTraining]] = []
        self.cut = -1

    def train(self, points: Sequence[Mapping[str, str]], trainings: Sequence[SeedTraining]) -> None:
        for point in self.rng.sample(list(points), len(points)):
            name = self.journal.start(point, str(self.rng.random()))
            for training in trainings:
                outcome = self.journal.find(name, training) or self._train_one(name, training)
                if outcome.status == FAILED:
                    break

    def _train_one(self, name: str, training: SeedTraining) -> Outcome:
        if len(self.trained) == self.cut:
            raise Cut
        self.trained.append((name, training))
        value = self.values[self.numbers[name], training.number, training.divisor]
        outcome = Outcome(FAILED, {}, why="loss is not finite")
        if value is not None:
            outcome = Outcome(FINISHED, {METRIC: Estimate(value)}, steps=STEPS // training.divisor)
        self.journal.write(name, training, outcome)
        return outcome

    def run(self, groups: Sequence[Mapping[str, str]] = ({},)) -> list[Trial]:
        self.train(self.plan.list_points(), list_rungs(self.plan.config)[0])
        for group in groups:
            climb(self.plan, self.journal, group, METRIC, self.train, [].append)
        return read_trials(self.plan, self.journal)


def with_metrics(trial: Trial, metrics: Mapping[str, Estimate]) -> Trial:
    outcomes = {training: replace(one, metrics=metrics) for training, one in trial.outcomes.items()}
    return replace(trial, outcomes=outcomes)
