"""How many trials fit on a cluster side by side, so that each of them can end."""

import math
import os

import ray

from raycomp.cluster.gpus import count_offered
from raycomp.cluster.session import Session
from raycomp.config import SweepConfig

# Beside its training workers a trial has Tune's own CPU, and one for the tasks that make its batches; when it
# evaluates, a scorer without a GPU takes two instead of the workers. As many trials as fit by that leave each
# of them a CPU for tasks, so none waits for another.
_OF_TRIAL, _OF_TASKS, _OF_SCORER = 1, 1, 2
# On a machine of its own CPUs are counted, not had: more for tasks cost nothing.
_MORE_TASKS = 2


def cpus_of_trial(workers: int) -> int:
    """Return the CPUs that a trial may hold at once."""
    return _OF_TRIAL + max(workers, _OF_SCORER) + _OF_TASKS


def is_alone(config: SweepConfig) -> bool:
    """Whether Ray will be started on this machine for the sweep."""
    return not (ray.is_initialized() or config.cluster.address or os.environ.get("RAY_ADDRESS"))


def plan_alone(config: SweepConfig) -> int:
    """Return the CPUs to start Ray with here. Raises ValueError for workers that will never fit."""
    cores = config.cluster.num_cpus or os.cpu_count() or 1
    if config.workers > cores:
        named = "cluster.num_cpus" if config.cluster.num_cpus else "the cores of this machine"
        raise ValueError(f"train.train.workers={config.workers}: must be at most {cores}, {named}")
    at_once = config.max_concurrent or max(1, (os.cpu_count() or 1) // config.workers)
    return at_once * (cpus_of_trial(config.workers) + _MORE_TASKS)


def count_trials(config: SweepConfig, session: Session) -> int:
    """Return how many trials are run at a time.

    Raises ValueError where a cluster can never have the workers of one, or not those of ``max_concurrent``.
    """
    needed, workers = cpus_of_trial(config.workers), config.workers
    most = session.num_cpus // needed
    if session.device == "gpu":
        gpus = max(ray.cluster_resources().get("GPU", 0), count_offered("GPU"))
        most = min(most, most if math.isinf(gpus) else int(gpus) // workers)
    if most < 1:
        raise ValueError(
            f"train.train.workers={workers}: a trial needs {needed} CPUs with so many, the cluster can have "
            f"{session.num_cpus}"
        )
    asked = config.max_concurrent
    if asked is not None and asked > most:
        raise ValueError(
            f"max_concurrent={asked}: must be at most {most}, {needed} CPUs a trial of the "
            f"{session.num_cpus} that the cluster can have"
        )
    return asked or max(1, min(most, session.count_cores() // workers))
