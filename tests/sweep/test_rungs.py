"""Rungs of shorter schedules: the trials that advance, against a plain loop, in any order of finishing."""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raycomp.data.files import Folder
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.page import list_warnings, make_tables
from raycomp.sweep.plan import Plan, list_points, make_plan
from raycomp.sweep.result import (
    choose_best,
    climb,
    count_rungs,
    fix,
    get_reached,
    is_whole,
    make_rows,
    read_trials,
    share_of_steps,
)
from raycomp.sweep.trials import (
    DEVELOPMENT,
    DIVISORS,
    FAILED,
    FINISHED,
    Journal,
    Outcome,
    SeedTraining,
    Trial,
    list_report,
    list_rungs,
    name_trial,
    repair_trials,
    shorten,
)
from raycomp.table import Estimate
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.training.towers import learning_rate_at
from tests.sweep.runs import SCORED

METRIC = "sugarcrepe.accuracy.macro"
STEPS = 90
Values = dict[tuple[int, int, int], float | None]
"""By trial, seed and divisor; None = the training fails."""


class Cut(Exception):
    """Stands for a kill."""


def plan_of(num: int, seeds: int = 1, mode: str = "max", space: str = "", **options) -> Plan:
    rates = space or f"train.learning_rate=grid({','.join(str((n + 1) / 1000) for n in range(num))})"
    fit = FitConfig(steps=STEPS)
    rungs = {"scheduler": "asha", "rungs": "steps", **options}
    return make_plan(SweepConfig(space=rates, seeds=seeds, mode=mode, train=fit, **rungs), SCORED)


class Fake:
    """Trains in a random order; the values are drawn beforehand. After ``cut`` trainings it is killed."""

    def __init__(self, plan: Plan, folder: Path, values: Values, rng: random.Random):
        self.plan, self.journal, self.values, self.rng = plan, Journal(Folder(str(folder))), values, rng
        self.numbers = {name_trial(point): n for n, point in enumerate(list_points(plan))}
        self.trained: list[tuple[str, SeedTraining]] = []
        self.cut = -1

    def train(self, points: Sequence[dict[str, str]], trainings: Sequence[SeedTraining]) -> None:
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

    def run(self) -> list[Trial]:
        self.train(list_points(self.plan), list_rungs(self.plan.config)[0])
        climb(self.plan, self.journal, {}, METRIC, self.train, [].append)
        return read_trials(self.plan, self.journal)


def halve_slowly(values: Values, num: int, seeds: int, mode: str) -> list[list[int]]:
    """Return the trials on each rung, by one plain loop."""
    alive, found = list(range(num)), []
    for divisor in (9, 3, 1):
        found.append(alive)
        sums = {}
        for trial in alive:
            own = [values[trial, seed, divisor] for seed in range(seeds)]
            if None not in own:
                sums[trial] = sum(own)
        chosen: list[int] = []
        while len(chosen) * 3 < len(alive) and sums:
            best = min(sums)
            for trial in sorted(sums):
                if sums[trial] > sums[best] if mode == "max" else sums[trial] < sums[best]:
                    best = trial
            chosen.append(best)
            del sums[best]
        alive = sorted(chosen)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 2), st.sampled_from(["max", "min"]), st.integers(0, 10**6))
def test_the_trials_of_a_rung_are_those_of_a_plain_loop(num, seeds, mode, seed):
    rng = random.Random(seed)
    values: Values = {
        (trial, number, divisor): rng.choice([None, *range(5)])
        for trial in range(num)
        for number in range(seeds)
        for divisor in DIVISORS
    }
    plan, wanted = plan_of(num, seeds, mode), halve_slowly(values, num, seeds, mode)
    names = [name_trial(point) for point in list_points(plan)]
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(plan, Path(folder), values, rng)
        fake.cut = rng.randrange(30)
        try:
            trials = fake.run()
        except Cut:
            fake.cut = -1
            repair_trials(plan, fake.journal, pytest.fail)
            trials = fake.run()
        assert len(set(fake.trained)) == len(fake.trained), "a training was repeated"
        for rung, divisor in enumerate(DIVISORS):
            found = [n for n in range(num) if any(t.divisor == divisor for t in trials[n].outcomes)]
            assert found == wanted[rung]
    assert [trial.name for trial in trials] == names
    last = [n for n in wanted[-1] if is_whole(trials[n], METRIC, seeds)]
    assert all(is_whole(trial, METRIC, seeds) == (n in last) for n, trial in enumerate(trials))
    if last:
        sign = 1 if mode == "max" else -1
        best = max(last, key=lambda n: (sign * sum(values[n, s, 1] for s in range(seeds)), -n))
        assert choose_best(trials, {}, METRIC, mode, seeds).trial.name == names[best]
    else:
        with pytest.raises(ValueError, match="no trial finished"):
            choose_best(trials, {}, METRIC, mode, seeds)


def test_groups_climb_on_their_own(tmp_path):
    space = "train.loss=grid(clip,siglip) train.learning_rate=grid(0.001,0.002,0.003,0.004)"
    plan = plan_of(0, space=space, per="train.loss")
    values: Values = {(n, 0, divisor): float(n) for n in range(8) for divisor in DIVISORS}
    fake = Fake(plan, tmp_path, values, random.Random(0))
    fake.train(list_points(plan), list_rungs(plan.config)[0])
    for loss in ("clip", "siglip"):
        climb(plan, fake.journal, {"train.loss": loss}, METRIC, fake.train, [].append)
    reached = [get_reached(trial, plan.config) for trial in read_trials(plan, fake.journal)]
    assert reached == [1, 1, 2, 3] * 2


def test_the_results_have_every_rung_of_every_trial(tmp_path):
    plan = plan_of(4, report_seeds=1)
    values: Values = {(n, 0, d): n / 10 - 1 / (10 * d) for n in range(4) for d in DIVISORS}
    values[3, 0, 9] = None
    values[2, 1, 1] = 0.5
    fake = Fake(plan, tmp_path, values, random.Random(0))
    best = choose_best(fake.run(), {}, METRIC, "max", 1)
    fake.train([best.trial.options], list_report(plan.config))
    trials = read_trials(plan, fake.journal)
    winner = choose_best(trials, {}, METRIC, "max", 1)
    assert winner.report.value == 0.5 and list_report(plan.config) == [SeedTraining("report", 1)]
    trainings = [one for rung in list_rungs(plan.config) for one in rung]
    table = make_rows(plan, trials, trainings, METRIC)
    rows = [row for row in table.to_pylist() if row["status"] == FINISHED]
    assert [(row["train.learning_rate"], row["rung"], row["steps"]) for row in rows] == [
        *((0.001, 1, 10), (0.002, 1, 10), (0.002, 2, 30)),
        *((0.003, 1, 10), (0.003, 2, 30), (0.003, 3, 90), (0.003, None, 90)),
    ]
    (rungs,) = (one for one in make_tables(plan, trials, [winner], METRIC) if one.title == "Rungs")
    assert [row[1] for row in rungs.rows] == ["1 of 3", "2 of 3", "3 of 3", "1 of 3"]
    assert [row[-1] for row in rungs.rows] == [10, 40, 220, 0]
    assert [one.value for one in rungs.rows[2][2:5]] == [values[2, 0, divisor] for divisor in DIVISORS]
    assert any(line.startswith("rungs: one trial") for line in list_warnings(plan, trials, [winner], METRIC))
    assert (fix(plan, winner).scheduler, fix(plan, winner).rungs) == ("none", "seeds")


def test_a_rung_is_a_whole_schedule():
    config = TrainConfig(train=FitConfig(steps=100, warmup=0.1))
    short = shorten(config, 9)
    assert short.train == replace(config.train, steps=12) and shorten(config, 1) is config
    rates = [learning_rate_at(step, 12, short.train) for step in range(12)]
    assert max(rates) == config.train.learning_rate and rates[-1] < 0.05 * max(rates)


def test_a_third_of_the_trials_advances_rounded_up():
    for num, counts in [(1, [1, 1, 1]), (9, [9, 3, 1]), (10, [10, 4, 2]), (20, [20, 7, 3])]:
        assert count_rungs(num) == counts
        assert share_of_steps(num) == pytest.approx(
            sum(n / d for n, d in zip(counts, DIVISORS, strict=True)) / num
        )


def test_what_has_no_rungs_of_steps_is_refused():
    for options, words in [
        ({"scheduler": "none"}, "rungs='steps': must be seeds with scheduler=none"),
        ({"command": "continual"}, "rungs='steps': must be seeds with command=continual"),
        ({"rungs": "epochs"}, "rungs='epochs': must be one of seeds, steps"),
        ({"space": "train.steps=grid(9,none)"}, "train.steps=None: must be set with rungs=steps"),
    ]:
        with pytest.raises(ValueError) as error:
            plan_of(3, **options)
        assert words in str(error.value) and "\n" not in str(error.value)


def test_a_training_is_named_by_its_seed_and_share_of_the_steps():
    assert SeedTraining(DEVELOPMENT, 3, 9).name == "development-03-1of9"
