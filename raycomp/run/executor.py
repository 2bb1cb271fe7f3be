"""A stage is a step on every row; an executor runs stages, in this process or on Ray: ``current()``."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

if TYPE_CHECKING:
    from raycomp.run.work import Pass

# Timed in addition to the stages: the work before and after them, and the time of scorers' GPUs within them.
READ, WRITE, DEVICE = "read", "write", "device"
GPU_KIND = "gpu_kind"
"""The column of the kind of GPU that computed a row, where there may be several: counted, not stored."""
Work = Callable[[pa.Table], pa.Table]
CPUS: Literal["cpus"] = "cpus"
SCORERS: Literal["scorers"] = "scorers"


class Clock(Protocol):
    """The device of a model."""

    def take_busy_seconds(self) -> float | None:
        """Return the GPU's busy seconds since the last call, None on a CPU."""

    def is_broken(self) -> bool:
        """Whether this process has lost its GPU."""


@runtime_checkable
class Scorer(Protocol):
    """A step with its model loaded, which reports how long the model's device computed."""

    device: Clock

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows with other columns."""


@dataclass(frozen=True)
class Stage:
    """A step from a table to a table of the same rows with other columns.

    ``work`` is the step itself on CPUs. On scorers it loads a model: called with
    ``num_threads`` (None = torch's default), it returns a ``Scorer``.
    """

    name: str
    says: str
    """Its description, for the report."""
    where: Literal["cpus", "scorers"]
    work: Callable[..., Any]
    in_threads: bool = False
    """Whether several threads of one process may run it at a time."""

    def start(self, num_threads: int | None = None) -> Any:
        """Return the step, with its model loaded."""
        return self.work if self.where == CPUS else self.work(num_threads=num_threads)


@dataclass(frozen=True)
class Session:
    """The available resources: this process, or a cluster with the nodes that its autoscaler may add."""

    num_scorers: int
    """Maximum number of scorers."""
    scorer_resources: dict[str, Any]
    num_threads: int | None
    """Torch threads of a scorer on CPUs; None on GPUs."""
    num_cpus: int
    num_nodes: int
    block_rows: int
    least_scorers: int | None = None
    """Minimum of an elastic pool; None = the pool has a fixed size."""
    gpu: Mapping[str, Any] | None = None
    """The GPU of every scorer, as ``describe_gpu`` returns it; None on CPUs."""
    is_local: bool = False
    """Whether all work runs in this process."""
    is_bounded: bool = True
    """Whether ``num_cpus`` is the maximum. It is what is there now where the autoscaler reports no limit."""
    cpus_per_task: float = 1.0
    """CPUs that a task requests: less than 1 where the cluster is too small for scorers and two tasks."""

    @property
    def is_elastic(self) -> bool:
        """Whether the number of scorers changes during the run."""
        return self.least_scorers not in (None, self.num_scorers)

    @property
    def most_cpus(self) -> float:
        """Return the maximum of CPUs, inf where it is unknown."""
        return self.num_cpus if self.is_bounded else inf

    @property
    def device(self) -> str:
        """The scorers' device, cpu or gpu; the last bits of a score may differ between the two."""
        return "cpu" if self.num_threads else "gpu"

    def count_cores(self) -> int:
        """Return how many single-thread processes run at full speed; one machine may report more CPUs."""
        return self.num_cpus if self.num_nodes > 1 else min(self.num_cpus, os.cpu_count() or 1)

    def count_first(self) -> int:
        """Return how many scorers a pass starts with: one per GPU that is there now, or else the minimum."""
        least, most = self.least_scorers or self.num_scorers, self.num_scorers
        there = int(current().count("GPU")) if self.is_elastic and self.device == "gpu" else 0
        return min(most, max(least, there))

    def rows_per_call(self, rows: Mapping[str, int]) -> int:
        """Return how many rows a scorer takes at a time, from those per thread ("cpu") or per GPU ("gpu")."""
        return rows[self.device] * (self.num_threads or 1)


class Silent:
    """The metrics of one phase; without a cluster that collects them all values are discarded."""

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def put(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def add_rows(self, statuses: Mapping[str, int]) -> None:
        """Count rows by their status."""


class Executor(Protocol):
    """Runs passes, and small tasks over files. Results do not depend on the executor."""

    stall_s: float | None
    """Seconds without progress after which a phase restarts; None = never."""

    def run(self, steps: "Pass", ordinals: list[int], parts_uri: str) -> Iterator[list[dict[str, Any]]]:
        """Run the pass over these shards; yield the metadata of each part once it is written."""

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return a handle of ``function(*args)``; ``options`` are Ray's task options."""

    def wait(self, handles: Sequence[Any], count: int, timeout_s: float | None = None) -> list[Any]:
        """Return up to ``count`` finished handles; fewer only after the timeout."""

    def get(self, handle: Any) -> Any:
        """Return the function's result, or raise its exception."""

    def stop(self, handles: Sequence[Any]) -> None:
        """Terminate these tasks; return once none of them runs."""

    def put(self, value: Any) -> Any:
        """Return a shared reference to a value that several tasks take as an argument."""

    def count(self, resource: str) -> float:
        """Return the current amount of a resource, "CPU" or "GPU"."""

    def merge_options(self) -> dict[str, Any]:
        """Return the options of light tasks that need not wait for a CPU."""

    def watch_growth(self) -> AbstractContextManager[Any]:
        """Return a context that records the number of scorers and CPUs over time on an elastic cluster."""

    def open_meter(self, phase: str) -> Silent:
        """Return the metrics of a phase."""


_used: list[Executor] = []


@contextmanager
def use(executor: Executor) -> Iterator[None]:
    """Use this executor for the work of the block."""
    _used.append(executor)
    try:
        yield
    finally:
        _used.remove(executor)


def current() -> Executor:
    """Return the executor of the run. Raises RuntimeError outside of ``connect``."""
    if not _used:
        raise RuntimeError("no executor: work is done within raycomp.run.local.connect")
    return _used[-1]


def find_current() -> Executor | None:
    """Return the executor of the run, None outside of ``connect``."""
    return _used[-1] if _used else None
