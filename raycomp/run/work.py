"""Work on many shards: parts, merged into one file per shard, committed in waves; tasks over many files.

Part: a file of some rows of one shard, which a pass wrote.
Pass: the way of rows from storage through stages into parts, once.
Phase: a pass with a name, whose parts are merged into one file per shard.
Wave: the shards of a phase that one manifest commits.

A phase is one streaming pass, so scorers live across waves. The executor of the run does the work
(``local.py``, ``ray_executor.py``): scores do not depend on how rows are cut into blocks. Blocks end in
``stage_part``, which writes the rows of each shard to a part and sends the part's metadata to the driver.
When a shard's rows are complete its parts are merged, in the order of positions, into one deterministic file.
Merged shards are committed by time or number (``waves.commit_s``, ``waves.shards_per_wave``) by a manifest
that is written last; then their parts are removed.

A restart skips the shards in manifests. Of other shards it keeps the parts that are there, each of them
whole, and computes the rows that are in none. A stalled phase is restarted so within the same run.

Each manifest records the wall time since the commit before it (or since the phase started), so walls add up
over restarts. The wall time of an interrupted attempt after its last commit is recorded nowhere, nor are the
busy seconds of its parts, even those that are kept. The attempt's work on shards that were not committed by
then is in its wall time but not in its busy seconds. A busy share after a restart may therefore be too low,
never too high.
"""

import json
import posixpath
import re
import sys
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import ClusterFailed, UserError, WavesConfig
from raycomp.data.files import Folder, Written, call_watched, join_uri, note_written, watched_places
from raycomp.data.parquet import SECONDS, read_columns, write_table
from raycomp.run.executor import CPUS, DEVICE, GPU_KIND, READ, SCORERS, WRITE, Session, Stage, Work, current
from raycomp.run.progress import GPUS, Growth, Progress, There, WorkerPool, average, log_event
from raycomp.words import IS_LAST, POSITION, SHARD_ORDINAL, STATUS

_SAMPLED_PER_PART = 32
_SAMPLED_AT_MOST = 4096
_READ_AT_ONCE = 8
_PART_NAME = re.compile(r"(\d{5,})/([0-9a-f]{8})-\d+\.parquet")
_ABOUT = b"part"
"""The key of a part's metadata in its file."""
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
        name = f"{name_parts(ordinal)}/{_digest(positions)}-{len(positions)}.parquet"
        metadata = {SHARD_ORDINAL: ordinal, "file": name, "rows": len(rows), "total": total}
        about = {_ABOUT: json.dumps(metadata | {"stats": json.dumps(stats.to_dict())})}
        write_table(rows.select(part.schema.names), join_uri(parts_uri, name), part.schema, about)
        stats.seconds[WRITE] = time.perf_counter() - started
        all_metadata.append(metadata | {"stats": json.dumps(stats.to_dict())})
    return pa.Table.from_pylist(all_metadata, _PART_METADATA)


def _digest(positions: list[int]) -> str:
    return f"{zlib.crc32(repr(positions).encode()):08x}"


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


Item = TypeVar("Item")
Result = TypeVar("Result")
# Minimum number of waiting tasks, which an autoscaler sees; on a large cluster twice the number of its CPUs.
_LEAST_WAITING = 32
_WAITING_PER_CPU = 2
# Files of one task, and how many of them it reads at a time: a request to a store takes 30 ms of waiting.
_FILES_PER_TASK = 16
_FILES_AT_ONCE = 8
_TASKS_PER_CPU = 4
# Merges run during a phase, as many as the cluster has CPUs; each may need a new process.
_LEAST_MERGES = 4
_POLL_EVERY_S = 0.1
# Manifests, parts and folders of parts that are requested at a time.
_AT_ONCE = 16
# Number of consecutive stalls of a phase without a commit in between.
_MOST_STALLS = 3


@dataclass
class Phase:
    """A named pass over shards whose results are one file per shard."""

    name: str
    work: Folder
    waves: WavesConfig
    steps: Pass
    merge: Callable[..., int]
    """``merge(ordinal, parts_uri, part_names, *merge_args)``: writes the shard's file, returns its rows."""
    merge_args: tuple
    check: Callable[[], None] = lambda: None
    """Called before every commit; raises where this run may not commit."""

    @property
    def above(self) -> str:
        """The common prefix of the uris of a run's results."""
        return posixpath.dirname(self.work.uri) + "/"

    def run(self, totals: dict[int, int] | None = None) -> Stats:
        """Process all uncommitted shards; return the stats of the whole phase, committed waves included.

        ``totals`` gives the expected rows per shard where the caller knows them (else a shard's last row
        gives them).
        """
        num_stalls, num_before = 0, -1
        while True:
            stats, done = self._read_manifests()
            todo = [ordinal for ordinal in self.steps.items if ordinal not in done]
            if not todo:
                self.work.remove("parts", self.name)
                return stats
            try:
                stats.add(self._run_once(todo, totals).to_dict())
                self.work.remove("parts", self.name)
                return stats
            except Stalled as stall:
                num_stalls = num_stalls + 1 if len(done) == num_before else 1
                num_before = len(done)
                stood = f"{self.name}: {stall} for {current().stall_s:,.0f} s"
                if num_stalls > _MOST_STALLS:
                    raise ClusterFailed(
                        f"{stood}, {num_stalls} times without a commit in between; commits are kept, the "
                        f"same command resumes it"
                    ) from stall
                print(f"{stood}; restarted from its commits", file=sys.stderr, flush=True)
                log_event("stall", phase=self.name, stalls=num_stalls)

    def _run_once(self, todo: list[int], totals: dict[int, int] | None) -> Stats:
        """Process the shards ``todo``; return the stats of the committed work."""
        kept = _find_parts(self.work, self.name, set(todo))
        num_kept = sum(part.metadata["rows"] for part in kept)
        num_rows = sum(totals[ordinal] for ordinal in todo) - num_kept if totals else None
        watch = current().watch_growth() if self.steps.most else nullcontext()
        with (
            Progress(self.name, len(todo), self.steps.worker_pools, num_rows=num_rows) as progress,
            watch as growth,
        ):
            attempt = _Attempt(self, todo, totals, progress, growth)
            try:
                return attempt.consume(kept)
            except BaseException as error:
                num, committed = len(self.steps.items), len(self.steps.items) - len(attempt.todo)
                error.add_note(f"{self.name}: {committed:,} of {num:,} shards are committed")
                raise

    def _read_manifests(self) -> tuple[Stats, set[int]]:
        stats, done = Stats(), set()
        names = [name for name in self.work.list_names("waves") if name.startswith(f"{self.name}-")]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for manifest in pool.map(lambda name: self.work.read_json("waves", name), names):
                done.update(manifest["shards"])
                stats.add(manifest["stats"])
                written = manifest["written"].items()
                note_written(Written(self.above + name, *facts) for name, facts in written)
        return stats, done


class _KeptPart(NamedTuple):
    """A part that an earlier attempt wrote."""

    metadata: dict[str, Any]
    positions: np.ndarray


def _find_parts(work: Folder, name: str, todo: set[int]) -> list[_KeptPart]:
    """Return the whole parts of uncommitted shards, no two with the same row, in the order of their names.

    Parts of committed shards, whose removal was interrupted, are removed. A part of which a crash of the
    machine left a damaged file counts as not written.
    """
    parts = Folder(work.at("parts", name))
    found = [_PART_NAME.fullmatch(path) for path in parts.find_names()]
    for shard in {match[1] for match in found if match and int(match[1]) not in todo}:
        parts.remove(shard)

    def read(match: re.Match[str]) -> _KeptPart | None:
        try:
            table = read_columns(parts.at(match[0]), [POSITION])
        except UserError:
            return None
        positions = table[POSITION].to_numpy()
        metadata = json.loads((table.schema.metadata or {}).get(_ABOUT, b"{}"))
        is_whole = match[2] == _digest(positions.tolist()) and metadata.get("rows") == len(positions)
        return _KeptPart(metadata | {"file": match[0]}, positions) if is_whole else None

    kept: list[_KeptPart] = []
    taken: dict[int, set[int]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for part in pool.map(read, [match for match in found if match and int(match[1]) in todo]):
            rows = taken.setdefault(part.metadata[SHARD_ORDINAL], set()) if part else set()
            if part and rows.isdisjoint(own := part.positions.tolist()):
                rows.update(own)
                kept.append(part)
    return kept


class _Attempt:
    """The driver's view of a running phase: parts of each shard, merged shards, committed waves."""

    def __init__(
        self,
        phase: Phase,
        todo: list[int],
        totals: dict[int, int] | None,
        progress: Progress,
        growth: Growth | None,
    ):
        self.phase, self.parts_uri = phase, phase.work.at("parts", phase.name)
        self.todo = set(todo)
        """Shards that are not committed."""
        self.files: dict[int, list[str]] = {ordinal: [] for ordinal in todo}
        """The parts of each shard whose merge has not started."""
        self.merged: list[int] = []
        """Shards that are merged and not committed; the next two are of these."""
        self.merged_stats, self.written = Stats(), list[Written]()
        self.shard_stats: dict[int, Stats] = {}
        self.totals = dict(totals or {})
        self.rows: Counter = Counter()
        self.merging: dict[Any, int] = {}
        self.removing: list[Any] = []
        self.polled_at = 0.0
        self.stats = Stats()
        self.num_waves, self.commit_s = 0, 0.0
        self.committed_at = self.counted_until = time.monotonic()
        self.progress, self.growth = progress, growth
        # Merging is light and must not wait for CPUs that the phase itself holds.
        self.executor, self.light = current(), current().merge_options()
        self.places = watched_places()

    def consume(self, kept: list[_KeptPart]) -> Stats:
        """Take the parts that are there, then stream those that are not; merge and commit as shards complete.

        The busy seconds of kept parts were spent within no wall time that is recorded.
        """
        positions: dict[int, list[np.ndarray]] = {}
        for part in kept:
            self._take(part.metadata, is_kept=True)
            positions.setdefault(part.metadata[SHARD_ORDINAL], []).append(part.positions)
        for ordinal in list(self.files):
            self._merge_if_complete(ordinal)
        done = {ordinal: np.concatenate(positions[ordinal]) for ordinal in positions if ordinal in self.files}
        if pending := list(self.files):
            try:
                for all_metadata in self.phase.steps.run(pending, self.parts_uri, done):
                    for metadata in all_metadata:
                        self._take(metadata)
                    if time.monotonic() - self.polled_at > _POLL_EVERY_S:
                        self._collect(wait=False)
            except Stalled:
                self._finish_merges()  # complete shards need not be done again
                raise
        self._finish_merges()
        if self.todo:
            raise RuntimeError(
                f"{self.phase.name}: shards {sorted(self.todo)[:10]} ended short of their rows"
            )
        for removing in self.removing:
            self.executor.get(removing)
        self.stats.add(self._count_wall().to_dict())
        return self.stats

    def _take(self, metadata: dict[str, Any], is_kept: bool = False) -> None:
        ordinal = metadata[SHARD_ORDINAL]
        self.files[ordinal].append(metadata["file"])
        self.rows[ordinal] += metadata["rows"]
        if metadata["total"] is not None:
            self.totals[ordinal] = metadata["total"]
        stats = json.loads(metadata["stats"])
        if is_kept:
            stats["seconds"] = {}
        else:
            self.progress.add(metadata["rows"], stats["seconds"], stats["counts"].get(STATUS))
        self.shard_stats.setdefault(ordinal, Stats()).add(stats)
        if not is_kept:
            self._merge_if_complete(ordinal)

    def _merge_if_complete(self, ordinal: int) -> None:
        if self.rows[ordinal] == self.totals.get(ordinal):
            while (num := len(self.merging)) >= _LEAST_MERGES and num >= self.executor.count("CPU"):
                self._collect(wait=True)
            names = sorted(self.files.pop(ordinal))
            task = self.phase.merge, self.places, ordinal, self.parts_uri, names
            ref = self.executor.submit(_merge_timed, *task, *self.phase.merge_args, **self.light)
            self.merging[ref] = ordinal

    def _finish_merges(self) -> None:
        while self.merging:
            self._collect(wait=True)
        if self.merged:
            self._commit()

    def _collect(self, wait: bool) -> None:
        """Commit merged shards, many or after some time; with ``wait`` until a merge has ended."""
        self.polled_at = time.monotonic()
        if self.merging:
            refs = list(self.merging)
            stall_s = self.executor.stall_s if wait else 0
            done = self.executor.wait(refs, 1 if wait else len(refs), stall_s)
            if wait and not done:
                raise Stalled("no merge ended")
            for ref in done:
                seconds, written = self.executor.get(ref)
                ordinal = self.merging.pop(ref)
                stats = self.shard_stats.pop(ordinal, Stats())
                stats.seconds[WRITE] += seconds
                self.merged_stats.add(stats.to_dict())
                self.merged.append(ordinal)
                self.written += written
                self.progress.add(0, {WRITE: seconds})
                if kinds := stats.counts.get(GPU_KIND):
                    log_event("gpus", phase=self.phase.name, shard=ordinal, rows=dict(kinds))
                self.progress.finish_one()
                if len(self.merged) >= self.phase.waves.shards_per_wave:
                    self._commit()
        if self.merged and time.monotonic() - self.committed_at >= self.phase.waves.commit_s:
            self._commit()

    def _commit(self) -> None:
        """Write a wave's manifest. Its duration is recorded in the next manifest."""
        self.phase.check()
        shards, stats, written = sorted(self.merged), self.merged_stats, sorted(self.written)
        self.merged, self.merged_stats, self.written = [], Stats(), []
        stats.add(self._count_wall().to_dict())
        note_written(written)
        files = {file.uri.removeprefix(self.phase.above): file[1:] for file in written}
        manifest: dict[str, Any] = {"shards": shards, "written": files, "stats": stats.to_dict()}
        started = time.monotonic()
        self.phase.work.write_json(manifest, "waves", f"{self.phase.name}-{shards[0]:08d}.json")
        self.committed_at = time.monotonic()
        self.commit_s += self.committed_at - started
        self.stats.add(manifest["stats"])
        removing = self.executor.submit(_remove_parts, self.phase.work, self.phase.name, shards, **self.light)
        self.executor.wait([removing], 1, 0)  # on Ray it continues meanwhile, locally it is done now
        self.removing.append(removing)
        self.todo.difference_update(shards)
        self.num_waves += 1
        log_event(
            "wave",
            phase=self.phase.name,
            wave=self.num_waves,
            shards=len(shards),
            left=len(self.todo),
            wall_s=round(stats.wall_s, 3),
            statuses=dict(stats.statuses),
            busy_seconds={stage: round(value, 3) for stage, value in stats.seconds.items()},
        )
        self.progress.meter.add("raycomp_waves")

    def _count_wall(self) -> Stats:
        """Return the time since the last count: wall, available time of every stage, commits within it."""
        now = time.monotonic()
        wall_s, self.counted_until = now - self.counted_until, now
        commit_s, self.commit_s = self.commit_s, 0.0
        worker_pools, most = dict(self.phase.steps.worker_pools), self.phase.steps.most
        offered = Counter({stage: place.workers * wall_s for stage, place in worker_pools.items()})
        stats = Stats(offered=offered, wall_s=wall_s, commit_s=commit_s, worker_pools=worker_pools)
        if self.growth and most:
            stats.growth = self.growth.take()
            shares = average(stats.growth, wall_s, most)
            stats.offered = Counter(
                {stage: offered[stage] * shares[worker_pools[stage].where] for stage in worker_pools}
            )
        return stats


def _merge_timed(merge: Callable[..., int], places: Sequence[str], *args: Any) -> tuple[float, list[Written]]:
    """Run a merge; return its duration in seconds, and the results that it wrote."""
    started = time.perf_counter()
    _, written = call_watched(merge, places, *args)
    return time.perf_counter() - started, written


def _remove_parts(work: Folder, name: str, ordinals: list[int]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda ordinal: work.remove("parts", name, name_parts(ordinal)), ordinals))


def map_tasks(
    function: Callable[..., Result], items: Sequence[Item], *args: Any, label: str = "choose"
) -> Iterator[Result]:
    """Yield ``function(item, *args)`` of every item, run as Ray tasks, in the order of the items.

    The number of waiting results is bounded, so the driver's memory does not grow with the number of items.
    An early end also ends the running tasks: nothing is written after the run has ended.
    """
    with Progress(label, len(items), unit="file") as progress:
        for result in _run(function, items, args):
            progress.finish_one()
            yield result


def map_files(
    function: Callable[..., Result],
    items: Sequence[Item],
    *args: Any,
    label: str = "choose",
    fold: Callable[[list[Any]], list[Any]] = list,
) -> Iterator[Result]:
    """Like ``map_tasks``, for little work on many files: each task does a few files, some at a time.

    ``fold`` combines the results of a task before they are returned. The number of files per task depends on
    the cluster, so ``fold`` must not depend on the order or the grouping.
    """
    size = -(-len(items) // (_TASKS_PER_CPU * _count_cpus()))
    size = min(max(size, 1), _FILES_PER_TASK)
    shares = [items[start : start + size] for start in range(0, len(items), size)]
    with Progress(label, len(items), unit="file") as progress:
        for share, results in zip(shares, _run(_do_each, shares, (function, fold, *args)), strict=True):
            for _ in share:
                progress.finish_one()
            yield from results


def _do_each(
    items: Sequence[Item], function: Callable[..., Result], fold: Callable[[list], list], *args: Any
) -> list[Result]:
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return fold(list(pool.map(lambda item: function(item, *args), items)))


def add_counts(counts: list[Any]) -> list[Any]:
    """Sum whole numbers, and arrays of them; keep values apart that a sum would round."""
    is_exact = all(isinstance(count, int) or getattr(count, "dtype", None) == "int64" for count in counts)
    return [sum(counts)] if counts and is_exact else counts


def _run(function: Callable[..., Result], items: Sequence[Item], args: Sequence[Any]) -> Iterator[Result]:
    """Yield the results in order; the number of waiting tasks follows the cluster's changing size."""
    executor, task = current(), _watched(function)
    shared = [executor.put(arg) for arg in args]
    waiting: deque[Any] = deque()
    most, left = 0, iter(items)
    try:
        for done in range(len(items)):
            if done % _LEAST_WAITING == 0:
                most = max(_LEAST_WAITING, _WAITING_PER_CPU * _count_cpus())
            while len(waiting) < min(most, len(items) - done):
                waiting.append(executor.submit(task, next(left), *shared))
            result, written = executor.get(waiting.popleft())
            note_written(written)
            yield result
    except UserError as error:
        raise getattr(error, "cause", error) from error
    finally:
        executor.stop(list(waiting))


def _watched(function: Callable[..., Result]) -> Callable[..., tuple[Result, list[Written]]]:
    """Return the body of a task: ``function``, plus a list of the run's results that it wrote."""
    places = watched_places()

    @wraps(function)
    def run(*args: Any) -> tuple[Result, list[Written]]:
        return call_watched(function, places, *args)

    return run


def map_some(
    function: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    num_tasks: int,
    check: Callable[[], None],
    label: str,
    unit: str,
    with_gpu: bool = False,
) -> Iterator[tuple[Any, ...]]:
    """Yield each job once ``function(*job)`` has ended: a limited number at a time, started in order.

    ``check`` is called after each job; it raises LeaseLost where this run must stop. ``with_gpu``: each job
    has its own GPU; without it jobs see none. An early end also ends the running jobs: nothing is written
    after the run has ended.
    """
    executor, task = current(), _watched(function)
    waiting: dict[Any, tuple[Any, ...]] = {}
    queue = iter(jobs)
    try:
        with Progress(label, len(jobs), unit=unit) as progress:
            while True:
                for job in queue:
                    waiting[executor.submit(task, *job, num_gpus=int(with_gpu))] = job
                    if len(waiting) == num_tasks:
                        break
                if not waiting:
                    return
                (ended,) = executor.wait(list(waiting), 1)
                note_written(executor.get(ended)[1])
                check()
                progress.finish_one()
                yield waiting.pop(ended)
    finally:
        executor.stop(list(waiting))


def _count_cpus() -> int:
    return max(1, int(current().count("CPU")))
