"""The CPUs that a sweep's trials need, and the number of concurrent trials that a cluster can finish."""

import math
import os

from raycomp.run.executor import Session, current
from raycomp.run.session import is_connected
from raycomp.sweep.config import SweepConfig
from raycomp.training.config import LEAST_GPU

# The share that Tune reserves for a trial, which only waits for its trainings: almost nothing, of the head
# node.
OF_TRIAL = {"CPU": 0, "node:__internal_head__": 0.001}
# A trial holds its training workers, or while it evaluates a scorer, which takes two CPUs without a GPU. One
# more CPU for all trials is enough for the tasks they wait for; a trial holds no CPU while it waits.
OF_SCORER, OF_TASKS = 2, 1
# A GPU in the units in which Ray counts shares.
_UNITS = round(1 / LEAST_GPU)
# CPUs to score a little world.
_LEAST = 5


def cpus_of(trials: int, workers: int) -> int:
    """Return the CPUs below which this number of trials might deadlock."""
    return trials * max(workers, OF_SCORER) + OF_TASKS


def count_on_gpus(gpus: float, workers: int, gpus_per_worker: float) -> float:
    """Return how many trials fit on this number of GPUs at once; inf for inf.

    The share of a worker is of one GPU: of .6 one fits, and .4 of the GPU is left.
    """
    if math.isinf(gpus):
        return gpus
    return int(gpus) * (_UNITS // round(gpus_per_worker * _UNITS)) // workers


def is_alone(config: SweepConfig) -> bool:
    """Whether the sweep will start Ray on this machine."""
    return not (is_connected() or config.cluster.address or os.environ.get("RAY_ADDRESS"))


def plan_alone(config: SweepConfig) -> int:
    """Return the CPUs to start local Ray with. Raises ValueError for workers that can never fit."""
    cores = config.cluster.num_cpus or os.cpu_count() or 1
    if config.workers > cores:
        named = "cluster.num_cpus" if config.cluster.num_cpus else "the cores of this machine"
        raise ValueError(f"train.train.workers={config.workers}: must be at most {cores}, {named}")
    at_once = config.max_concurrent or max(1, (os.cpu_count() or 1) // config.workers)
    # Each CPU counted here may become a process that loads torch: no more than needed.
    return max(_LEAST, cpus_of(at_once, config.workers))


def count_trials(config: SweepConfig, session: Session) -> int:
    """Return the number of concurrent trials.

    One trial fits on any CPUs, as its workers and scorers then request less than one each. Raises ValueError
    if the cluster can never hold the GPUs of one trial, or the workers of ``max_concurrent``.
    """
    workers = config.workers
    most = on_cpus = max(1, _fit(session.most_cpus - OF_TASKS, max(workers, OF_SCORER)))
    if session.device == "gpu":
        from raycomp.run.ray_gpus import count_offered

        gpus = max(current().count("GPU"), count_offered("GPU"))
        most = min(most, count_on_gpus(gpus, workers, config.gpus_per_worker))
    if most < 1:
        raise ValueError(f"train.train.workers={workers}: more than fit on the cluster's GPUs; set fewer")
    asked = config.max_concurrent
    if asked is not None and asked > most:
        why = f"{cpus_of(asked, workers)} CPUs are needed, the cluster has {session.num_cpus}"
        if most < on_cpus:
            share = config.gpus_per_worker
            why = f"no more fit on the cluster's GPUs at train.train.gpus_per_worker={share:g}"
        raise ValueError(f"max_concurrent={asked}: must be at most {most:.0f}; {why}")
    return asked or max(1, int(min(most, session.count_cores() // workers)))


def _fit(there: float, each: int) -> float:
    """Return how many times ``each`` fits, inf where there is no limit; inf // 1 would be nan."""
    return there if math.isinf(there) else there // each
