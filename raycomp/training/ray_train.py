"""Ray Train from the driver: starts the ranks, reports their status, restarts them when one is lost.
The work of every rank of Ray Train: load the model, resume from the last checkpoint, train."""

import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
import ray.train
from ray.exceptions import RayError
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.v2.api import config as v2
from ray.train.v2.api.callback import UserCallback
from ray.train.v2.api.exceptions import ControllerError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raycomp.config import ClusterFailed, UserError
from raycomp.data.files import Folder
from raycomp.run.progress import Progress
from raycomp.run.ray_cluster import share_cpus, unwrap
from raycomp.run.run import Say
from raycomp.training import journal
from raycomp.training.loop import Writer, load_state, prefetch, start_rank, train_rank
from raycomp.training.ray_feed import Feed, get_course, start_cache
from raycomp.training.towers import to_batch


def open_wandb(run: journal.TrackedRun) -> journal.Tracker:
    """Start, or resume, a run. Ray reads WANDB_PROJECT_NAME, wandb itself WANDB_PROJECT."""
    from ray.air.integrations.wandb import setup_wandb

    project = os.environ.get("WANDB_PROJECT_NAME") or os.environ.get("WANDB_PROJECT", journal.PROJECT)
    settings = dict(run.settings)
    return journal.track_wandb(
        setup_wandb(settings, id=run.id, name=run.name, project=project, resume="allow")
    )


def open_mlflow(run: journal.TrackedRun) -> journal.Tracker:
    """Start a run."""
    from ray.air.integrations.mlflow import setup_mlflow

    return journal.track_mlflow(
        setup_mlflow(
            dict(run.settings),
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI"),
            experiment_name=os.environ.get("MLFLOW_EXPERIMENT_NAME", journal.PROJECT),
            create_experiment_if_not_exists=True,
            run_name=run.name,
            tags={journal.RUN_TAG: run.id},
        )
    )


OPENERS: journal.Openers = {"wandb": open_wandb, "mlflow": open_mlflow}
_POLL_S = 0.5
_CHECK_S = 10.0
# Starting a rank imports torch and loads the model; a busy machine needs longer than Ray Train's own minute.
_START_S = 600
# A rank notices the loss of others at its next communication.
_SILENCE_S = 1800
_LONGEST = 500
_LONGEST_CAUSE = 1000
_ASK_EVERY = 5
# Words in torch's errors that mean that another rank cannot be reached.
_BETWEEN_RANKS = ("gloo", "nccl")


@dataclass(frozen=True)
class TrainWorkers:
    """The processes that share a batch."""

    count: int
    on_gpus: bool
    gpus_per_worker: float = 1.0
    """Share of a GPU that each of them reserves, if on GPUs."""

    def scale(self, selector: Mapping[str, str], cpus: float) -> v2.ScalingConfig:
        """Return the workers as Ray Train takes them, on nodes with these labels, each with ``cpus``."""
        gpus = {"GPU": self.gpus_per_worker} if self.on_gpus else {}
        return v2.ScalingConfig(
            num_workers=self.count,
            use_gpu=self.on_gpus,
            resources_per_worker={"CPU": cpus, **gpus},
            label_selector=dict(selector) or None,
        )


@dataclass(frozen=True)
class RankJob:
    """The work of every rank, and the facts for the driver's reports."""

    work: Callable[[Any], None]
    """Takes the status tracker. Ray Train's controller unpickles it, too, so it imports heavy modules when
    called."""
    num_steps: int
    batch_size: int
    selector: Mapping[str, str]
    """Labels of the nodes that the ranks run on."""
    label: str = "train"
    """The first word of the line that reports a resumed start."""


def fit(
    training: journal.Training, ranks: TrainWorkers, check: Callable[[], None], say: Say
) -> journal.TrainingStatus:
    """Train to the end and return what was reported, as ``run_ranks``."""
    config = training.config
    training = replace(training, pairs=ray.put(training.pairs), course=ray.put(training.course))
    work, size = partial(_train, training), config.train.batch_size
    return run_ranks(RankJob(work, training.num_steps, size, config.cluster.selector), ranks, check, say)


def run_ranks(
    job: RankJob, ranks: TrainWorkers, check: Callable[[], None], say: Say
) -> journal.TrainingStatus:
    """Run a job on all ranks to its end, and return what they reported.

    ``check`` raises LeaseLost where another run has taken the folder. Raises the ranks' error that a restart
    cannot fix: ValueError for errors the user can fix, OSError where the storage failed in every start,
    ClusterFailed where workers were lost repeatedly, RuntimeError with a rank's traceback for a bug in
    raycomp.
    """
    # The tracker lives on this machine as long as the driver.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    tracker: Any = ray.remote(num_cpus=0)(journal.StatusTracker).options(scheduling_strategy=here).remote()
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(_START_S))
    ended: list[BaseException | None] = []

    class EndOnError(UserCallback):
        """Ends the training after an error that a restart cannot fix, before Ray Train starts the ranks once
        more. Ray's controller unpickles it, too: as a class of this function it imports nothing."""

        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            if ray.get(tracker.status.remote()).error is not None:
                raise RuntimeError("the tracker has the error that ends the training")

    scaling = ranks.scale(job.selector, share_cpus(ranks.count, 1, job.selector))

    def run() -> None:
        with tempfile.TemporaryDirectory() as temporary:
            # For type checkers ray.train has the classes of its first version.
            run_config: Any = v2.RunConfig(
                name="train",
                storage_path=temporary,
                # The tracker limits the restarts: it knows whether a step was taken in between.
                failure_config=v2.FailureConfig(max_failures=-1, max_preemption_failures=-1),
                callbacks=[EndOnError()],
                logging_config=v2.LoggingConfig(log_level="ERROR"),
            )
            try:
                TorchTrainer(
                    lambda reported: reported["work"](reported["tracker"]),
                    train_loop_config={"work": job.work, "tracker": tracker},
                    torch_config=TorchConfig(timeout_s=_SILENCE_S),
                    scaling_config=scaling,
                    run_config=run_config,
                ).fit()
                ended.append(None)
            except BaseException as error:  # raised by the thread that waits
                ended.append(error)

    # Not in the main thread: there Ray Train would handle Ctrl-C.
    thread = threading.Thread(target=run, daemon=True, name="ray train")
    thread.start()
    try:
        status = _follow(job, tracker, thread, check, say)
    except BaseException:
        # The cluster may outlive this run: stop its ranks.
        tracker.fail.remote("", RuntimeError("the driver stopped"))
        raise
    if status.error is not None:
        raise status.error
    if isinstance(ended[0], RayError | ControllerError):
        line = " ".join(str(ended[0]).split())[:_LONGEST]
        raise ClusterFailed(f"Ray lost the process that starts the workers: {line}") from ended[0]
    if ended[0] is not None:
        raise ended[0]
    return status


def _follow(
    job: RankJob, tracker: Any, thread: threading.Thread, check: Callable[[], None], say: Say
) -> journal.TrainingStatus:
    """Report the ranks' progress until they end; ``check`` that this run still holds the folder."""
    num_starts, checked_at = 0, time.monotonic()
    with Progress("train", job.num_steps, unit="step") as progress:
        while True:
            is_over = not thread.is_alive()
            status = ray.get(tracker.status.remote())
            for start in status.starts[num_starts:]:
                journal.say_start(start, say, job.label)
                progress.start_at(start["step"])
            num_starts = len(status.starts)
            progress.reach(status.step, job.batch_size)
            if time.monotonic() - checked_at > _CHECK_S:
                check()
                checked_at = time.monotonic()
            if is_over:
                return status
            thread.join(_POLL_S)


class Stopped(Exception):
    """The tracker has ended the training."""


@contextmanager
def reporting_failures(tracker: Any) -> Iterator[None]:
    """Report the error that ends a rank's block to the tracker; one that a restart cannot fix ends the
    run."""
    try:
        yield
    except Exception as error:
        why, final = judge_failure(error)
        ray.get(tracker.fail.remote(why, final, isinstance(unwrap(error), OSError)))
        raise


def judge_failure(error: Exception) -> tuple[str, Exception | None]:
    """Return the reason why a rank ended, in a line (empty where another rank failed first), and the error
    that ends the run, if any. A restart can fix a failed storage, machine or rank, but not an error of the
    user or a bug."""
    cause = unwrap(error)
    why = " ".join(str(cause).split())[:_LONGEST_CAUSE]
    # A library's own subclass of ValueError is a bug in raycomp.
    if isinstance(cause, UserError) or type(cause) is ValueError:
        return why, UserError(why)
    if isinstance(cause, OSError):
        return why, None
    is_between = isinstance(cause, RuntimeError) and any(word in why.lower() for word in _BETWEEN_RANKS)
    if is_between or isinstance(cause, Stopped):
        return "", None
    if type(cause).__name__ == "OutOfMemoryError":
        lack = "a step needs more memory than the GPU has; lower train.batch_size or raise train.accumulate"
        return why, UserError(f"{lack} ({why})")
    why = f"{type(cause).__name__}: {why}"
    if isinstance(cause, (RuntimeError, RayError)):
        return why, None
    return why, RuntimeError("".join(traceback.format_exception(error)))


class Line:
    """Sends a rank's reports to the tracker, each during the next step."""

    def __init__(self, tracker: Any):
        self.tracker = tracker
        self.may_continue = ray.put(True)

    def report(self, reported: dict[str, Any]) -> None:
        """Report a step. Raises Stopped where the tracker ended the training after the previous step."""
        if not ray.get(self.may_continue):
            raise Stopped
        self.may_continue = self.tracker.report.remote(reported)


def _train(training: journal.Training, tracker: Any) -> None:
    """Train as one rank: load the model, resume from the last checkpoint, take the remaining steps."""
    with reporting_failures(tracker):
        context, folder, options = ray.train.get_context(), Folder(training.out), training.config.train
        rank, num_ranks = context.get_world_rank(), context.get_world_size()
        if not may_arrive(tracker):
            return
        trainer = start_rank(
            training.config, training.num_steps, training.num_kinds, str(get_device()), training.threads
        )
        steps = broadcast_from_rank_zero(journal.list_states(folder))
        if steps:
            load_state(trainer, folder, steps[-1])
        if not may_start(tracker, trainer.step):
            return
        plan = get_course(training.course).plan
        cache = writer = None
        cpus = ray.get_runtime_context().get_assigned_resources()["CPU"]
        if rank == 0:
            cache = start_cache(training.pairs, plan, training.num_steps, num_ranks, cpus)
        cache = broadcast_from_rank_zero(cache)
        if rank == 0:
            writer = Writer(trainer, training, Line(tracker).report, OPENERS)
        device, feed = get_device(), Feed(training.course, cache, rank, num_ranks, cpus)
        arrays, spec = feed.batches(trainer.step, training.num_steps), training.image
        plain = (to_batch(one, device, spec) for one in arrays)
        batches = prefetch(arrays, device, spec) if options.prefetch else plain
        train_rank(trainer, batches, options.checkpoint_steps, writer, Preemption())


def may_arrive(tracker: Any) -> bool:
    """Return, on all ranks, whether to load the model: not after an error that ends the run."""
    return _ask_first(tracker.arrive)


def may_start(tracker: Any, step: int) -> bool:
    """Return, on all ranks, whether training may start, or resume, at a step."""
    return _ask_first(tracker.start, step)


def _ask_first(method: Any, *values: int) -> bool:
    is_first = ray.train.get_context().get_world_rank() == 0
    return bool(broadcast_from_rank_zero(is_first and ray.get(method.remote(*values))))


class Preemption:
    """Whether a rank's machine will soon be preempted. All ranks ask together and wait for the slowest, so
    they ask only every ``_ASK_EVERY`` steps."""

    def __init__(self) -> None:
        self.asked, self.heard = 0, False

    def __call__(self) -> bool:
        self.asked += 1
        if self.asked % _ASK_EVERY == 0:
            self.heard = ray.train.get_preemption_info() is not None
        return self.heard
