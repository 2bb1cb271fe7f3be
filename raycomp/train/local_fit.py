"""A training in this process, as its only rank: batches are made a few ahead in a thread."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns
from raycomp.run.local import ahead
from raycomp.run.progress import Progress
from raycomp.run.run import Say
from raycomp.train.board import Board, News, say_start
from raycomp.train.feed import read_batches
from raycomp.train.job import Job
from raycomp.train.rank import Writer, begin_rank, train_rank
from raycomp.train.state import load_state
from raycomp.train.states import list_states
from raycomp.train.towers import Batch, to_batch

_AHEAD = 2
_CHECK_S = 10.0
_CPU = "cpu"


def fit_here(job: Job, check: Callable[[], None], say: Say) -> News:
    """Train to the end, from the last checkpoint if there is one; return what was reported.

    ``check`` raises LeaseLost where the folder is another run's. The batches and the weights are those of one
    rank of Ray Train.
    """
    trainer, folder, board = _begin(job), Folder(job.out), Board()
    board.begin(trainer.step)
    news = board.news()
    say_start(news.starts[0], say)
    with Progress("train", job.num_steps, unit="step") as progress:
        progress.begin_at(trainer.step)
        checked_at = time.monotonic()

        def tell(row: dict[str, Any]) -> None:
            nonlocal checked_at
            board.tell(row)
            progress.reach(news.step, job.config.train.batch_size)
            if time.monotonic() - checked_at > _CHECK_S:
                check()
                checked_at = time.monotonic()

        writer = Writer(trainer, job.config, folder, tell, job.evaluate)
        train_rank(trainer, _make_batches(job, trainer.step), job.config.train.checkpoint_steps, writer)
    return news


def _begin(job: Job) -> Any:
    trainer = begin_rank(job.config, job.num_steps, job.num_kinds, _CPU, job.threads)
    folder = Folder(job.out)
    for step in list_states(folder)[-1:]:
        load_state(trainer, folder, step)
    return trainer


def _make_batches(job: Job, first_step: int) -> Iterator[Batch]:
    stock, course = job.stock, job.course
    steps = first_step, job.num_steps - first_step
    indices: Any = _Indices(stock.index)
    made = read_batches(stock.pairs, indices, course.plan, course.draw, *steps)
    for arrays in ahead(made, _AHEAD):
        yield to_batch(arrays, _CPU, job.image)


class _Indices:
    """The tables of the shards' pairs, each read when it is asked for."""

    def __init__(self, uris: tuple[str, ...]):
        self.uris = uris

    def __getitem__(self, shard: int) -> pa.Table:
        return read_columns(self.uris[shard])
