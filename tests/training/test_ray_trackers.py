"""``train.log_to``: trackers get every metric of a training and decide nothing about it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from raycomp.config import UserError
from raycomp.data.files import Folder
from raycomp.training import journal, ray_train
from raycomp.training.command import train
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.training.journal import Tracker, Trackers, open_trackers, read_metrics
from tests.training.little import STEPS, read_losses, refuse

RAY = "ray.air.integrations"


class Fake(ModuleType):
    """The network part of wandb or MLflow: records the calls of its functions."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__spec__ = SimpleNamespace(name=name, origin="fake.py")
        self.__version__ = "3.0"
        self.calls: list[tuple] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return None if name in ("active_run", "get_experiment_by_name") else self

        return call

    def list_calls(self, name: str) -> list[dict]:
        return [kwargs for called, _, kwargs in self.calls if called == name]

    def list_logged(self, name: str) -> dict[int, dict]:
        found: dict[int, dict] = {}
        for called, args, kwargs in self.calls:
            if called == name:
                found.setdefault(kwargs["step"], {}).update(args[0])
        return found


@pytest.fixture
def fakes(monkeypatch) -> dict[str, Fake]:
    for name in ("WANDB_PROJECT", "WANDB_PROJECT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    found = {name: Fake(name) for name in ("wandb", "mlflow")}
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def make_training(tmp_path, *names: str) -> SimpleNamespace:
    config = TrainConfig(train=FitConfig(log_to=names))
    return SimpleNamespace(config=config, out=str(tmp_path / "mine"), run_id="ab12")


def test_every_metric_arrives_and_nothing_else_changes(world, trained, fakes, tmp_path):
    """On the local executor, with held-out pairs: those before the first step are those of step 0."""
    options = {"train.log_to": "wandb,mlflow", "train.held_out": world.input, "cluster.executor": "local"}
    options |= {"train.checkpoint_steps": 6, "train.evaluate_steps": 8, "train.workers": 1}
    run = train(world.config(**options), str(tmp_path / "out"))
    assert read_losses(tmp_path / "out") == read_losses(trained[0])
    logged = fakes["wandb"].list_logged("log")
    assert logged == fakes["mlflow"].list_logged("log_metrics") and [*logged] == list(range(STEPS))
    metrics = read_metrics(Folder(str(tmp_path / "out")))
    for name in ("loss", "learning_rate", "samples_per_s"):
        assert [logged[step][name] for step in range(STEPS)] == metrics[name].tolist()
    assert logged[0]["held_out_loss"] == run["evaluations"][0]["held_out_loss"]
    assert [step for step in logged if "held_out_loss" in logged[step]] == [0, 7, 15, 19]
    (started,) = fakes["wandb"].list_calls("init")
    assert started["id"] == run["id"] and started["name"] == "out" and started["project"] == "raycomp"
    assert started["config"]["train.batch_size"] == "10" and started["resume"] == "allow"
    assert fakes["wandb"].list_calls("finish") == [{"exit_code": 0}]
    assert fakes["mlflow"].list_calls("start_run") == [
        {"run_name": "out", "tags": {"raycomp.run": run["id"]}}
    ]
    assert [args for name, args, _ in fakes["mlflow"].calls if name == "end_run"] == [("FINISHED",)]


def test_a_missing_package_is_refused_before_anything_starts(world, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    said = "train.log_to=mlflow: the package mlflow is not installed; pip install mlflow-skinny"
    refuse(world.line(tmp_path / "out", **{"train.log_to": "mlflow"}), tmp_path / "out", capsys, said)


def test_a_tracker_that_does_not_start_is_one_line_and_closes_the_others(fakes, tmp_path):
    def fail(run):
        raise RuntimeError("no\nkey")

    said = r"^train\.log_to=mlflow: does not start \(RuntimeError: no key\); fix"
    with pytest.raises(UserError, match=said):
        open_trackers(make_training(tmp_path, "wandb", "mlflow"), {**journal.OPENERS, "mlflow": fail})
    assert fakes["wandb"].list_calls("finish") == [{"exit_code": 1}]


def test_a_tracker_that_fails_later_is_dropped_and_gets_finite_numbers_until_then(capsys):
    found = []

    def log(values, step):
        found.append((step, values))
        raise ConnectionError("gone")

    with Trackers({"mlflow": Tracker(log, pytest.fail)}) as opened:
        for step in (3, 4):
            opened.log({"step": step, "loss": 1.0, "a": float("nan"), "b": float("inf")})
    assert found == [(3, {"loss": 1.0})]
    said = "train.log_to=mlflow: gets no further metrics (ConnectionError: gone)\n"
    assert capsys.readouterr().err == said


def test_ray_opens_them_by_its_own_integrations(fakes, tmp_path, monkeypatch):
    """``setup_wandb`` and ``setup_mlflow`` as Ray has them; the modules behind them are fakes."""
    wandb, mlflow = (pytest.importorskip(f"{RAY}.{name}") for name in ("wandb", "mlflow"))
    monkeypatch.setattr(wandb, "wandb", fakes["wandb"])
    for name in ("json_dumps_safer", "WBValue", "Image", "Video"):
        monkeypatch.setattr(wandb, name, str, raising=False)
    monkeypatch.setattr(mlflow, "mlflow", fakes["mlflow"])
    tags = ModuleType("mlflow.utils.mlflow_tags")
    tags.MLFLOW_RUN_NAME = "mlflow.runName"
    for module in (ModuleType("mlflow.utils"), tags):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("WANDB_MODE", "offline")
    with open_trackers(make_training(tmp_path, "wandb", "mlflow"), ray_train.OPENERS) as opened:
        opened.log({"step": 4, "loss": 2.0})
    (started,), (run,) = fakes["wandb"].list_calls("init"), fakes["mlflow"].list_calls("start_run")
    wanted = {"id": "ab12", "name": "mine", "project": "raycomp", "resume": "allow"}
    assert {name: started[name] for name in wanted} == wanted
    assert run["run_name"] == "mine" and run["tags"] == {"raycomp.run": "ab12"}
    assert {"key": "train.batch_size", "value": "256"} in fakes["mlflow"].list_calls("log_param")
    for name, call in (("wandb", "log"), ("mlflow", "log_metrics")):
        assert fakes[name].list_logged(call) == {4: {"loss": 2.0}}
    assert fakes["wandb"].list_calls("finish") == [{"exit_code": 0}]
