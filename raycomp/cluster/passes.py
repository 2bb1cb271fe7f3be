"""One pass over shards: read, stages on CPUs, stages on scorers, parts; every stage timed the same way.

Reading and the stage after it are apart: Ray Data fuses two steps on CPUs that ask for the same resources,
and a large shard would be decoded by the one task that reads it. What is read comes in more pieces where
there are fewer shards than workers. No score depends on how rows are cut into blocks.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import pyarrow as pa
import ray
from ray._private.state import actors
from ray.data import ActorPoolStrategy, Dataset

from raycomp.cluster.gpus import check_gpu
from raycomp.cluster.growth import There
from raycomp.cluster.parts import Part, stage_part
from raycomp.cluster.progress import GPUS, Place
from raycomp.cluster.session import Session
from raycomp.cluster.source import ItemSource
from raycomp.config import ClusterFailed
from raycomp.loops.stage import CPUS, DEVICE, READ, SCORERS, WRITE, Scorer, Stage, Work
from raycomp.loops.tables import SECONDS
from raycomp.models.faults import one_line

# A reader mostly waits for its storage. Asking for as much as the next stage, it would be fused with it.
_CPUS_PER_READER = 0.5
# Of the 32 MiB that Ray Data cuts what is read into: small enough for every worker to have some of it, large
# enough to be worth a task.
_PIECES_PER_WORKER = 2
_PIECES_AT_MOST = 16
# The driver holds 5 kB of each read task, and takes a millisecond to lay it, before the first row is there.
_READ_TASKS_AT_MOST = 20_000
# Calls that a scorer is handed at a time, two of which run: the pool grows only where there are at least 1.75
# for each that runs.
_CALLS_AHEAD = 4
# How often a scorer is started again, its GPU broken or its node lost, before a broken GPU ends the run.
_RESTARTS = 5


@dataclass(frozen=True)
class Pass:
    """What happens to the rows of every item between its storage and its parts, and on how many workers."""

    session: Session
    items: Mapping[int, Any]
    """What is read, by number of its shard."""
    read: Callable[[Any], Iterator[pa.Table]]
    """Yields an item's rows, the same tables each time it is called."""
    stages: tuple[Stage, ...]
    part: Part
    """What is written of the rows, and what is told of them."""
    rows: int
    """Rows that a stage on CPUs takes at a time."""
    scorer_rows: int = 0
    """Rows that a scorer takes at a time."""
    is_cut: bool = True
    """Whether an item's rows may be shared out to several workers."""

    def __post_init__(self) -> None:
        # The second's actors would wait for ever for GPUs that the first's hold until the pass ends.
        num_scored = sum(stage.where == SCORERS for stage in self.stages)
        assert num_scored <= 1, f"{num_scored} stages on scorers: a pass has one at most"

    def lay(self, ordinals: list[int], parts_uri: str) -> Dataset:
        """Return the dataset of the receipts of these shards' parts."""
        each = -(-len(ordinals) // _READ_TASKS_AT_MOST)
        items = [self.items[ordinal] for ordinal in ordinals]
        shares = [items[start : start + each] for start in range(0, len(items), each)]
        source = ItemSource(shares, partial(_read_timed, self.read))
        wanted = _PIECES_PER_WORKER * self._free_cpus if self.is_cut else 0
        pieces = min(max(len(shares), wanted), _PIECES_AT_MOST * len(shares))
        dataset = ray.data.read_datasource(source, override_num_blocks=pieces, num_cpus=_CPUS_PER_READER)
        for stage in self.stages:
            on_cpus = stage.where == CPUS
            dataset = self._on_cpus(dataset, stage) if on_cpus else self._on_scorers(dataset, stage)
        write = partial(stage_part, parts_uri=parts_uri, part=self.part)
        return dataset.map_batches(write, batch_size=None, batch_format="pyarrow", num_cpus=1)

    def _on_cpus(self, dataset: Dataset, stage: Stage) -> Dataset:
        run = _in_slices(stage, self.rows)
        return dataset.map_batches(run, batch_size=None, batch_format="pyarrow", num_cpus=1)

    def _on_scorers(self, dataset: Dataset, stage: Stage) -> Dataset:
        """Lay a stage over a pool of scorers; while one call computes, the next is put together."""
        session = self.session
        pool = ActorPoolStrategy(
            min_size=session.least_scorers or session.num_scorers,
            max_size=session.num_scorers,
            initial_size=session.count_first(),
            max_tasks_in_flight_per_actor=_CALLS_AHEAD,
            max_concurrent_calls_per_actor=2,
        )
        return dataset.map_batches(
            type(stage.name, (_Scorer,), {}),
            fn_constructor_args=(stage, session.num_threads, session.gpu),
            batch_size=self.scorer_rows,
            batch_format="pyarrow",
            compute=pool,
            **session.scorer_resources,
        )

    @property
    def crew(self) -> dict[str, Place]:
        """Who works at most on what, in the order of the work: scorers, or slots of the CPUs they leave."""
        free, scorers = self._free_cpus, self.session.num_scorers
        readers = min(int(free / _CPUS_PER_READER), len(self.items))
        places = {READ: Place("takes rows from storage", readers, CPUS)}
        for stage in self.stages:
            most = scorers if stage.where == SCORERS else free if self.is_cut else min(free, len(self.items))
            places[stage.name] = Place(stage.says, most, stage.where)
        if self._scores and self.session.device == "gpu":
            places[DEVICE] = Place("computes on GPUs", scorers, GPUS)
        return {**places, WRITE: Place("stores results, merged by shard", free, CPUS)}

    @property
    def most(self) -> There | None:
        """Scorers and CPUs at most, where they come and go."""
        session = self.session
        is_elastic = self._scores and session.is_elastic
        return There(0.0, session.num_scorers, session.num_cpus) if is_elastic else None

    @property
    def _scores(self) -> bool:
        return any(stage.where == SCORERS for stage in self.stages)

    @property
    def _free_cpus(self) -> int:
        """Slots of CPUs that scorers leave."""
        taken = self.session.num_scorers * self.session.scorer_resources.get("num_cpus", 1)
        return max(1, int(self.session.num_cpus - (taken if self._scores else 0)))


def _read_timed(read: Callable[[Any], Iterator[pa.Table]], items: Sequence[Any]) -> Iterator[pa.Table]:
    """Yield the tables of ``read(item)`` of each item, each with the seconds that reading it took."""
    tables = chain.from_iterable(map(read, items))
    while True:
        started = time.perf_counter()
        table = next(tables, None)
        if table is None:
            return
        yield _add_seconds(table, READ, time.perf_counter() - started)


def _in_slices(stage: Stage, rows: int) -> Callable[[pa.Table], Iterator[pa.Table]]:
    """Return a stage on CPUs as Ray Data calls it, a few rows at a time; its tasks bear the stage's name."""

    def run(table: pa.Table) -> Iterator[pa.Table]:
        for start in range(0, len(table), rows):
            yield _run_timed(stage.name, stage.work, table.slice(start, rows))

    run.__name__ = stage.name
    return run


class _Scorer:
    """One actor: loads its model once. On a GPU, so without ``num_threads``, that is timed, too.

    ``gpu`` is what the GPU must be; none = it is not asked for.
    """

    def __init__(self, stage: Stage, num_threads: int | None, gpu: Mapping[str, Any] | None = None):
        if gpu is not None:
            check_gpu(gpu)
        self.name = stage.name
        self.is_on_gpu = num_threads is None
        self.work = stage.begin(num_threads)
        assert isinstance(self.work, Scorer), f"{stage.name}: tells no device"

    def __call__(self, table: pa.Table) -> pa.Table:
        try:
            table = _run_timed(self.name, self.work, table)
        except Exception as error:
            if self.work.device.is_broken():
                _start_again(error)
            raise
        seconds = self.work.device.take_busy_seconds() if self.is_on_gpu else None
        return table if seconds is None else _add_seconds(table, DEVICE, seconds)


def _start_again(error: Exception) -> NoReturn:
    """End this process, which can compute on its GPU no more: Ray starts the actor again, with its rows.

    Raises ClusterFailed where that was done often enough.
    """
    restarts = actors(ray.get_runtime_context().get_actor_id())["NumRestarts"]
    if restarts >= _RESTARTS:
        node = ray.util.get_node_ip_address()
        said = f"a scorer was started again {restarts} times, and its GPU on node {node} broke once more"
        raise ClusterFailed(
            f"{said} ({one_line(error)}); take the node out, the same command goes on"
        ) from error
    print(f"The GPU is lost to this process, which ends: {one_line(error)}", file=sys.stderr, flush=True)
    os._exit(1)


def _run_timed(name: str, work: Work, table: pa.Table) -> pa.Table:
    started = time.perf_counter()
    table = work(table)
    return _add_seconds(table, name, time.perf_counter() - started)


def _add_seconds(table: pa.Table, name: str, seconds: float) -> pa.Table:
    """Add the seconds a stage took as a column, shared evenly by the rows, so that sums stay true."""
    return table.append_column(SECONDS + name, pa.repeat(seconds / max(1, len(table)), len(table)))
