"""One thing that is done to every row: its name, what it does in words, and where it is done."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

# What is timed beside the stages: before them, behind them, and what scorers' GPUs computed within them.
READ, WRITE, DEVICE = "read", "write", "device"
Work = Callable[[pa.Table], pa.Table]
CPUS: Literal["cpus"] = "cpus"
SCORERS: Literal["scorers"] = "scorers"


class Clock(Protocol):
    """What a model computes on."""

    def take_busy_seconds(self) -> float | None:
        """Return the GPU's busy seconds since the last call, None on a CPU."""

    def is_broken(self) -> bool:
        """Whether a GPU is lost to this process."""


@runtime_checkable
class Scorer(Protocol):
    """A step with its model loaded, which tells how long the model's device computed."""

    device: Clock

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows with other columns."""


@dataclass(frozen=True)
class Stage:
    """A step from a table to a table of the same rows with other columns.

    ``work`` is the step itself on CPUs. On scorers it loads a model: called with
    ``num_threads`` (none = as torch would), it gives a ``Scorer``.
    """

    name: str
    says: str
    """What it does, for the report."""
    where: Literal["cpus", "scorers"]
    work: Callable[..., Any]
    in_threads: bool = False
    """Whether several threads of one process may do it at a time."""

    def start(self, num_threads: int | None = None) -> Any:
        """Return the step, with its model loaded."""
        return self.work if self.where == CPUS else self.work(num_threads=num_threads)
