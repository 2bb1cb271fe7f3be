"""The executor on Ray: passes over Ray Data, tasks and actors on every node of the cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from raycomp.data.retries import TASK_RETRIES
from raycomp.run.growth import Growth
from raycomp.run.passes import Pass
from raycomp.run.ray_labels import leave_head_alone
from raycomp.run.ray_metrics import RayMeter
from raycomp.run.ray_passes import build, read_metadata
from raycomp.run.ray_private import count_pool

# Number of functions whose remote tasks are cached.
_TASKS = 8
# A task over a file takes seconds; requests to an unresponsive store fail in less than this.
_SETTLE_S = 600.0


class OnRay:
    """Runs the work on the connected cluster."""

    def __init__(self, stall_s: float):
        self.stall_s: float | None = stall_s
        self.tasks: dict[Callable[..., Any], tuple[dict[str, Any], Any]] = {}

    def run(self, steps: Pass, ordinals: list[int], parts_uri: str) -> Iterator[list[dict[str, Any]]]:
        return read_metadata(build(steps, ordinals, parts_uri))

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return a reference to the result of a task, which takes a CPU unless ``options`` say otherwise."""
        known, task = self.tasks.get(function, ({}, None))
        if task is None or known != options:
            # Ray sends every new function to all workers, so the last few are kept.
            task = ray.remote(**{"num_cpus": 1, **TASK_RETRIES, **options})(function)
            self.tasks = dict([*self.tasks.items()][-_TASKS:]) | {function: (options, task)}
        return task.remote(*args)

    def wait(self, handles: Sequence[Any], count: int, timeout_s: float | None = None) -> list[Any]:
        return ray.wait(list(handles), num_returns=count, timeout=timeout_s)[0]

    def get(self, handle: Any) -> Any:
        return ray.get(handle)

    def stop(self, handles: Sequence[Any]) -> None:
        """End the processes of tasks."""
        with suppress(RayError, ConnectionError):  # a cluster that is down runs none
            for handle in handles:
                ray.cancel(handle, force=True)
            if handles:
                ray.wait(list(handles), num_returns=len(handles), timeout=_SETTLE_S)

    def put(self, value: Any) -> Any:
        return ray.put(value)

    def count(self, resource: str) -> float:
        """Return the cluster's current amount, inf where the cluster does not answer."""
        with suppress(RayError, ConnectionError):  # a cluster that is down is reported where work is awaited
            return ray.cluster_resources().get(resource, 0)
        return float("inf")

    def merge_options(self) -> dict[str, Any]:
        """Return the options of a task that starts at once, on any node except an idle head."""
        return {"scheduling_strategy": "SPREAD", "num_cpus": 0, **leave_head_alone()}

    def watch_growth(self) -> Growth:
        return Growth(count_there)

    def open_meter(self, phase: str) -> RayMeter:
        return RayMeter(phase)


def count_there() -> tuple[int, int]:
    """Return the number of this driver's scorers with a loaded model, and of the cluster's CPUs."""
    try:
        return count_pool(), int(ray.cluster_resources().get("CPU", 0))
    except RayError as error:
        raise ConnectionError(str(error)) from error
