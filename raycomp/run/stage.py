"""One step on every row: its name, its description, and where it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

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
