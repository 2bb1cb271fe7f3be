"""What a pass consists of, its session, who runs it, ``current()``, and which executor ``connect``
chooses.

Scores do not depend on how rows are cut into blocks. Every stage is timed the same way.
"""

import json
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import ClusterConfig
from raycomp.data.files import Folder, is_dry_run, join_uri
from raycomp.data.parquet import SECONDS, let_pandas_in, read_columns, write_table
from raycomp.words import IS_LAST, POSITION, SHARD_ORDINAL, STATUS

# Timed in addition to the stages: the work before and after them, and the time of scorers' GPUs within them.
READ, WRITE, DEVICE = "read", "write", "device"
GPU_KIND = "gpu_kind"
"""The column of the kind of GPU that computed a row, where there may be several: counted, not stored."""
RESIZED_BY = "resized_by"
"""The column of what resized a row's picture, as its block ended: counted, not stored."""
Work = Callable[[pa.Table], pa.Table]
CPUS: Literal["cpus"] = "cpus"
SCORERS: Literal["scorers"] = "scorers"
GPUS = "gpus"
"""A scorer's model time: not a stage's worker pool; its time is a part of the scorers' time."""
_SAMPLED_PER_PART = 32
_SAMPLED_AT_MOST = 4096
_READ_AT_ONCE = 8
ABOUT = b"part"
"""The key of a part's metadata in its file."""
_TYPES = {SHARD_ORDINAL: pa.int32(), "file": pa.string(), "rows": pa.int32()}
_PART_METADATA = pa.schema(_TYPES | {"total": pa.int32(), "stats": pa.string()})


class WorkerPool(NamedTuple):
    """The workers of a stage."""

    says: str
    """The stage's work, in words."""
    workers: int
    """Maximum number of workers."""
    where: str
    """cpus, scorers or gpus: stages with the same value share its workers."""


class There(NamedTuple):
    """The number of both from a given second on."""

    since_s: float
    scorers: int
    cpus: int


@runtime_checkable
class Scorer(Protocol):
    """A step with its model loaded: called with rows, it returns them with other columns."""

    device: Any
    """Of the model: its ``take_busy_seconds()`` returns the GPU's busy seconds since the last call, None on a
    CPU; ``is_broken()`` whether this process has lost its GPU."""

    def __call__(self, table: pa.Table) -> pa.Table: ...


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
    """Write the rows of each shard in ``table`` as a part; return the metadata of each part.

    The file holds its metadata as well, and appears whole: that it is there says that these rows are done.
    """
    all_metadata = []
    for ordinal in pc.unique(table[SHARD_ORDINAL]).to_pylist():
        started = time.perf_counter()
        rows = table.filter(pc.equal(table[SHARD_ORDINAL], ordinal))
        positions = rows[POSITION].to_pylist()
        # The number of rows of the shard, if its last row is here.
        total = None
        if IS_LAST in rows.column_names and len(last := rows[POSITION].filter(rows[IS_LAST])):
            total = last[0].as_py() + 1
        stats = _measure(rows, part)
        # The same rows get the same name, so a repeated task overwrites its first attempt.
        name = f"{name_parts(ordinal)}/{digest_positions(positions)}-{len(positions)}.parquet"
        metadata = {SHARD_ORDINAL: ordinal, "file": name, "rows": len(rows), "total": total}
        about = {ABOUT: json.dumps(metadata | {"stats": json.dumps(stats.to_dict())})}
        write_table(rows.select(part.schema.names), join_uri(parts_uri, name), part.schema, about)
        stats.seconds[WRITE] = time.perf_counter() - started
        all_metadata.append(metadata | {"stats": json.dumps(stats.to_dict())})
    return pa.Table.from_pylist(all_metadata, _PART_METADATA)


def digest_positions(positions: list[int]) -> str:
    """Return the digest of the rows of a part, in its name."""
    return f"{zlib.crc32(repr(positions).encode()):08x}"


def _measure(rows: pa.Table, part: Part) -> Stats:
    stats = Stats()
    for name in rows.column_names:
        if name.startswith(SECONDS):
            stats.seconds[name.removeprefix(SECONDS)] += pc.sum(rows[name]).as_py() or 0.0
    kinds = [name for name in (GPU_KIND, RESIZED_BY) if name in rows.column_names]
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

    def run(
        self, ordinals: list[int], parts_uri: str, done: Mapping[int, np.ndarray] | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """Run the pass over these shards; yield the metadata of their parts as they are written.

        ``done`` has the positions of rows, by shard, that earlier parts hold: these are left out.
        """
        steps = self
        if done:
            items = {ordinal: (self.items[ordinal], done.get(ordinal)) for ordinal in ordinals}
            steps = replace(self, items=items, read=partial(_read_rest, self.read))
        return current().run(steps, ordinals, parts_uri)

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


def _read_rest(
    read: Callable[[Any], Iterator[pa.Table]], item: tuple[Any, np.ndarray | None]
) -> Iterator[pa.Table]:
    """Yield the tables of an item without the rows at the positions that come with it."""
    of, done = item
    for table in read(of):
        if done is not None:
            table = table.filter(pa.array(~np.isin(table[POSITION].to_numpy(), done)))
        if done is None or len(table):
            yield table


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


class Silent:
    """The metrics of one phase; without a cluster that collects them all values are discarded."""

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def put(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class Executor(Protocol):
    """Runs passes, and small tasks over files. Results do not depend on the executor."""

    stall_s: float | None = None
    """Seconds without progress after which a phase restarts; None = never."""

    def run(self, steps: Pass, ordinals: list[int], parts_uri: str) -> Iterator[list[dict[str, Any]]]:
        """Run the pass over these shards; yield the metadata of each part once it is written."""

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return a handle of ``function(*args)``; ``options`` are Ray's task options."""

    def wait(self, handles: Sequence[Any], count: int, timeout_s: float | None = None) -> list[Any]:
        """Return up to ``count`` finished handles; fewer only after the timeout."""

    def get(self, handle: Any) -> Any:
        """Return the function's result, or raise its exception."""

    def count(self, resource: str) -> float:
        """Return the current amount of a resource, "CPU" or "GPU"."""

    def stop(self, handles: Sequence[Any]) -> None:
        """Terminate these tasks; return once none of them runs."""
        return

    def put(self, value: Any) -> Any:
        """Return a shared reference to a value that several tasks take as an argument."""
        return value

    def merge_options(self) -> dict[str, Any]:
        """Return the options of light tasks that need not wait for a CPU."""
        return {}

    def watch_growth(self) -> AbstractContextManager[Any]:
        """Return a context that records the number of scorers and CPUs over time on an elastic cluster."""
        return nullcontext()

    def open_meter(self, phase: str) -> Silent:
        """Return the metrics of a phase."""
        return Silent()


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
        raise RuntimeError("no executor: work is done within raycomp.run.executor.connect")
    return _used[-1]


def find_current() -> Executor | None:
    """Return the executor of the run, None outside of ``connect``."""
    return _used[-1] if _used else None


# Ray takes half a minute to start, and prepares a model's input in more than one process. This is an estimate
# of the size at which that pays.
MOST_LOCAL_BYTES = 2_000_000_000
# Number of trainings that one process runs in sequence before Ray is started for them.
MOST_ONE_BY_ONE = 4
_DRIVER = "/dev/nvidiactl"


@contextmanager
def connect(
    config: ClusterConfig,
    out: Folder | None = None,
    check: Callable[[], None] = lambda: None,
    needed: int | None = None,
    scores: bool = True,
    dashboard: bool = False,
    say: Callable[[str], None] = lambda line: None,
    num_bytes: Callable[[], int] = lambda: 0,
    better: str | None = None,
    ray_for: str | None = None,
    gpus_per_scorer: float = 1.0,
) -> Iterator[Session]:
    """Give the block an executor by ``cluster.executor``; report which one and why.

    ``auto`` is this process where no cluster is named or connected, no GPU is there, one scorer is enough and
    the input, ``num_bytes()``, is small; else Ray. ``better`` is a reason for ``auto`` to use Ray anyway,
    ``ray_for`` names what only Ray does. Raises ValueError where ``local`` is set for work of that kind.

    A dry run is always in this process.

    With Ray, join the cluster at ``config.address`` or RAY_ADDRESS, else start one here and stop it at the
    end. A connection that the caller already has is used and left open. Ray's warnings go to a file in the
    folder ``out``, unless ``check`` raises LeaseLost by then. A cluster that is started here has at least
    ``needed`` CPUs unless ``cluster.num_cpus`` is set; None = those that scoring needs. Only with ``scores``
    (scoring or training) GPUs are used; the call then waits for the first one, or for a share
    ``gpus_per_scorer`` of one. Trainings that may be stopped need the ``dashboard`` of a cluster started
    here, on localhost, and RAY_ADDRESS, which names that cluster: without them Ray Train never releases the
    resources of a stopped training. Raises ClusterFailed where Ray does not start or fails in the block.
    """
    from raycomp.run.local import Local
    from raycomp.run.progress import Progress  # these two import this file

    Progress.forget()
    is_local, why = choose_executor(config, num_bytes, better, ray_for)
    is_local = is_local or is_dry_run()
    if find_current() is None and not is_dry_run():
        say(f"executor: {'local, in this process' if is_local else 'ray'} ({why})")
    if is_local:
        cores, outer = config.num_cpus or len(os.sched_getaffinity(0)), find_current()
        is_same = isinstance(outer, Local) and outer.num_threads == cores
        with use(outer if is_same and outer else Local(cores)):
            yield Session(1, {}, cores, cores, 1, config.block_rows, is_local=True)
        return
    from raycomp.run import ray_session  # a second of imports

    let_pandas_in()  # Ray Data uses it
    with ray_session.connect(config, out, check, needed, scores, dashboard, gpus_per_scorer) as session:
        yield session


def choose_executor(
    config: ClusterConfig, num_bytes: Callable[[], int], better: str | None, ray_for: str | None
) -> tuple[bool, str]:
    """Return whether the work is done in this process, and why."""
    from raycomp.run.local import Local

    if config.executor == "ray":
        return False, "cluster.executor=ray"
    is_within = isinstance(find_current(), Local)  # the outer run has checked whether a cluster is named
    reason = ray_for or _find_need(config, is_within)
    if config.executor == "local":
        if reason:
            raise ValueError(f"cluster.executor=local: {reason}; set cluster.executor=ray")
        return True, "cluster.executor=local"
    if reason is None and is_within:
        return True, "same as the outer run"
    if reason or better:
        return False, reason or better or ""
    if is_connected():
        return False, "this process is connected to a cluster"
    if config.gpu is not False and os.path.exists(_DRIVER):
        return False, "this machine has a GPU"
    size, most = num_bytes() / 1e9, MOST_LOCAL_BYTES / 1e9
    if size > most:
        return False, f"the input has {size:,.1f} GB, more than {most:g}"
    return True, "no cluster named, no GPU found, small input; set cluster.executor=ray for Ray"


def _find_need(config: ClusterConfig, is_within: bool) -> str | None:
    """Return what names a cluster (not ``is_within`` another run), or needs more than one process on CPUs."""
    if not is_within:
        if config.address:
            return f"cluster.address={config.address!r} names a cluster"
        if config.labels:
            return f"cluster.labels={','.join(config.labels)!r} asks for nodes of a cluster"
        if named := os.environ.get("RAY_ADDRESS"):
            return f"RAY_ADDRESS={named!r} names a cluster"
    _, most = config.span or (1, 1)
    if most > 1:
        return f"cluster.scorers or train.workers={most} needs several processes"
    return "cluster.gpu=true asks for a GPU" if config.gpu else None


def is_connected() -> bool:
    """Whether this process is connected to a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def say_many(count: int) -> str | None:
    """Return why so many trainings run in parallel on Ray, one process each; None for few."""
    is_many = count > MOST_ONE_BY_ONE and len(os.sched_getaffinity(0)) > 1
    return f"{count} trainings run in parallel on Ray" if is_many else None
