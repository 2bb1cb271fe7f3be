"""What Ray Tune is given and gives back: points as options, a search without repeats, room for trials."""

import math
import os
from dataclasses import replace

import pytest
from ray.exceptions import RayTaskError
from ray.tune.search import Searcher

from raycomp.run.executor import Session
from raycomp.sweep import command
from raycomp.sweep.command import count_on_gpus, count_trials, cpus_of, plan_alone
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.ray_tune import Space, _Once, find_cause
from raycomp.training.config import FitConfig
from raycomp.training.ray_train import TrainWorkers
from tests.sweep.runs import RATE, of_workers, plan_of

HOW, SIZE = "attribute.aggregate", "train.batch_size"
SPACE = (
    "train.loss=grid(clip,siglip) attribute.keep=0.5 attribute.aggregate=choice(mean,min) "
    "train.learning_rate=loguniform(1e-4,1e-3) train.batch_size=uniform(8,16)"
)


@pytest.fixture
def space() -> Space:
    return Space(plan_of(SPACE, search="optuna", per="train.loss"), {"train.loss": "siglip"})


def check(space: Space, options: dict[str, str]) -> None:
    for part in space.plan.split(options):
        space.plan.check_part(part, options)


def test_a_point_of_a_search_is_the_options_of_a_trial_and_back(space):
    point = {HOW: "min", RATE: 0.00034567891, SIZE: 9}
    options = space.to_options(point)
    drawn = {HOW: "min", RATE: "0.000345679", SIZE: "9"}
    assert list(options.items()) == list({"train.loss": "siglip", "attribute.keep": "0.5", **drawn}.items())
    check(space, options)
    back = space.to_point(options)
    assert back == {**point, RATE: 0.000345679} and space.to_options(back) == options


def test_a_search_starts_with_the_trials_that_were_started_and_stays_in_the_space(space):
    other = Space(space.plan, {"train.loss": "clip"})
    started = [
        one.to_options({HOW: how, RATE: 5e-4, SIZE: size})
        for how, size, one in (("min", 8, space), ("mean", 12, other), ("mean", 16, space))
    ]
    search = space.search(started)
    assert search.set_search_properties("metric", "max", space.to_tune())
    found = [space.to_options(search.suggest(str(n))) for n in range(12)]
    assert found[:2] == [started[0], started[2]] and len({str(options) for options in found}) == 12
    for options in found:
        check(space, options)
        assert 1e-4 <= float(options[RATE]) <= 1e-3 and 8 <= int(options[SIZE]) <= 16


class Few(Searcher):
    """Suggests a, b, a, b, ... and takes down what is reported to it."""

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


def test_what_ended_a_trial_is_reported_without_its_wrappers():
    def wrap(error):
        return RayTaskError("f", "traceback", error).as_instanceof_cause()

    for reported in (OSError("disk full"), ValueError("a: must be b")):
        assert find_cause(wrap(wrap(reported))) is reported and find_cause(reported) is reported
    ours = wrap(wrap(KeyError("x")))
    assert find_cause(ours) is ours


def test_a_cluster_has_a_cpu_for_tasks_whatever_trials_hold():
    for workers, at_once in [(1, 1), (2, 3), (5, 1)]:
        num_cpus, config = cpus_of(at_once, workers), of_workers(workers, max_concurrent=at_once)
        session = Session(1, {}, 1, num_cpus, 9, 64)
        assert count_trials(config, session) == at_once and num_cpus - at_once * max(workers, 2) >= 1
        with pytest.raises(ValueError, match=f"max_concurrent={at_once + 1}: must be at most {at_once}"):
            count_trials(replace(config, max_concurrent=at_once + 1), session)
        # Where the autoscaler reports no limit, CPUs may come.
        unknown = Session(1, {}, 1, 1, 1, 64, is_bounded=False)
        assert count_trials(config, unknown) == at_once and count_trials(of_workers(workers), unknown) == 1
        assert count_trials(of_workers(workers), Session(1, {}, 1, workers, 1, 64)) == 1


def test_a_machine_has_room_for_every_trial_that_is_started_there():
    cores = os.cpu_count() or 1
    with pytest.raises(ValueError, match=f"workers={cores + 1}: must be at most {cores}, the cores"):
        plan_alone(of_workers(cores + 1))
    wide = replace(of_workers(8), cluster=replace(SweepConfig().cluster, num_cpus=8))
    assert plan_alone(wide) >= cpus_of(1, 8) and plan_alone(of_workers(1, max_concurrent=1)) == 3
    assert plan_alone(of_workers(1, max_concurrent=7)) == cpus_of(7, 1) == 15


def test_as_many_trials_share_the_gpus_as_fit_on_each(monkeypatch):
    shared = [(1, 1, 1.0, 1), (2, 1, 0.25, 8), (1, 1, 1 / 3, 3), (3, 1, 0.6, 3), (1, 1, 0.1, 10)]
    for gpus, workers, share, trials in [
        *shared,
        (8, 4, 1.0, 2),
        (0, 1, 0.25, 0),
        (math.inf, 1, 0.25, math.inf),
    ]:
        assert count_on_gpus(gpus, workers, share) == trials

    class OfGpus:
        """Stands for an executor on a cluster with two GPUs."""

        def count(self, resource: str) -> float:
            return 2.0 if resource == "GPU" else 0

    monkeypatch.setattr(command, "current", OfGpus)
    monkeypatch.setattr("raycomp.run.ray_cluster.count_offered", lambda resource: 0)
    session = Session(1, {}, None, 64, 2, 64)
    config = SweepConfig(space="a=1", train=FitConfig(gpus_per_worker=0.25))
    assert session.device == "gpu" and count_trials(config, session) == 8
    assert count_trials(SweepConfig(space="a=1"), session) == 2
    with pytest.raises(
        ValueError, match=r"max_concurrent=9: must be at most 8; .* train.gpus_per_worker=0.25"
    ):
        count_trials(replace(config, max_concurrent=9), session)
    with pytest.raises(ValueError, match="workers=3: more than fit"):
        count_trials(of_workers(3), session)
    assert TrainWorkers(1, True, 0.25).scale({}, 1.0).resources_per_worker == {"CPU": 1.0, "GPU": 0.25}
    assert TrainWorkers(2, False, 1.0).scale({}, 0.5).resources_per_worker == {"CPU": 0.5}
