"""What every rank of Ray Train does: load the model, go on from the last checkpoint, train."""

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
from raycomp.data.folder import Folder
from raycomp.train.held_out_evaluation import load_held_out
from raycomp.train.rank import Writer, start_rank, train_rank
from raycomp.train.ray_cache import ShardCache
from raycomp.train.ray_feed import Feed, get_course
from raycomp.train.ray_trackers import OPENERS
from raycomp.train.state import load_state
from raycomp.train.states import list_states
from raycomp.train.towers import Batch, to_batch
from raycomp.train.trackers import open_trackers
from raycomp.train.training import Training

_LONGEST = 1000
_ASK_EVERY = 5
# Which of torch's voices tell that another rank can no longer be reached.
_BETWEEN_RANKS = ("gloo", "nccl")


class Stopped(Exception):
    """The board wants no further step."""


def train_as_rank(training: Training) -> None:
    """Train as one rank."""
    with reporting_failures(training.tracker):
        _train(training)


@contextmanager
def reporting_failures(tracker: Any) -> Iterator[None]:
    """Report to the board what ends the block of a rank: what no start fixes ends the run for good."""
    try:
        yield
    except Exception as error:
        why, final = judge_failure(error)
        ray.get(tracker.fail.remote(why, final, isinstance(find_cause(error), OSError)))
        raise


def judge_failure(error: Exception) -> tuple[str, Exception | None]:
    """Return in a line why a rank ended, nothing where another one did, and what ends the run, if it does.

    A new start mends a storage, a machine, a rank that is gone; no mistake of the user's, nor one of ours.
    """
    cause = find_cause(error)
    why = " ".join(str(cause).split())[:_LONGEST]
    # A library's own kind of ValueError is our mistake.
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


def find_cause(error: Exception) -> BaseException:
    """Return what ended a rank, without the tracebacks that tasks between have wrapped it in."""
    cause: BaseException = error
    while isinstance(getattr(cause, "cause", None), BaseException):
        cause = cause.cause  # type: ignore[attr-defined]
    return cause


class Line:
    """A rank's line to the board: one step's word is on its way while the next step is taken."""

    def __init__(self, tracker: Any):
        self.tracker = tracker
        self.goes_on = ray.put(True)

    def report(self, reported: dict[str, Any]) -> None:
        """Report of a step. Raises Stopped where the board wanted none after the one before."""
        if not ray.get(self.goes_on):
            raise Stopped
        self.goes_on = self.tracker.report.remote(reported)


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
    cache = broadcast_from_rank_zero(_start_cache(training) if rank == 0 else None)
    writer = None
    if rank == 0:
        held_out = load_held_out(training)
        trackers = open_trackers(training, OPENERS)
        report = Line(training.tracker).report
        writer = Writer(trainer, training.config, folder, report, training.evaluate, held_out, trackers)
    batches = _move(Feed(training.course, cache, rank, num_ranks), trainer.step, training)
    train_rank(trainer, batches, training.config.train.checkpoint_steps, writer, Preemption())


def may_arrive(tracker: Any) -> bool:
    """Return, on all ranks, whether they are to load anything: not after a start that failed for good."""
    is_first = ray.train.get_context().get_world_rank() == 0
    return bool(broadcast_from_rank_zero(is_first and ray.get(tracker.arrive.remote())))


def may_start(tracker: Any, step: int) -> bool:
    """Return, on all ranks, whether training may start, or resume, at a step."""
    is_first = ray.train.get_context().get_world_rank() == 0
    return bool(broadcast_from_rank_zero(is_first and ray.get(tracker.start.remote(step))))


def _start_cache(training: Training) -> Any:
    plan = get_course(training.course).plan
    return ray.remote(num_cpus=0)(ShardCache).remote([training.source], plan, training.num_steps)


class Preemption:
    """Whether a rank's machine will soon be taken away. All ranks ask and hear the same, which takes each as
    long as the slowest, so only every so many steps."""

    def __init__(self) -> None:
        self.asked, self.heard = 0, False

    def __call__(self) -> bool:
        self.asked += 1
        if self.asked % _ASK_EVERY == 0:
            self.heard = ray.train.get_preemption_info() is not None
        return self.heard


def _move(feed: Feed, first_step: int, training: Training) -> Iterator[Batch]:
    for batch in feed.batches(first_step, training.num_steps):
        yield to_batch(batch, get_device(), training.image)
