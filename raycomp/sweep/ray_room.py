"""How many trials fit on a cluster side by side, so that each of them can end."""

import math

import ray

from raycomp.run.ray_gpus import count_offered
from raycomp.run.session import Session
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.room import OF_SCORER, OF_TASKS, cpus_of


def count_trials(config: SweepConfig, session: Session) -> int:
    """Return how many trials are run at a time.

    Raises ValueError where a cluster can never have the workers of one, or not those of ``max_concurrent``.
    """
    workers = config.workers
    most = (session.num_cpus - OF_TASKS) // max(workers, OF_SCORER)
    if session.device == "gpu":
        gpus = max(ray.cluster_resources().get("GPU", 0), count_offered("GPU"))
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
