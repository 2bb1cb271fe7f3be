"""Experiment trackers that get every metric of a training: Weights & Biases and MLflow (``train.log_to``).

A tracker is opened by the one process that writes metrics: here without Ray, in ``ray_trackers.py`` by Ray's
own integrations. Results do not depend on trackers: one that fails later is reported and dropped.
"""

import importlib
import math
import os
import posixpath
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, Self

from raycomp.config import UserError, to_dict
from raycomp.config.change import as_setting, flatten
from raycomp.training.training import STEP, Training

PROJECT = "raycomp"
RUN_TAG = "raycomp.run"
# By the module's name. The package mlflow asks for an older PyArrow than raycomp; this one has its client.
_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
_LONGEST = 300
_MAX_PARAMETER = 500


@dataclass(frozen=True)
class TrackedRun:
    """A training as a tracker names it."""

    id: str
    """That of run.json: the same after a restart."""
    name: str
    """The last part of the output folder's path."""
    settings: Mapping[str, str]
    """Every option by path."""


class Tracker(Protocol):
    """Where metrics go."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take the finite metrics of a step."""

    def close(self, is_finished: bool) -> None:
        """End the run; it has failed unless ``is_finished``."""


Openers = Mapping[str, Callable[[TrackedRun], Tracker]]


class Wandb:
    """A run of Weights & Biases. After a restart the run with the same id resumes."""

    def __init__(self, run: Any):
        self.run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def close(self, is_finished: bool) -> None:
        self.run.finish(exit_code=0 if is_finished else 1)


class Mlflow:
    """The active run of the module ``mlflow``. After a restart another run has the same tag ``RUN_TAG``."""

    def __init__(self, mlflow: Any):
        self.mlflow = mlflow

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.mlflow.log_metrics(dict(values), step=step, synchronous=False)

    def close(self, is_finished: bool) -> None:
        self.mlflow.flush_async_logging()
        self.mlflow.end_run("FINISHED" if is_finished else "FAILED")


def open_wandb(run: TrackedRun) -> Tracker:
    """Start, or resume, a run by the settings of wandb's own environment variables."""
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    settings = dict(run.settings)
    wandb = importlib.import_module("wandb")
    return Wandb(wandb.init(id=run.id, name=run.name, project=project, config=settings, resume="allow"))


def open_mlflow(run: TrackedRun) -> Tracker:
    """Start a run by the settings of MLflow's own environment variables."""
    mlflow = importlib.import_module("mlflow")
    if "MLFLOW_EXPERIMENT_ID" not in os.environ:
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    mlflow.start_run(run_name=run.name, tags={RUN_TAG: run.id})
    mlflow.log_params(dict(run.settings))
    return Mlflow(mlflow)


OPENERS: Openers = {"wandb": open_wandb, "mlflow": open_mlflow}


def check_packages(names: Iterable[str]) -> None:
    """Raise ValueError where the package of a tracker is not installed."""
    for name in names:
        found = find_spec(name)
        if found is None or found.origin is None:  # a folder wandb/ of earlier runs is not a package
            raise ValueError(
                f"train.log_to={name}: the package {name} is not installed; pip install {_PACKAGES[name]}"
            )


class Trackers:
    """All trackers of a training, as one; closed where its block ends."""

    def __init__(self, opened: Mapping[str, Tracker] | None = None):
        self.opened = dict(opened or {})

    def log(self, row: Mapping[str, float]) -> None:
        """Give a step's metrics to all trackers."""
        values = {name: row[name] for name in row if name != STEP and math.isfinite(row[name])}
        for name in list(self.opened):
            try:
                self.opened[name].log(values, int(row[STEP]))
            except Exception as error:  # of a service that no result depends on
                del self.opened[name]
                _warn(name, error, "gets no further metrics")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for name, tracker in self.opened.items():
            try:
                tracker.close(kind is None)
            except Exception as error:  # of a service that no result depends on
                _warn(name, error, "may lack the last metrics")


def open_trackers(training: Training, openers: Openers = OPENERS) -> Trackers:
    """Open the trackers of a training. Raises UserError, one line, where one does not start."""
    config = training.config
    check_packages(config.train.log_to)
    name = posixpath.basename(training.out.rstrip("/"))
    settings = {path: as_setting(value)[:_MAX_PARAMETER] for path, value in flatten(to_dict(config))}
    run = TrackedRun(training.run_id, name, settings)
    trackers = Trackers()
    for one in config.train.log_to:
        try:
            trackers.opened[one] = openers[one](run)
        except Exception as error:
            trackers.__exit__(type(error))
            raise UserError(
                f"train.log_to={one}: does not start ({_describe(error)}); fix its login or address, "
                "or leave it out"
            ) from error
    return trackers


def _warn(name: str, error: Exception, what: str) -> None:
    print(f"train.log_to={name}: {what} ({_describe(error)})", file=sys.stderr, flush=True)


def _describe(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
