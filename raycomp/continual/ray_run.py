"""A run on several workers: Ray Train starts one process for each, and restarts all of them if one is
lost."""

from collections.abc import Callable
from functools import partial
from typing import Any

from raycomp.continual.streams.place import RunJob
from raycomp.continual.streams.store import count_tasks
from raycomp.run.run import Say
from raycomp.training.ray_fit import RankJob, TrainWorkers, run_ranks


def fit_one(job: RunJob, on_gpus: bool, check: Callable[[], None], say: Say) -> None:
    """Execute a run of a method that trains the model on ``tune.workers`` workers; raises as
    ``run_ranks``."""
    tune, one_run = job.config.tune, job.one_run
    assert tune.workers is not None, "a run of one process does not use Ray Train"
    ranks = RankJob(
        partial(_work, job),
        num_steps=tune.steps * count_tasks(job.place.files),
        batch_size=tune.batch_size,
        selector=job.config.cluster.selector,
        label=one_run.name,
    )
    run_ranks(ranks, TrainWorkers(tune.workers, on_gpus), check, say)


def _work(job: RunJob, tracker: Any) -> None:
    from raycomp.continual.ray_run_work import run_as_rank  # timeout in seconds, used by the ranks alone

    run_as_rank(job, tracker)
