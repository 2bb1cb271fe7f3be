"""The work of every rank of Ray Train: load the model, resume from the last checkpoint, train."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.train
from ray.exceptions import RayError
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import get_device

from raycomp.config import UserError
from raycomp.data.files import Folder
from raycomp.run.ray_cluster import unwrap
from raycomp.training.evaluations import load_held_out
from raycomp.training.journal import open_trackers
from raycomp.training.loop import Writer, load_state, prefetch, start_rank, train_rank
from raycomp.training.ray_feed import Feed, get_course, start_cache
from raycomp.training.ray_fit import OPENERS
from raycomp.training.status import Training, list_states
from raycomp.training.towers import Batch, to_batch

_LONGEST = 1000
_ASK_EVERY = 5
# Words in torch's errors that mean that another rank cannot be reached.
_BETWEEN_RANKS = ("gloo", "nccl")


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
    why = " ".join(str(cause).split())[:_LONGEST]
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


def train_as_rank(training: Training) -> None:
    """Train as one rank: load the model, resume from the last checkpoint, take the remaining steps."""
    with reporting_failures(training.tracker):
        _train(training)


def _train(training: Training) -> None:
    context, folder = ray.train.get_context(), Folder(training.out)
    rank, num_ranks = context.get_world_rank(), context.get_world_size()
    if not may_arrive(training.tracker):
        return
    trainer = start_rank(
        training.config, training.num_steps, training.num_kinds, str(get_device()), training.threads
    )
    steps = broadcast_from_rank_zero(list_states(folder))
    if steps:
        load_state(trainer, folder, steps[-1])
    if not may_start(training.tracker, trainer.step):
        return
    plan = get_course(training.course).plan
    cache = writer = None
    cpus = ray.get_runtime_context().get_assigned_resources()["CPU"]
    if rank == 0:
        cache = start_cache(training.source, plan, training.num_steps, num_ranks, cpus)
    cache = broadcast_from_rank_zero(cache)
    if rank == 0:
        held_out = load_held_out(training)
        trackers = open_trackers(training, OPENERS)
        report = Line(training.tracker).report
        writer = Writer(trainer, training.config, folder, report, training.evaluate, held_out, trackers)
    batches = _move(Feed(training.course, cache, rank, num_ranks, cpus), trainer.step, training)
    train_rank(trainer, batches, training.config.train.checkpoint_steps, writer, Preemption())


def may_arrive(tracker: Any) -> bool:
    """Return, on all ranks, whether to load the model: not after an error that ends the run."""
    is_first = ray.train.get_context().get_world_rank() == 0
    return bool(broadcast_from_rank_zero(is_first and ray.get(tracker.arrive.remote())))


def may_start(tracker: Any, step: int) -> bool:
    """Return, on all ranks, whether training may start, or resume, at a step."""
    is_first = ray.train.get_context().get_world_rank() == 0
    return bool(broadcast_from_rank_zero(is_first and ray.get(tracker.start.remote(step))))


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


def _move(feed: Feed, first_step: int, training: Training) -> Iterator[Batch]:
    batches, device = feed.batches(first_step, training.num_steps), get_device()
    if training.config.train.prefetch:
        yield from prefetch(batches, device, training.image)
        return
    for batch in batches:
        yield to_batch(batch, device, training.image)
