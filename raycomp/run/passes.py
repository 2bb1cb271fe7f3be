"""One pass over shards: read, stages on CPUs, a stage on scorers, parts; every stage timed the same way.

The executor of the run does the work (``local.py``, ``ray_passes.py``). Scores do not depend on how rows are
cut into blocks.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from raycomp.data.arrow import SECONDS
from raycomp.run.executor import Session, current
from raycomp.run.growth import There
from raycomp.run.parts import Part
from raycomp.run.progress import GPUS, WorkerPool
from raycomp.run.stage import CPUS, DEVICE, READ, SCORERS, WRITE, Stage, Work

# In those of a task. A reader mostly waits for its storage. With the next stage's resources, Ray Data would
# fuse the two.
CPUS_PER_READER = 0.5


@dataclass(frozen=True)
class Pass:
    """The steps for the rows of every item, from storage to parts, and the number of workers."""

    session: Session
    items: Mapping[int, Any]
    """The inputs, by shard number."""
    read: Callable[[Any], Iterator[pa.Table]]
    """Yields an item's rows, the same tables each time it is called."""
    stages: tuple[Stage, ...]
    part: Part
    """Which columns of the rows are written, counted and sampled."""
    rows: int
    """Rows that a stage on CPUs takes at a time."""
    scorer_rows: int = 0
    """Rows that a scorer takes at a time."""
    is_cut: bool = True
    """Whether an item's rows may be distributed over several workers."""

    def __post_init__(self) -> None:
        # The second's actors would wait forever for GPUs that the first's hold until the pass ends.
        num_scored = sum(stage.where == SCORERS for stage in self.stages)
        assert num_scored <= 1, f"{num_scored} stages on scorers: a pass has one at most"

    def run(self, ordinals: list[int], parts_uri: str) -> Iterator[list[dict[str, Any]]]:
        """Run the pass over these shards; yield the metadata of their parts as they are written."""
        return current().run(self, ordinals, parts_uri)

    @property
    def worker_pools(self) -> dict[str, WorkerPool]:
        """The maximum worker pool of each stage, in order: scorers, or the CPU slots that they leave."""
        free, scorers = self.free_cpus, self.session.num_scorers
        readers = min(int(free / CPUS_PER_READER), len(self.items))
        places = {READ: WorkerPool("takes rows from storage", readers, CPUS)}
        for stage in self.stages:
            most = scorers if stage.where == SCORERS else free if self.is_cut else min(free, len(self.items))
            places[stage.name] = WorkerPool(stage.says, most, stage.where)
        if self._scores and self.session.device == "gpu":
            places[DEVICE] = WorkerPool("computes on GPUs", scorers, GPUS)
        return {**places, WRITE: WorkerPool("stores results, merged by shard", free, CPUS)}

    @property
    def most(self) -> There | None:
        """Maximum number of scorers and CPUs, on an elastic cluster."""
        session = self.session
        is_elastic = self._scores and session.is_elastic
        return There(0.0, session.num_scorers, session.num_cpus) if is_elastic else None

    @property
    def _scores(self) -> bool:
        return any(stage.where == SCORERS for stage in self.stages)

    @property
    def free_cpus(self) -> int:
        """Tasks that fit at a time on the CPUs that scorers leave."""
        taken = self.session.num_scorers * self.session.scorer_resources.get("num_cpus", 1)
        left = self.session.num_cpus - (taken if self._scores else 0)
        return max(1, int(left / self.session.cpus_per_task))


def read_timed(read: Callable[[Any], Iterator[pa.Table]], items: Sequence[Any]) -> Iterator[pa.Table]:
    """Yield the tables of ``read(item)`` of each item, each with the seconds that reading it took."""
    tables = chain.from_iterable(map(read, items))
    while True:
        started = time.perf_counter()
        table = next(tables, None)
        if table is None:
            return
        yield add_seconds(table, READ, time.perf_counter() - started)


def run_timed(name: str, work: Work, table: pa.Table) -> pa.Table:
    """Return the result of a stage on the rows, with the seconds that it took."""
    started = time.perf_counter()
    table = work(table)
    return add_seconds(table, name, time.perf_counter() - started)


def add_seconds(table: pa.Table, name: str, seconds: float) -> pa.Table:
    """Add a stage's seconds as a column, divided evenly over the rows, so that sums stay correct."""
    return table.append_column(SECONDS + name, pa.repeat(seconds / max(1, len(table)), len(table)))
