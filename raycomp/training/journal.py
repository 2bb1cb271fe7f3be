"""What the driver gives every rank, the training status that ranks report to it, the states in a folder, and
the metrics of every training step: in ``metrics.jsonl``, for TensorBoard, and for experiment trackers.

A tracker is opened by the one process that writes metrics: here without Ray, in ``ray_train.py`` by Ray's own
integrations. Results do not depend on trackers: one that fails later is reported and dropped.

The file holds step s in line s + 1, each step once, also after kills: a run that resumes from the checkpoint
of step s keeps the first s lines. On a disk the file grows by a line per step, which ``tail -f`` follows. S3
cannot append, so there the file grows in temporary space and ``keep`` writes all of it at each checkpoint. A
line has about 120 bytes, so the checkpoint of step 1,000,000 writes 120 MB of lines and 90 MB of events, in
addition to 1.8 GB of a ViT-B/32 and its optimizer. Parts would avoid that but would have to be joined.
"""

import importlib
import json
import math
import os
import posixpath
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.json

from raycomp.config import ClusterFailed, UserError, to_dict
from raycomp.config.commands import flatten
from raycomp.config.options import as_setting
from raycomp.core.batches import EpochPlan
from raycomp.data.files import Folder, forget_written, name_place, resolve
from raycomp.models.images import ImageSpec
from raycomp.training.config import TrainConfig
from raycomp.training.held_out import HeldOut
from raycomp.training.pairs import Drawing

STEP = "step"
OWN_COLUMNS = (STEP, "loss", "learning_rate", "samples_per_s")
"""The columns of metrics.jsonl that every step has. An evaluation must choose other names."""
Evaluate = Callable[[Any, int], Mapping[str, Any]]
"""Takes the model, in evaluation mode, and its number of steps; returns numbers by name."""
CHECKPOINTS, STATE = "checkpoints", "state.json"
# Failed starts from the same step after which the training ends.
_MOST_STARTS = 4
_LOST = "a worker was lost"


def list_states(out: Folder) -> list[int]:
    """Return the steps that have a state, in order."""
    names = [name for name in out.list_names(CHECKPOINTS) if name.isdecimal()]
    return sorted(int(name) for name in names if out.exists(CHECKPOINTS, name, STATE))


def keep_states(out: Folder, count: int) -> None:
    """Remove all states but the last ``count``, and incomplete ones of any step."""
    steps = list_states(out)[-count:]
    for name in out.list_names(CHECKPOINTS):
        if name.isdecimal() and int(name) not in steps:
            out.remove(CHECKPOINTS, name)


@dataclass
class TrainingStatus:
    """All reports so far."""

    step: int = 0
    """Number of steps taken."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """The ``step`` at which training started or resumed, and ``why`` it resumed, empty for the first
    start."""
    error: Exception | None = None
    """An error that a restart cannot fix."""

    @property
    def resumed(self) -> list[dict[str, Any]]:
        """The starts that resumed from a checkpoint."""
        return [start for start in self.starts if start["why"]]


class StatusTracker:
    """An actor of the driver that keeps the status across restarts of the ranks."""

    def __init__(self) -> None:
        self.known = TrainingStatus()
        self.why = ""
        self.is_storage = False
        self.tries = 0

    def arrive(self) -> bool:
        """Return whether ranks that have just started may load the model."""
        self.tries += 1
        # One more start is allowed here: only ``start`` knows its step and can refuse it.
        self._end_after(_MOST_STARTS + 1)
        return self.known.error is None

    def start(self, step: int) -> bool:
        """Return whether training may start, or resume, at a step."""
        known = self.known
        if known.starts and step > known.starts[-1]["step"]:
            self.tries = 1
        self._end_after(_MOST_STARTS)
        if known.error is None:
            lost = f"{_LOST} ({self.why})" if self.why else _LOST
            why = lost if known.starts else "started earlier" * (step > 0)
            known.starts.append({"step": step, "why": why})
            known.step, self.why, self.is_storage = step, "", False
        return known.error is None

    def _end_after(self, starts: int) -> None:
        """End the training after that many starts without a new checkpoint."""
        known = self.known
        if known.error is None and self.tries >= starts:
            where = f"step {known.starts[-1]['step']:,}" if known.starts else "its start"
            said = f"training failed {starts - 1} times between {where} and the next checkpoint"
            kind = OSError if self.is_storage else ClusterFailed
            known.error = kind(f"{said}: {self.why or _LOST}")

    def report(self, reported: dict[str, Any]) -> bool:
        """Record a step; return whether training continues."""
        self.known.step = reported["step"] + 1
        return self.known.error is None

    def fail(self, why: str, error: Exception | None = None, is_storage: bool = False) -> None:
        """Record why a rank ended; an ``error`` ends the training. ``is_storage``: whether a storage
        failed."""
        if not self.why:
            self.why, self.is_storage = why, is_storage
        self.known.error = self.known.error or error

    def status(self) -> TrainingStatus:
        """Return the whole status."""
        return self.known


def say_start(start: Mapping[str, Any], say: Callable[[str], None], label: str = "train") -> None:
    """Report the step at which training resumed, and the reason; nothing for the first start."""
    if start["why"]:
        say(f"{label}: {start['why']}; resumed from step {start['step']:,}")


@dataclass(frozen=True)
class Course:
    """What determines every batch of a run, in addition to the shards."""

    plan: EpochPlan
    draw: Drawing


@dataclass(frozen=True)
class Training:
    """The inputs of every rank. On Ray ``pairs`` and ``course`` are references."""

    config: TrainConfig
    out: str
    pairs: Any
    course: Any
    num_steps: int
    num_kinds: int
    image: ImageSpec
    threads: int | None
    """Torch threads of a rank on CPUs; none on GPUs."""
    evaluate: Evaluate | None
    held_out: HeldOut | None = None
    run_id: str = ""
    """That of run.json."""


METRICS = "metrics.jsonl"
EVENTS = "tensorboard"
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


class Tracker(NamedTuple):
    """Where metrics go."""

    log: Callable[[dict[str, float], int], object]
    """Takes the finite metrics of a step."""
    close: Callable[[bool], object]
    """Ends the run; it has failed unless the argument is true."""


Openers = Mapping[str, Callable[[TrackedRun], Tracker]]


def track_wandb(run: Any) -> Tracker:
    """Track by a run of Weights & Biases. After a restart the run with the same id resumes."""
    return Tracker(
        lambda values, step: run.log(values, step=step),
        lambda is_finished: run.finish(exit_code=0 if is_finished else 1),
    )


def track_mlflow(mlflow: Any) -> Tracker:
    """Track by the active run of the module ``mlflow``. After a restart another run has the same tag
    ``RUN_TAG``."""

    def close(is_finished: bool) -> None:
        mlflow.flush_async_logging()
        mlflow.end_run("FINISHED" if is_finished else "FAILED")

    return Tracker(lambda values, step: mlflow.log_metrics(values, step=step, synchronous=False), close)


def open_wandb(run: TrackedRun) -> Tracker:
    """Start, or resume, a run by the settings of wandb's own environment variables."""
    project, settings = os.environ.get("WANDB_PROJECT", PROJECT), dict(run.settings)
    wandb = importlib.import_module("wandb")
    return track_wandb(wandb.init(id=run.id, name=run.name, project=project, config=settings, resume="allow"))


def open_mlflow(run: TrackedRun) -> Tracker:
    """Start a run by the settings of MLflow's own environment variables."""
    mlflow = importlib.import_module("mlflow")
    if "MLFLOW_EXPERIMENT_ID" not in os.environ:
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    mlflow.start_run(run_name=run.name, tags={RUN_TAG: run.id})
    mlflow.log_params(dict(run.settings))
    return track_mlflow(mlflow)


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


# TensorBoard's file is flushed as often.
_FLUSH_S = 30.0


class MetricsLog:
    """The lines and curves of a training from ``first_step`` on; one process writes them.

    A file of TensorBoard events records its first step, and TensorBoard drops that step and later ones of
    earlier files. tensorboardX's own SummaryWriter would write in a thread that flushing does not wait for.
    Raises ValueError where the folder lacks a step before ``first_step``.
    """

    def __init__(self, folder: Folder, first_step: int):
        self._folder, self._next = folder, first_step
        written = b""
        if first_step:
            lines = (folder.read_bytes(METRICS) if folder.exists(METRICS) else b"").split(b"\n")
            try:
                is_whole = (
                    len(lines) > first_step and json.loads(lines[first_step - 1])[STEP] == first_step - 1
                )
            except (ValueError, TypeError, KeyError):
                is_whole = False
            if not is_whole:
                raise ValueError(
                    f"{folder.at(METRICS)}: must hold the {first_step:,} steps before the checkpoint to "
                    "resume from; restore the file, or start in another folder"
                )
            written = b"\n".join(lines[:first_step]) + b"\n"
        self._spool = None if folder.is_local else tempfile.TemporaryDirectory(prefix="raycomp-")
        self._near = folder if self._spool is None else Folder(self._spool.name)
        self._near.write_bytes(written, METRICS)
        forget_written(self._near.at(METRICS))  # it grows from here on
        path = Path(resolve(self._near.uri)[1])
        self._lines = (path / METRICS).open("ab")
        from tensorboardX import RecordWriter  # imports torch and boto3
        from tensorboardX.proto.event_pb2 import SessionLog

        (path / EVENTS).mkdir(parents=True, exist_ok=True)
        self._events = f"events.out.tfevents.{time.time_ns():019d}"  # read in the order of their names
        self._records, self._flushed = RecordWriter(str(path / EVENTS / self._events)), time.monotonic()
        self._add(first_step, file_version="brain.Event:2")
        self._add(first_step, session_log=SessionLog(status=SessionLog.START))

    def write(self, reported: Mapping[str, float]) -> None:
        """Record the next step: ``step``, ``loss`` and any further numbers, floats exactly. NaN and infinity
        become null in JSON."""
        assert reported[STEP] == self._next, f"step {reported[STEP]}: must be {self._next}"
        line = {name: value if math.isfinite(value) else None for name, value in reported.items()}
        with name_place(self._near.uri):
            self._lines.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._lines.flush()
            self.draw(reported)
        self._next += 1

    def draw(self, reported: Mapping[str, float]) -> None:
        """Write the values of a step for TensorBoard alone."""
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=reported[name]) for name in reported if name != STEP]
        self._add(int(reported[STEP]), summary=Summary(value=values))
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._records.flush()
            self._flushed = time.monotonic()

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        event = Event(wall_time=time.time(), step=step, **content)
        self._records.write(event.SerializeToString())

    def keep(self) -> Callable[[], None]:
        """Flush all steps so far; return what stores them on the disk or on S3, in any thread. It must be
        called before the state of the same step is written, so that every state has all its lines."""
        with name_place(self._near.uri):
            self._lines.flush()
            self._records.flush()
            self._flushed = time.monotonic()
        names = ((METRICS,), (EVENTS, self._events)) if self._spool else ()
        files = {name: self._near.read_bytes(*name) for name in names}

        def store() -> None:
            for name, content in files.items():
                self._folder.write_bytes(content, *name)
            if self._spool is None:
                with name_place(self._near.uri):
                    os.fsync(self._lines.fileno())

        return store

    def close(self) -> None:
        """Flush all steps and close."""
        self.keep()()
        self._lines.close()
        self._records.close()
        if self._spool is not None:
            self._spool.cleanup()


def read_metrics(folder: Folder) -> dict[str, np.ndarray]:
    """Return ``metrics.jsonl`` by name of the metric: float64, one for each step, NaN where there is none.

    ``step`` is int64. Raises ValueError where it is not what a ``MetricsLog`` wrote.
    """
    try:
        table = pyarrow.json.read_json(pa.BufferReader(folder.read_bytes(METRICS)))
        steps = table[STEP].to_numpy()
        columns = {name: table[name].cast(pa.float64()) for name in table.column_names}
    except (pa.ArrowException, KeyError) as error:
        line = " ".join(str(error).split())[:200]
        raise ValueError(f"{folder.at(METRICS)}: was not written by a training ({line})") from error
    return {name: column.to_numpy() for name, column in columns.items()} | {STEP: steps}
