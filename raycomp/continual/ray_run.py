"""A run on several workers: Ray Train starts one process for each, and restarts all of them if one is
lost."""

from collections.abc import Callable
from functools import partial
from typing import Any

from raycomp.continual.embed import RunJob
from raycomp.continual.scoring import is_done
from raycomp.continual.streams.build import count_tasks
from raycomp.run.run import Say
from raycomp.training.ray_train import RankJob, TrainWorkers, run_ranks


def fit_one(job: RunJob, on_gpus: bool, check: Callable[[], None], say: Say) -> None:
    """Execute a run of a method that trains the model on ``tune.workers`` workers; raises as
    ``run_ranks``."""
    tune = job.config.tune
    assert tune.workers is not None, "a run of one process does not use Ray Train"
    ranks = RankJob(
        partial(_work, job),
        num_steps=tune.steps * count_tasks(job.place.files),
        batch_size=tune.batch_size,
        selector=job.config.cluster.selector,
        label=job.one_run.name,
    )
    run_ranks(ranks, TrainWorkers(tune.workers, on_gpus), check, say)


def _work(job: RunJob, tracker: Any) -> None:
    """Open the run as one rank, resume from its last state, learn to the end."""
    import ray.train  # these take seconds to import, and only the ranks use them
    from ray.train.torch import get_device

    from raycomp.continual.loop import finish_one, open_one
    from raycomp.training.ray_train import Line, Preemption, may_arrive, may_start, reporting_failures

    with reporting_failures(tracker):
        # If a start was lost while it wrote its last file, all ranks of the next start find the run done.
        if not may_arrive(tracker) or is_done(job.out, job.one_run):
            return
        loop = open_one(job, str(get_device()))
        loop.start(job.state)
        if may_start(tracker, loop.taken):
            is_first = ray.train.get_context().get_world_rank() == 0
            report = Line(tracker).report if is_first else lambda reported: None
            finish_one(job, loop, report, Preemption())
