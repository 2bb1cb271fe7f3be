"""Phases over many shards, whose files are committed in waves; tasks over many files.

Phase: a pass with a name, whose parts are merged into one file per shard.
Wave: the shards of a phase that one manifest commits.

A phase is one streaming pass (``executor.py``), so scorers live across waves. Blocks end in ``stage_part``,
which writes the rows of each shard to a part and sends the part's metadata to the driver. When a shard's rows
are complete its parts are merged, in the order of positions, into one deterministic file. Merged shards are
committed by time or number (``waves.commit_s``, ``waves.shards_per_wave``) by a manifest that is written
last; then their parts are removed.

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
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np

from raycomp.config import ClusterFailed, UserError, WavesConfig
from raycomp.data import parquet
from raycomp.data.files import Folder, Written, call_watched, note_written, watched_places
from raycomp.run import executor
from raycomp.run.executor import GPU_KIND, WRITE, Pass, Stalled, Stats, current
from raycomp.run.progress import Growth, Progress, average, log_event
from raycomp.words import POSITION, SHARD_ORDINAL, STATUS

_PART_NAME = re.compile(r"(\d{5,})/([0-9a-f]{8})-\d+\.parquet")
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
    advice: str = ""
    """Said once if the phase is slow."""

    @property
    def above(self) -> str:
        """The common prefix of the uris of a run's results."""
        return posixpath.dirname(self.work.uri) + "/"

    def run(self, totals: dict[int, int] | None = None, about: dict[int, int] | None = None) -> Stats:
        """Process all uncommitted shards; return the stats of the whole phase, committed waves included.

        ``totals`` gives the expected rows per shard where the caller knows them (else a shard's last row
        gives them). ``about`` is an estimate of them, for the progress alone.
        """
        num_stalls, num_before = 0, -1
        while True:
            stats, done = self._read_manifests()
            todo = [ordinal for ordinal in self.steps.items if ordinal not in done]
            if not todo:
                self.work.remove("parts", self.name)
                return stats
            try:
                stats.add(self._run_once(todo, totals, totals or about).to_dict())
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

    def _run_once(
        self, todo: list[int], totals: dict[int, int] | None, about: dict[int, int] | None
    ) -> Stats:
        """Process the shards ``todo``; return the stats of the committed work."""
        kept = _find_parts(self.work, self.name, set(todo))
        num_kept = sum(part.metadata["rows"] for part in kept)
        num_rows = sum(about[ordinal] for ordinal in todo) - num_kept if about else None
        watch = current().watch_growth() if self.steps.most else nullcontext()
        how = self.steps.worker_pools, "shard", num_rows
        with (
            Progress(self.name, len(todo), *how, advice=self.advice) as progress,
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
            table = parquet.read_columns(parts.at(match[0]), [POSITION])
        except UserError:
            return None
        positions = table[POSITION].to_numpy()
        metadata = json.loads((table.schema.metadata or {}).get(executor.ABOUT, b"{}"))
        is_whole = match[2] == executor.digest_positions(positions.tolist()) and metadata.get("rows") == len(
            positions
        )
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
        list(pool.map(lambda ordinal: work.remove("parts", name, executor.name_parts(ordinal)), ordinals))


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
