"""The work of every rank of Ray Train for a run: open it, resume from its last state, learn to the end."""

from typing import Any

import ray.train
from ray.train.torch import get_device

from raycomp.continual.results import is_done
from raycomp.continual.run import finish_one, open_one
from raycomp.continual.streams.place import RunJob
from raycomp.training.ray_work import Line, Preemption, may_arrive, may_start, reporting_failures


def run_as_rank(job: RunJob, tracker: Any) -> None:
    """Execute a run as one rank."""
    with reporting_failures(tracker):
        _run(job, tracker)


def _run(job: RunJob, tracker: Any) -> None:
    # If a start was lost while it wrote its last file, all ranks of the next start find that the run is done.
    if not may_arrive(tracker) or is_done(job.out, job.one_run):
        return
    opened = open_one(job, str(get_device()))
    opened.loop.start(job.state)
    if not may_start(tracker, opened.loop.taken):
        return
    is_first = ray.train.get_context().get_world_rank() == 0
    report = Line(tracker).report if is_first else lambda reported: None
    finish_one(job, opened, report, Preemption())
