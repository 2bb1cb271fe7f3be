"""Ray Tune around trainings that take no time: nothing is run twice, and everything ends as it should."""

from collections import Counter
from dataclasses import replace

import pytest
from ray.tune import Callback

from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import make_plan
from raycomp.sweep.ray_tune import Watch, train_points, tune_group
from raycomp.sweep.result import choose_best
from raycomp.sweep.trials import FAILED, FINISHED, Job, list_report, list_rungs
from raycomp.training.config import FitConfig
from tests.sweep.runs import METRIC, RATE, SCORED, Cut, note

CONFIG = SweepConfig(space=f"{RATE}=grid(0.1,0.4,0.3)", seeds=2)


@pytest.fixture(autouse=True)
def cluster(ray_cluster):
    """One for all of them."""


class Tuned:
    """A sweep in a folder, and what it reports."""

    def __init__(self, folder, **options):
        config = replace(CONFIG, **options)
        self.folder, self.heard = folder, []
        self.job = Job(make_plan(config, SCORED), str(folder), str(folder / "work"), (), note)

    def run(self, say=None, at_once=1, callbacks=()):
        """Return the trials by learning rate, and how often each training was started."""
        watch = Watch(lambda: None, say or self.heard.append, METRIC, at_once, callbacks)
        tune_group(self.job, {}, list_rungs(self.job.config), watch)
        starts = Counter(path.name.rpartition("-")[0] for path in self.folder.glob("started-*"))
        return {trial.options[RATE]: trial for trial in self.job.journal.read()}, starts


@pytest.mark.parametrize("search", ["grid", pytest.param("optuna", marks=pytest.mark.slow)])
def test_trials_that_resume_are_not_run_twice(tmp_path, search):
    space = CONFIG.space if search == "grid" else f"{RATE}=uniform(0.1,0.9)"
    tuned = Tuned(tmp_path, search=search, num_samples=3, space=space)

    def break_off(line: str) -> None:
        tuned.heard.append(line)
        if len(tuned.heard) == 2:
            raise Cut

    with pytest.raises(Cut):
        tuned.run(break_off)
    done = {trial.name: set(trial.outcomes) for trial in tuned.job.journal.read()}
    trials, starts = tuned.run()
    assert len(trials) == 3 and all(len(trial.outcomes) == 2 for trial in trials.values())
    assert all(done.get(trial.name, set()) <= set(trial.outcomes) for trial in trials.values())
    # The one that was cut off in the middle may have been started twice; none that had ended was.
    assert sum(starts.values()) <= 7 and len(starts) == 6
    assert tuned.run(at_once=2)[1] == starts
    best = choose_best(list(trials.values()), {}, METRIC, "max", 2)
    assert float(best.trial.options[RATE]) == max(map(float, trials))


def test_asha_stops_who_is_behind(tmp_path):
    tuned = Tuned(tmp_path, scheduler="asha", space=f"{RATE}=grid(0.4,0.1,0.9,0.2)")
    trials, starts = tuned.run()
    # Behind the median of those before them at their first training: 0.1 of (0.4), 0.2 of (0.1, 0.4, 0.9).
    ended = {rate: len(trial.outcomes) for rate, trial in trials.items()}
    assert ended == {"0.4": 2, "0.1": 1, "0.9": 2, "0.2": 1}
    assert tuned.run()[1] == starts


def test_a_training_that_fails_by_its_options_ends_its_trial_alone(tmp_path):
    tuned = Tuned(tmp_path, space=f"{RATE}=grid(1,0.2)")
    trials, _ = tuned.run(at_once=2)
    found = {rate: [one.status for one in trial.outcomes.values()] for rate, trial in trials.items()}
    assert found == {"1.0": [FAILED], "0.2": [FINISHED, FINISHED]}
    assert any("is not finite" in line for line in tuned.heard)
    report = list_report(replace(CONFIG, report_seeds=1))
    watch = Watch(lambda: None, tuned.heard.append, METRIC, 2)
    train_points(tuned.job, [{RATE: "0.2"}], report, watch)
    assert "report seed 2" in tuned.heard[-1]


class Listed(Callback):
    """The user's own callback of Ray Tune."""

    def __init__(self):
        self.num_setups, self.metrics = 0, []

    def setup(self, **info):
        self.num_setups += 1

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.metrics.append(result["metric"])


def test_a_sweep_climbs_rungs_of_shorter_schedules(tmp_path):
    rungs = {"scheduler": "asha", "rungs": "steps", "seeds": 1, "train": FitConfig(steps=90)}
    tuned, listed = Tuned(tmp_path, space=f"{RATE}=grid(0.4,0.1,0.9,1)", **rungs), Listed()
    trials, starts = tuned.run(at_once=2, callbacks=[listed])
    assert listed.num_setups == 3 and len(listed.metrics) == 7
    assert sorted(listed.metrics)[1:] == [0.1, 0.4, 0.4, 0.9, 0.9, 0.9]
    found = {rate: sorted(one.divisor for one in trial.outcomes) for rate, trial in trials.items()}
    assert found == {"0.4": [3, 9], "0.1": [9], "0.9": [1, 3, 9], "1.0": [9]}
    assert "rung 1 of 3: 2 trials advance" in tuned.heard
    assert any("development seed 0, 1/9 of the steps" in line for line in tuned.heard)
    assert tuned.run()[1] == starts and sum(starts.values()) == 7
