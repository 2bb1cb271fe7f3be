"""A pass over shards: read, stages on CPUs, a stage on scorers, parts; every stage timed the same way.

The executor of the run does the work (``local.py``, ``ray_executor.py``). Scores do not depend on how rows
are cut into blocks.
"""

import json
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.data.parquet import SECONDS, read_columns, write_table
from raycomp.data.paths import join_uri
from raycomp.run.executor import CPUS, DEVICE, GPU_KIND, READ, SCORERS, WRITE, Session, Stage, Work, current
from raycomp.run.progress import GPUS, There, WorkerPool
from raycomp.words import IS_LAST, POSITION, SHARD_ORDINAL, STATUS

_SAMPLED_PER_PART = 32
_SAMPLED_AT_MOST = 4096
_READ_AT_ONCE = 8
_PART_METADATA = pa.schema(
    [
        (SHARD_ORDINAL, pa.int32()),
        ("file", pa.string()),
        ("rows", pa.int32()),
        ("total", pa.int32()),
        ("stats", pa.string()),
    ]
)


class Stalled(TimeoutError):
    """A phase without progress for ``cluster.stall_s``."""


@dataclass
class Stats:
    """Statistics of a phase: mergeable, bounded, stored in run.json and the report, in no result."""

    seconds: Any = field(default_factory=Counter)
    """Stage -> busy seconds, summed over its workers."""
    offered: Counter = field(default_factory=Counter)
    """Stage -> available seconds: number of workers times wall time, summed over restarts."""
    wall_s: float = 0.0
    commit_s: float = 0.0
    """The part of the wall time that was spent on writing manifests."""
    worker_pools: dict[str, WorkerPool] = field(default_factory=dict)
    """The worker pool of every stage, in the order of the work; after a restart, the last attempt's."""
    growth: list[There] = field(default_factory=list)
    """Scorers and CPUs over the wall time on an elastic cluster; one step per change."""
    counts: dict[str, Counter] = field(default_factory=dict)
    """Column -> value -> number of rows, or of values in lists; every row's status is counted."""
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Column -> values of a bounded sample of rows, the same rows in every column."""

    @property
    def statuses(self) -> Counter:
        """Status -> rows."""
        return self.counts.get(STATUS, Counter())

    def add(self, other: dict[str, Any]) -> None:
        """Add another's ``to_dict``, which may have passed through json."""
        self.seconds.update(other["seconds"])
        self.offered.update(other["offered"])
        for since, *there in other["growth"]:
            if not self.growth or [*self.growth[-1][1:]] != there:
                self.growth.append(There(since + self.wall_s, *there))
        self.wall_s += other["wall_s"]
        self.commit_s += other["commit_s"]
        self.worker_pools |= {stage: WorkerPool(*place) for stage, place in other["crew"].items()}
        for column, counted in other["counts"].items():
            self.counts.setdefault(column, Counter()).update(counted)
        for column, sampled in other["samples"].items():
            values = self.samples.setdefault(column, [])
            values += sampled[: _SAMPLED_AT_MOST - len(values)]

    def to_dict(self) -> dict[str, Any]:
        """Return json-compatible values; the key of the worker pools is ``crew``."""
        return {"crew" if name == "worker_pools" else name: value for name, value in vars(self).items()}

    def busy_shares(self) -> dict[str, float]:
        """Return the busy share of each stage, 0 to 1: busy time over its workers' available time.

        Merging holds no CPU slot, so writing may exceed its workers' time: the share is capped at 1.
        """
        return {
            stage: min(1.0, seconds / self.offered[stage]) if self.offered[stage] else 0.0
            for stage, seconds in self.seconds.items()
        }


@dataclass(frozen=True)
class Part:
    """What a pass writes of its rows, counts and samples."""

    schema: pa.Schema
    """The columns that are written."""
    counted: tuple[str, ...] = ()
    """Columns of texts, or of lists of texts, whose values are counted in addition to the status."""
    sampled: tuple[str, ...] = ()
    """Numeric columns that are sampled, from rows that have all of them."""


def name_parts(ordinal: int) -> str:
    """Return the folder of a shard's parts, which is removed as a whole."""
    return f"{ordinal:05d}"


def stage_part(table: pa.Table, parts_uri: str, part: Part) -> pa.Table:
    """Write the rows of each shard in ``table`` as a part; return the metadata of each part."""
    all_metadata = []
    for ordinal in pc.unique(table[SHARD_ORDINAL]).to_pylist():
        started = time.perf_counter()
        rows = table.filter(pc.equal(table[SHARD_ORDINAL], ordinal))
        positions = rows[POSITION].to_pylist()
        # The same rows get the same name, so a repeated task overwrites its first attempt.
        digest = zlib.crc32(repr(positions).encode())
        name = f"{name_parts(ordinal)}/{digest:08x}-{len(positions)}.parquet"
        write_table(rows.select(part.schema.names), join_uri(parts_uri, name), part.schema)
        stats = _measure(rows, part)
        stats.seconds[WRITE] = time.perf_counter() - started
        # The number of rows of the shard, if its last row is here.
        total = None
        if IS_LAST in rows.column_names and len(last := rows[POSITION].filter(rows[IS_LAST])):
            total = last[0].as_py() + 1
        all_metadata.append((ordinal, name, len(rows), total, json.dumps(stats.to_dict())))
    columns = list(zip(*all_metadata, strict=True)) or [()] * len(_PART_METADATA)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, _PART_METADATA, strict=True)], schema=_PART_METADATA
    )


def _measure(rows: pa.Table, part: Part) -> Stats:
    stats = Stats()
    for name in rows.column_names:
        if name.startswith(SECONDS):
            stats.seconds[name.removeprefix(SECONDS)] += pc.sum(rows[name]).as_py() or 0.0
    kinds = [GPU_KIND] if GPU_KIND in rows.column_names else []
    for name in (STATUS, *part.counted, *kinds):
        values = rows[name] if pa.types.is_string(rows[name].type) else pc.list_flatten(rows[name])
        stats.counts[name] = Counter(values.to_pylist())
    if part.sampled:
        sample = rows.select(part.sampled).drop_null().slice(0, _SAMPLED_PER_PART)
        stats.samples = sample.to_pydict()
    return stats


def read_parts(parts_uri: str, names: Iterable[str]) -> pa.Table | None:
    """Return the rows of staged parts in the order of their positions; None where there is no part.

    Raises RuntimeError if a position occurs twice: overlapping parts of a shard are never merged.
    """
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        tables = list(pool.map(lambda name: read_columns(join_uri(parts_uri, name)), names))
    if not tables:
        return None
    table = pa.concat_tables(tables)
    positions = table[POSITION].to_numpy()
    order = positions.argsort(kind="stable")
    if len(set(positions.tolist())) < len(positions):
        raise RuntimeError(f"{parts_uri}: parts {sorted(names)} overlap")
    return table.take(pa.array(order))


def merge_parts(ordinal: int, parts_uri: str, names: list[str], target_uri: str, schema: pa.Schema) -> int:
    """Write an item's rows in the order of their positions; return their number."""
    table = read_parts(parts_uri, names)
    assert table is not None, "every item has a part"
    write_table(table, join_uri(target_uri, f"{ordinal:05d}.parquet"), schema)
    return len(table)


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
