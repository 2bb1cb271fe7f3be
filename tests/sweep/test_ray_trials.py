"""Ray Tune around trainings that take no time: nothing is run twice, and everything ends as it should."""

from collections import Counter
from dataclasses import replace

import pytest
from ray.tune import Callback

from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import make_plan
from raycomp.sweep.ray_tune import Watch, train_points, tune_group
from raycomp.sweep.result import choose_best, read_trials
from raycomp.sweep.trials import FAILED, FINISHED, Job, list_report, list_rungs
from raycomp.training.config import FitConfig
from tests.sweep.runs import METRIC, SCORED, note

CONFIG = SweepConfig(space="train.learning_rate=grid(0.1,0.4,0.3)", seeds=2)


@pytest.fixture(autouse=True)
def cluster(ray_cluster):
    """One for all of them."""


def job_of(config, folder) -> Job:
    folder.mkdir(exist_ok=True)
    return Job(make_plan(config, SCORED), str(folder), str(folder / "work"), (), note)


def count_starts(folder) -> Counter:
    """Return how often each training was started, by learning rate and site."""
    return Counter(path.name.rpartition("-")[0] for path in folder.glob("started-*"))


def tune(job, say=lambda line: None, check=lambda: None, at_once=2, callbacks=()) -> None:
    tune_group(job, {}, list_rungs(job.config), Watch(check, say, METRIC, at_once, callbacks))


class Cut(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("search", ["grid", pytest.param("optuna", marks=pytest.mark.slow)])
def test_trials_that_go_on_are_not_run_twice(tmp_path, search):
    space = CONFIG.space if search == "grid" else "train.learning_rate=uniform(0.1,0.9)"
    job = job_of(replace(CONFIG, search=search, num_samples=3, space=space), tmp_path / search)
    heard: list[str] = []

    def break_off(line: str) -> None:
        heard.append(line)
        if len(heard) == 2:
            raise Cut

    with pytest.raises(Cut):
        tune(job, break_off, at_once=1)
    done = {trial.name: set(trial.outcomes) for trial in job.journal.read()}
    tune(job, heard.append, at_once=1)
    trials, starts = job.journal.read(), count_starts(tmp_path / search)
    assert len(trials) == 3 and all(len(trial.outcomes) == 2 for trial in trials)
    assert all(
        trainings <= set(trial.outcomes) for trial in trials for trainings in [done.get(trial.name, set())]
    )
    # The one that was cut off in the middle may have been begun twice; none that had ended was.
    assert sum(starts.values()) <= 7 and len(starts) == 6
    tune(job, heard.append)
    assert count_starts(tmp_path / search) == starts
    best = choose_best(trials, {}, METRIC, "max", 2)
    assert float(best.trial.options["train.learning_rate"]) == max(
        float(trial.options["train.learning_rate"]) for trial in trials
    )


def test_asha_stops_who_is_behind(tmp_path):
    space = "train.learning_rate=grid(0.4,0.1,0.9,0.2)"
    job = job_of(replace(CONFIG, scheduler="asha", space=space), tmp_path / "asha")
    tune(job, at_once=1)
    ended = {trial.options["train.learning_rate"]: len(trial.outcomes) for trial in job.journal.read()}
    # Behind the median of those before them at their first training: 0.1 of (0.4), 0.2 of (0.1, 0.4, 0.9).
    assert ended == {"0.4": 2, "0.1": 1, "0.9": 2, "0.2": 1}
    starts = count_starts(tmp_path / "asha")
    tune(job, at_once=1)
    assert count_starts(tmp_path / "asha") == starts


def test_a_training_that_fails_by_its_options_ends_its_trial_alone(tmp_path):
    space = "train.learning_rate=grid(1,0.2)"
    job = job_of(replace(CONFIG, space=space), tmp_path / "failed")
    heard: list[str] = []
    tune(job, heard.append)
    found = {
        trial.options["train.learning_rate"]: [one.status for one in trial.outcomes.values()]
        for trial in job.journal.read()
    }
    assert found == {"1.0": [FAILED], "0.2": [FINISHED, FINISHED]}
    assert any("is not finite" in line for line in heard)
    report = list_report(replace(CONFIG, report_seeds=1))
    train_points(job, [{"train.learning_rate": "0.2"}], report, Watch(lambda: None, heard.append, METRIC, 2))
    assert "report seed 2" in heard[-1]


class Listed(Callback):
    """The user's own callback of Ray Tune."""

    def __init__(self):
        self.num_setups, self.metrics = 0, []

    def setup(self, **info):
        self.num_setups += 1

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.metrics.append(result["metric"])


def test_a_sweep_climbs_rungs_of_shorter_schedules(tmp_path):
    space = "train.learning_rate=grid(0.4,0.1,0.9,1)"
    fit = FitConfig(steps=90)
    config = replace(CONFIG, scheduler="asha", rungs="steps", seeds=1, space=space, train=fit)
    job = job_of(config, tmp_path / "rungs")
    heard: list[str] = []
    listed = Listed()
    tune(job, heard.append, callbacks=[listed])
    assert listed.num_setups == 3 and len(listed.metrics) == 7
    assert sorted(listed.metrics)[1:] == [0.1, 0.4, 0.4, 0.9, 0.9, 0.9]
    found = {
        trial.options["train.learning_rate"]: sorted(one.divisor for one in trial.outcomes)
        for trial in read_trials(job.plan, job.journal)
    }
    assert found == {"0.4": [3, 9], "0.1": [9], "0.9": [1, 3, 9], "1.0": [9]}
    assert "rung 1 of 3: 2 trials advance" in heard
    assert any("development seed 0, 1/9 of the steps" in line for line in heard)
    starts = count_starts(tmp_path / "rungs")
    tune(job)
    assert count_starts(tmp_path / "rungs") == starts and sum(starts.values()) == 7
