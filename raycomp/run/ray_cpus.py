"""The CPUs that tasks and workers request: less than one each on a cluster that is too small for all."""

from collections.abc import Mapping, Sequence
from itertools import count
from math import isinf

import ray

from raycomp.run.ray_gpus import count_offered

# Tasks for which there is room next to the workers: one that reads and one that processes what was read.
_TASKS = 2
# Ray rounds amounts to this precision; a share that is rounded up would not fit.
_UNITS = 10_000


def share_cpus(workers: int, tasks_each: int, selector: Mapping[str, str]) -> float:
    """Return the CPUs that a task requests, 1 or a fraction, so that all workers and two tasks run together.

    A worker requests ``tasks_each`` times as much, on a node with the labels ``selector``. Where an unknown
    number of nodes may be added, the present ones count. Raises ValueError where there are no CPUs and none
    can be added.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    cpus = [int(node["Resources"].get("CPU", 0)) for node in alive]
    own = [n for n, node in zip(cpus, alive, strict=True) if selector.items() <= node["Labels"].items()]
    offered = count_offered("CPU")
    if sum(cpus) < offered and not isinf(offered):
        cpus = own = [int(offered)]
    if not sum(own):
        if offered:
            return 1.0
        where = "nodes with cluster.labels" if selector else "its nodes"
        raise ValueError(
            f"cluster: {where} have no CPUs and no autoscaler can add any; start a node with CPUs"
        )
    return _UNITS // split_cpu(cpus, own, workers, tasks_each) / _UNITS


def split_cpu(cpus: Sequence[int], own: Sequence[int], workers: int, tasks_each: int) -> int:
    """Return the least number of equal parts of a CPU with which everything fits, one part for each task.

    ``cpus`` are those of all nodes, ``own`` those of nodes where workers may run, at least 1 in all. A worker
    takes its ``tasks_each`` parts on one node.
    """
    return next(
        parts
        for parts in count(1)
        if sum(num * parts // tasks_each for num in own) >= workers
        and sum(cpus) * parts >= workers * tasks_each + _TASKS
    )
