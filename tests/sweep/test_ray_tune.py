"""What Ray Tune is given and gives back: points as options, a search without repeats."""

import math
from dataclasses import replace

import pytest
from ray.exceptions import RayTaskError
from ray.tune.search import Searcher

from raycomp.run.local import Session
from raycomp.sweep import command
from raycomp.sweep.command import count_on_gpus, count_trials, cpus_of
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import make_plan
from raycomp.sweep.ray_tune import _make_search, _Once, _to_options, _to_point, _to_tune, find_cause
from raycomp.training.config import FitConfig
from raycomp.training.ray_train import TrainWorkers
from tests.sweep.runs import SCORED
from tests.sweep.test_refused import of_workers

SPACE = (
    "train.loss=grid(clip,siglip) attribute.keep=0.5 attribute.aggregate=choice(mean,min) "
    "train.learning_rate=loguniform(1e-4,1e-3) train.batch_size=uniform(8,16)"
)


@pytest.fixture
def plan():
    return make_plan(SweepConfig(space=SPACE, search="optuna", per="train.loss"), SCORED)


def test_a_point_of_a_search_is_the_options_of_a_trial_and_back(plan):
    point = {"attribute.aggregate": "min", "train.learning_rate": 0.00034567891, "train.batch_size": 9}
    options = _to_options(plan, point, {"train.loss": "siglip"})
    assert options == {
        "train.loss": "siglip",
        "attribute.keep": "0.5",
        "attribute.aggregate": "min",
        "train.learning_rate": "0.000345679",
        "train.batch_size": "9",
    }
    for part in plan.split(options):
        plan.check_part(part, options)
    back = _to_point(plan, options, {"train.loss": "siglip"})
    assert back == {**point, "train.learning_rate": 0.000345679}
    assert _to_options(plan, back, {"train.loss": "siglip"}) == options


def test_a_search_starts_with_the_trials_that_were_started_and_stays_in_the_space(plan):
    group = {"train.loss": "clip"}
    started = [
        _to_options(
            plan, {"attribute.aggregate": how, "train.learning_rate": 5e-4, "train.batch_size": n}, one
        )
        for how, n, one in (("min", 8, group), ("mean", 12, {"train.loss": "siglip"}), ("mean", 16, group))
    ]
    search = _make_search(plan, group, started)
    assert search.set_search_properties("metric", "max", _to_tune(plan, group))
    found = [_to_options(plan, search.suggest(str(n)), group) for n in range(12)]
    assert found[:2] == [started[0], started[2]]
    assert len({str(options) for options in found}) == 12
    for options in found:
        for part in plan.split(options):
            plan.check_part(part, options)
        assert (
            1e-4 <= float(options["train.learning_rate"]) <= 1e-3
            and 8 <= int(options["train.batch_size"]) <= 16
        )


class Few(Searcher):
    """Suggests a, b, a, b, ... and takes down what it is told."""

    def __init__(self):
        super().__init__(metric="metric", mode="max")
        self.reported: list[tuple[str, bool]] = []
        self.turn = 0

    def suggest(self, trial_id):
        self.turn += 1
        return {"x": "ab"[self.turn % 2]}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.reported.append((trial_id, error))


def test_a_search_without_anything_new_ends():
    inner = Few()
    search = _Once(inner, lambda point: point["x"])
    assert [search.suggest("1"), search.suggest("2")] == [{"x": "b"}, {"x": "a"}]
    assert search.suggest("3") == Searcher.FINISHED
    assert inner.reported and all(error for _, error in inner.reported)
    search.on_trial_complete("2", {"metric": 1.0})
    assert inner.reported[-1] == ("2-0", False)


def wrap(error):
    return RayTaskError("f", "traceback", error).as_instanceof_cause()


def test_what_ended_a_trial_is_reported_without_its_wrappers():
    for reported in (OSError("disk full"), ValueError("a: must be b")):
        assert find_cause(wrap(wrap(reported))) is reported and find_cause(reported) is reported
    ours = wrap(wrap(KeyError("x")))
    assert find_cause(ours) is ours


def test_a_cluster_has_a_cpu_for_tasks_whatever_trials_hold():
    for workers in [1, 2, 5]:
        for at_once in [1, 3]:
            num_cpus = cpus_of(at_once, workers)
            session = Session(1, {}, 1, num_cpus, 9, 64)
            assert count_trials(of_workers(workers, max_concurrent=at_once), session) == at_once
            assert num_cpus - at_once * max(workers, 2) >= 1
            with pytest.raises(ValueError, match=f"max_concurrent={at_once + 1}: must be at most {at_once}"):
                count_trials(of_workers(workers, max_concurrent=at_once + 1), session)
            # Where the autoscaler reports no limit, CPUs may come.
            unknown = Session(1, {}, 1, 1, 1, 64, is_bounded=False)
            assert count_trials(of_workers(workers, max_concurrent=at_once), unknown) == at_once
            assert count_trials(of_workers(workers), unknown) == 1
            assert count_trials(of_workers(workers), Session(1, {}, 1, workers, 1, 64)) == 1


def test_as_many_trials_share_the_gpus_as_fit_on_each():
    for gpus, workers, share, trials in [
        (1, 1, 1.0, 1),
        (1, 1, 0.25, 4),
        (2, 1, 0.25, 8),
        (1, 1, 1 / 3, 3),
        (3, 1, 0.6, 3),
        (1, 1, 0.1, 10),
        (8, 4, 1.0, 2),
        (0, 1, 0.25, 0),
        (math.inf, 1, 0.25, math.inf),
    ]:
        assert count_on_gpus(gpus, workers, share) == trials


class OfGpus:
    """Stands for an executor on a cluster with two GPUs."""

    def count(self, resource: str) -> float:
        assert resource == "GPU"
        return 2.0


def test_four_trials_share_a_gpu(monkeypatch):
    monkeypatch.setattr(command, "current", OfGpus)
    monkeypatch.setattr("raycomp.run.ray_cluster.count_offered", lambda resource: 0)
    session = Session(1, {}, None, 64, 2, 64)
    config = SweepConfig(space="a=1", train=FitConfig(gpus_per_worker=0.25))
    assert session.device == "gpu" and count_trials(config, session) == 8
    assert count_trials(SweepConfig(space="a=1"), session) == 2
    words = r"max_concurrent=9: must be at most 8; no more fit .* at train.gpus_per_worker=0.25"
    with pytest.raises(ValueError, match=words):
        count_trials(replace(config, max_concurrent=9), session)


def test_ray_train_is_asked_for_the_share_of_a_gpu():
    scaling = TrainWorkers(1, True, 0.25).scale({}, 1.0)
    assert scaling.num_workers == 1 and scaling.use_gpu
    assert scaling.resources_per_worker == {"CPU": 1.0, "GPU": 0.25}
    assert TrainWorkers(2, False, 1.0).scale({}, 0.5).resources_per_worker == {"CPU": 0.5}
