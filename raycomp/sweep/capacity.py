"""How many CPUs the trials of a sweep need, and how many trials fit on a cluster so that each can end."""

import math
import os

from raycomp.run.executor import Session, current
from raycomp.run.session import is_connected
from raycomp.sweep.config import SweepConfig

# What Tune sets aside for a trial, which only waits for its trainings: next to nothing, of the head node.
OF_TRIAL = {"CPU": 0, "node:__internal_head__": 0.001}
# A trial holds its training workers, or while it evaluates a scorer, which without a GPU takes two CPUs. One
# CPU more for all of them is enough for the tasks that they wait for, which hold none while they wait.
OF_SCORER, OF_TASKS = 2, 1
# What a little world is scored with.
_LEAST = 5


def cpus_of(trials: int, workers: int) -> int:
    """Return the CPUs without which so many trials might wait for one another."""
    return trials * max(workers, OF_SCORER) + OF_TASKS


def is_alone(config: SweepConfig) -> bool:
    """Whether Ray will be started on this machine for the sweep."""
    return not (is_connected() or config.cluster.address or os.environ.get("RAY_ADDRESS"))


def plan_alone(config: SweepConfig) -> int:
    """Return the CPUs to start Ray with here. Raises ValueError for workers that will never fit."""
    cores = config.cluster.num_cpus or os.cpu_count() or 1
    if config.workers > cores:
        named = "cluster.num_cpus" if config.cluster.num_cpus else "the cores of this machine"
        raise ValueError(f"train.train.workers={config.workers}: must be at most {cores}, {named}")
    at_once = config.max_concurrent or max(1, (os.cpu_count() or 1) // config.workers)
    # Each CPU counted here may become a process that loads torch: no more than is needed.
    return max(_LEAST, cpus_of(at_once, config.workers))


def count_trials(config: SweepConfig, session: Session) -> int:
    """Return how many trials are run at a time.

    Raises ValueError where a cluster can never have the workers of one, or not those of ``max_concurrent``.
    """
    workers = config.workers
    most = (session.num_cpus - OF_TASKS) // max(workers, OF_SCORER)
    if session.device == "gpu":
        from raycomp.run.ray_gpus import count_offered

        gpus = max(current().count("GPU"), count_offered("GPU"))
        most = min(most, most if math.isinf(gpus) else int(gpus) // workers)
    if most < 1:
        raise ValueError(
            f"train.train.workers={workers}: a trial needs {cpus_of(1, workers)} CPUs with so many, the "
            f"cluster can have {session.num_cpus}"
        )
    asked = config.max_concurrent
    if asked is not None and asked > most:
        raise ValueError(
            f"max_concurrent={asked}: must be at most {most}, for {cpus_of(asked, workers)} CPUs are needed "
            f"and the cluster can have {session.num_cpus}"
        )
    return asked or max(1, min(most, session.count_cores() // workers))
