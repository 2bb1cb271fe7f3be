"""Where the work of a run is done: in this process, or on Ray. A command asks for ``current()``."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from raycomp.run.passes import Pass


@dataclass(frozen=True)
class Session:
    """What there is to work with: this process, or a cluster with what its autoscaler may add."""

    num_scorers: int
    """At most."""
    scorer_resources: dict[str, Any]
    num_threads: int | None
    """Torch threads of a scorer on CPUs; none on GPUs."""
    num_cpus: int
    num_nodes: int
    block_rows: int
    least_scorers: int | None = None
    """Of a pool that grows and shrinks; none = as many as at most."""
    gpu: Mapping[str, Any] | None = None
    """What the GPU of every scorer is, as ``describe_gpu`` has it; none on CPUs."""
    is_local: bool = False
    """Whether all work is done in this process."""

    @property
    def is_elastic(self) -> bool:
        """Whether scorers come and go."""
        return self.least_scorers not in (None, self.num_scorers)

    @property
    def device(self) -> str:
        """What scorers run on, cpu or gpu; between the two the last bits of a score may differ."""
        return "cpu" if self.num_threads else "gpu"

    def count_cores(self) -> int:
        """Return how many processes of one thread run at full speed; a lone machine may count more CPUs."""
        return self.num_cpus if self.num_nodes > 1 else min(self.num_cpus, os.cpu_count() or 1)

    def count_first(self) -> int:
        """Return how many scorers a pass begins with: all that there are GPUs for now, or else the least."""
        least, most = self.least_scorers or self.num_scorers, self.num_scorers
        there = int(current().count("GPU")) if self.is_elastic and self.device == "gpu" else 0
        return min(most, max(least, there))

    def rows_per_call(self, rows: Mapping[str, int]) -> int:
        """Return how many rows a scorer takes at a time, of those for one thread ("cpu") or a GPU ("gpu")."""
        return rows[self.device] * (self.num_threads or 1)


class Meter(Protocol):
    """The metrics of one phase."""

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def put(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def add_rows(self, statuses: Mapping[str, int]) -> None:
        """Count rows by their status."""


class Executor(Protocol):
    """What runs passes, and small tasks over files. No result depends on which one does."""

    stall_s: float | None
    """Seconds without progress after which a phase starts again; none = never."""

    def run(self, steps: "Pass", ordinals: list[int], parts_uri: str) -> Iterator[list[dict[str, Any]]]:
        """Run the pass over these shards, and yield the metadata of the parts as they are written."""

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return a handle of ``function(*args)``; ``options`` are Ray's, of the task."""

    def wait(self, handles: Sequence[Any], count: int, timeout_s: float | None = None) -> list[Any]:
        """Return up to ``count`` handles that have ended; fewer only after the timeout."""

    def get(self, handle: Any) -> Any:
        """Return what the function returned; raise what it raised."""

    def stop(self, handles: Sequence[Any]) -> None:
        """End these, however long they would still run; return once none runs any more."""

    def put(self, value: Any) -> Any:
        """Return what several tasks take as one argument."""

    def count(self, resource: str) -> float:
        """Return how much there is now of a resource, "CPU" or "GPU"."""

    def merge_options(self) -> dict[str, Any]:
        """Return the options of tasks that are light and wait for no CPU."""

    def watch_growth(self) -> AbstractContextManager[Any]:
        """Return a context that counts scorers and CPUs over time, where they come and go."""

    def open_meter(self, phase: str) -> Meter:
        """Return the metrics of a phase."""


class Silent:
    """Metrics where no cluster collects them."""

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Drop it."""

    def put(self, name: str, value: float, **labels: str) -> None:
        """Drop it."""

    def add_rows(self, statuses: Any) -> None:
        """Drop them."""


_used: list[Executor] = []


@contextmanager
def use(executor: Executor) -> Iterator[None]:
    """Let the work of the block be done by this executor."""
    _used.append(executor)
    try:
        yield
    finally:
        _used.remove(executor)


def current() -> Executor:
    """Return the executor of the run. Raises RuntimeError outside of ``connect``."""
    if not _used:
        raise RuntimeError("no executor: work is done within raycomp.run.session.connect")
    return _used[-1]


def find_current() -> Executor | None:
    return _used[-1] if _used else None
