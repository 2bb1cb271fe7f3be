"""A training in this process, as its only rank; a thread makes a few batches in advance."""

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from raycomp.core.epochs import ahead
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns
from raycomp.run.progress import Progress
from raycomp.run.run import Say
from raycomp.training.evaluations import load_held_out
from raycomp.training.feed import read_batches
from raycomp.training.journal import (
    StatusTracker,
    Training,
    TrainingStatus,
    list_states,
    open_trackers,
    say_start,
)
from raycomp.training.loop import Writer, load_state, start_rank, train_rank
from raycomp.training.towers import to_batch

_AHEAD = 2
_CHECK_S = 10.0
_CPU = "cpu"


def fit_here(training: Training, check: Callable[[], None], say: Say) -> TrainingStatus:
    """Train to the end, from the last checkpoint if there is one; return what was reported.

    ``check`` raises LeaseLost where the folder is another run's. The batches and the weights are those of one
    rank of Ray Train.
    """
    config, folder, tracker = training.config, Folder(training.out), StatusTracker()
    trainer = start_rank(config, training.num_steps, training.num_kinds, _CPU, training.threads)
    for step in list_states(folder)[-1:]:
        load_state(trainer, folder, step)
    tracker.start(trainer.step)
    status = tracker.status()
    say_start(status.starts[0], say)
    with Progress("train", training.num_steps, unit="step") as progress:
        progress.start_at(trainer.step)
        checked_at = time.monotonic()

        def report(row: dict[str, Any]) -> None:
            nonlocal checked_at
            tracker.report(row)
            progress.reach(status.step, config.train.batch_size)
            if time.monotonic() - checked_at > _CHECK_S:
                check()
                checked_at = time.monotonic()

        held_out = load_held_out(training)
        trackers = open_trackers(training)
        writer = Writer(trainer, config, folder, report, training.evaluate, held_out, trackers)
        source, course = training.source, training.course
        indices: Any = _Indices(source.index)
        steps = trainer.step, training.num_steps - trainer.step
        made = read_batches(source.pairs, indices, course.plan, course.draw, *steps)
        batches = (to_batch(arrays, _CPU, training.image) for arrays in ahead(made, _AHEAD))
        train_rank(trainer, batches, config.train.checkpoint_steps, writer)
    return status


class _Indices:
    """The tables of the shards' pairs, each read on access."""

    def __init__(self, uris: tuple[str, ...]):
        self.uris = uris

    def __getitem__(self, shard: int) -> pa.Table:
        return read_columns(self.uris[shard])
