"""What every rank of Ray Train does: load the model, go on from the last checkpoint, train."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import get_device

from raycomp.cluster.train.feed import Feed, get_course
from raycomp.cluster.train.shelf import Shelf
from raycomp.config import TrainConfig
from raycomp.loops.train.feed import to_batch
from raycomp.loops.train.rank import Evaluate, Writer, begin_rank, train_rank
from raycomp.loops.train.state import list_states, load_state
from raycomp.loops.train.towers import Batch
from raycomp.models.images import ImageSpec
from raycomp.shards.folder import Folder


@dataclass(frozen=True)
class Job:
    """What every rank is told."""

    config: TrainConfig
    out: str
    stock: Any
    """A reference to what shards are read from."""
    course: Any
    """A reference to the course of all batches."""
    board: Any
    num_steps: int
    steps_per_epoch: int
    num_kinds: int
    image: ImageSpec
    threads: int | None
    """Torch threads of a rank on CPUs; none on GPUs."""
    evaluate: Evaluate | None


def work(told: dict[str, Job]) -> None:
    """Train as one rank. What the user can mend ends the run for good."""
    job = told["job"]
    try:
        _train(job)
    except Exception as error:
        # What failed in a task comes wrapped, with its traceback in its words.
        cause = getattr(error, "cause", error)
        is_final = isinstance(cause, ValueError)
        why = str(cause) if is_final else f"{type(cause).__name__}: {cause}"
        ray.get(job.board.fail.remote(" ".join(why.split())[:1000], is_final))
        raise


def _train(job: Job) -> None:
    context, folder = ray.train.get_context(), Folder(job.out)
    rank, num_ranks = context.get_world_rank(), context.get_world_size()
    trainer = begin_rank(job.config, job.num_steps, job.num_kinds, str(get_device()), job.threads)
    steps = broadcast_from_rank_zero(list_states(folder))
    if steps:
        load_state(trainer, folder, steps[-1])
    # A new start after one that failed for good ends here.
    if not broadcast_from_rank_zero(rank == 0 and ray.get(job.board.begin.remote(trainer.step))):
        return
    shelf = broadcast_from_rank_zero(_put_up_shelf(job) if rank == 0 else None)
    writer = None
    if rank == 0:
        writer = Writer(trainer, job.config, folder, job.board.tell.remote, job.evaluate)
    batches = _move(Feed(job.course, shelf, rank, num_ranks), trainer.step, job)
    train_rank(trainer, batches, job.config.train.checkpoint_steps, writer, _is_warned)


def _put_up_shelf(job: Job) -> Any:
    plan = get_course(job.course).plan
    return ray.remote(num_cpus=0)(Shelf).remote([job.stock], plan, job.num_steps)


def _is_warned() -> bool:
    """Whether a rank's machine will soon be taken away; all ranks ask, and hear the same."""
    return ray.train.get_preemption_info() is not None


def _move(feed: Feed, first_step: int, job: Job) -> Iterator[Batch]:
    for batch in feed.batches(first_step, job.num_steps):
        yield to_batch(batch, get_device(), job.image)
