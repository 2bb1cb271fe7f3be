"""Run one phase over many shards: stage parts, merge them into one file per shard, commit in waves.

A phase is one streaming pass, so actors live across waves. Blocks end in ``stage_part``, which writes the
rows of each shard to a staged part and sends the driver a receipt. When a shard's rows are complete its parts
are merged, in the order of positions, into one deterministic file; when all shards of a wave are merged, a
manifest written last commits the wave. A restart skips what manifests name and redoes the rest.

Each manifest tells the wall time since the commit before it (or since the phase began), so walls add up over
restarts. What an interrupted try did after its last commit is lost and is done again: it counts neither as
wall nor as busy time. What it had done of waves that were not committed by then lies in its walls but not in
its busy seconds, so a busy share after a restart may be told too low, never too high.
"""

import json
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data import Dataset
from ray.exceptions import UserCodeException

from raycomp.cluster.progress import Progress
from raycomp.loops.tables import FAULTS, SECONDS, SHUFFLED_ALIGNMENT
from raycomp.shards.folder import Folder
from raycomp.shards.parquet import read_columns, write_table
from raycomp.shards.paths import join_uri
from raycomp.shards.retries import TASK_RETRIES
from raycomp.words import (
    ALIGNMENT,
    IS_LAST,
    POSITION,
    SHARD_ORDINAL,
    STATUS,
)

_SAMPLED_PER_PART = 32
_SAMPLED_AT_MOST = 4096
_MERGES_AT_ONCE = 64
_STORAGE_FAILED = re.compile(
    r"^(?:OSError|PermissionError|TimeoutError|Connection\w*Error): (.+)\n\n"
    r"The above exception was the direct cause of the following exception:$",
    re.MULTILINE,
)
_USER_FAILED = re.compile(r"^raycomp\.config\.check\.UserError: (.+)$", re.MULTILINE)
_COUNTERS = ("seconds", "offered", "statuses", "faults")
_RECEIPT = pa.schema(
    [
        (SHARD_ORDINAL, pa.int32()),
        ("file", pa.string()),
        ("rows", pa.int32()),
        ("total", pa.int32()),
        ("stats", pa.string()),
    ]
)


@dataclass
class Stats:
    """What a phase tells about itself: mergeable, bounded, in run.json and the report, in no result."""

    seconds: Counter = field(default_factory=Counter)
    """Stage -> how long its workers were busy, added up."""
    offered: Counter = field(default_factory=Counter)
    """Stage -> how long its workers were there: their number times the wall time, added up over restarts."""
    wall_s: float = 0.0
    commit_s: float = 0.0
    """The part of the wall time that went into writing manifests."""
    statuses: Counter = field(default_factory=Counter)
    faults: Counter = field(default_factory=Counter)
    """Why phrases got no nonce, or candidates for negatives were rejected."""
    matched: list[float] = field(default_factory=list)
    """Alignments of a bounded sample of pairs."""
    shuffled: list[float] = field(default_factory=list)
    """The same images, each with a caption of another image of its batch."""

    def add(self, other: dict[str, Any]) -> None:
        """Take in another's ``to_dict``."""
        for name in _COUNTERS:
            getattr(self, name).update(other[name])
        self.wall_s += other["wall_s"]
        self.commit_s += other["commit_s"]
        for name in ("matched", "shuffled"):
            values = getattr(self, name)
            values += other[name][: _SAMPLED_AT_MOST - len(values)]

    def to_dict(self) -> dict[str, Any]:
        """Return what json can hold."""
        return {**vars(self), **{name: dict(getattr(self, name)) for name in _COUNTERS}}

    def busy_shares(self) -> dict[str, float]:
        """Return how much of the time its workers had each stage was at work, 0 to 1.

        Merging holds no slot of a CPU, so writing could come to more than its workers had: it is told as 1.
        """
        return {
            stage: min(1.0, seconds / self.offered[stage]) if self.offered[stage] else 0.0
            for stage, seconds in self.seconds.items()
        }


def stage_part(table: pa.Table, parts_uri: str, schema: pa.Schema) -> pa.Table:
    """Write the columns of ``schema`` of each shard in ``table`` as a part; return a receipt per part."""
    receipts = []
    for ordinal in pc.unique(table[SHARD_ORDINAL]).to_pylist():
        started = time.perf_counter()
        rows = table.filter(pc.equal(table[SHARD_ORDINAL], ordinal))
        positions = rows[POSITION].to_pylist()
        # The same rows get the same name, so a task that runs again writes over its first try.
        name = f"{ordinal:05d}-{zlib.crc32(repr(positions).encode()):08x}-{len(positions)}.parquet"
        write_table(rows.select(schema.names), join_uri(parts_uri, name), schema)
        stats = _measure(rows)
        stats.seconds["write"] = time.perf_counter() - started
        receipts.append((ordinal, name, len(rows), _total(rows), json.dumps(stats.to_dict())))
    columns = list(zip(*receipts, strict=True)) or [()] * len(_RECEIPT)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, _RECEIPT, strict=True)], schema=_RECEIPT)


def _total(rows: pa.Table) -> int | None:
    """Return the number of rows of the shard if its last row is here."""
    if IS_LAST not in rows.column_names:
        return None
    last = rows[POSITION].filter(rows[IS_LAST])
    return last[0].as_py() + 1 if len(last) else None


def _measure(rows: pa.Table) -> Stats:
    stats = Stats()
    stats.statuses.update(rows[STATUS].to_pylist())
    for name in rows.column_names:
        if name.startswith(SECONDS):
            stats.seconds[name.removeprefix(SECONDS)] += pc.sum(rows[name]).as_py() or 0.0
    if FAULTS in rows.column_names:
        stats.faults.update(fault for faults in rows[FAULTS].to_pylist() for fault in faults)
    if SHUFFLED_ALIGNMENT in rows.column_names:
        # A pair without a mismatched one beside it has no part in the comparison.
        scored = rows.filter(rows[SHUFFLED_ALIGNMENT].is_valid()).slice(0, _SAMPLED_PER_PART)
        stats.matched, stats.shuffled = scored[ALIGNMENT].to_pylist(), scored[SHUFFLED_ALIGNMENT].to_pylist()
    return stats


def read_parts(parts_uri: str, names: Iterable[str]) -> pa.Table | None:
    """Return the rows of staged parts in the order of their positions; None where there is no part.

    Raises RuntimeError if a position stands twice: a shard is never merged from overlapping parts.
    """
    tables = [read_columns(join_uri(parts_uri, name)) for name in names]
    if not tables:
        return None
    table = pa.concat_tables(tables)
    positions = table[POSITION].to_numpy()
    order = positions.argsort(kind="stable")
    if len(set(positions.tolist())) < len(positions):
        raise RuntimeError(f"{parts_uri}: parts {sorted(names)} overlap")
    return table.take(pa.array(order))


def read_receipts(dataset: Dataset) -> Iterator[list[dict[str, Any]]]:
    """Run a dataset, yield its receipts block by block.

    Raises OSError where a stage's storage failed and ValueError where the user can mend what did: Ray Data
    tells a stage's errors by their traceback alone.
    """
    try:
        for receipts in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield receipts.to_pylist()
    except UserCodeException as error:
        if said := _USER_FAILED.search(str(error)):
            raise ValueError(said[1]) from error
        if said := _STORAGE_FAILED.search(str(error)):
            raise OSError(said[1]) from error
        raise


def _merge_timed(merge: Callable[..., int], *args: Any) -> float:
    """Run a merge; return the seconds it took."""
    started = time.perf_counter()
    merge(*args)
    return time.perf_counter() - started


@dataclass
class Phase:
    """A named pass over shards whose results are one file per shard."""

    name: str
    work: Folder
    shards_per_wave: int
    merge: Callable[..., int]
    """``merge(ordinal, parts_uri, part_names, *merge_args)``: writes the shard's file, returns its rows."""
    merge_args: tuple
    workers: dict[str, int]
    """How many workers each stage has."""
    check: Callable[[], None] = lambda: None
    """Asked before every commit; raises where this run may not commit."""

    def run(
        self, ordinals: list[int], make: Callable[[list[int], str], Dataset], totals: dict[int, int] | None
    ) -> Stats:
        """Do what is not yet committed; return the stats of the whole phase, committed waves included.

        ``make(ordinals, parts_uri)`` is the dataset of receipts; ``totals`` counts the rows to expect per
        shard where the caller knows (else a shard's last row tells).
        """
        waves = [
            ordinals[i : i + self.shards_per_wave] for i in range(0, len(ordinals), self.shards_per_wave)
        ]
        stats, done = self._read_manifests()
        todo = [ordinal for ordinal in ordinals if ordinal not in done]
        parts_uri = self.work.at("parts", self.name)
        self.work.remove("parts", self.name)
        if todo:
            run = _Run(self, parts_uri, [[o for o in wave if o not in done] for wave in waves], totals)
            stats.add(run.consume(make, todo).to_dict())
            self.work.remove("parts", self.name)
        return stats

    def _read_manifests(self) -> tuple[Stats, set[int]]:
        stats, done = Stats(), set()
        for name in self.work.list_names("waves"):
            if name.startswith(f"{self.name}-"):
                manifest = self.work.read_json("waves", name)
                done.update(manifest["shards"])
                stats.add(manifest["stats"])
        return stats, done


class _Run:
    """The driver's view of a running phase: what came of each shard, what is merged, what is committed."""

    def __init__(self, phase: Phase, parts_uri: str, waves: list[list[int]], totals: dict[int, int] | None):
        self.phase = phase
        self.parts_uri = parts_uri
        self.waves = waves
        self.wave_of = {ordinal: w for w, wave in enumerate(waves) for ordinal in wave}
        self.missing = {w: set(wave) for w, wave in enumerate(waves)}
        self.wave_stats = {w: Stats() for w in self.missing}
        self.totals = dict(totals or {})
        self.files: dict[int, list[str]] = {ordinal: [] for ordinal in self.wave_of}
        self.rows: Counter = Counter()
        self.merging: dict[ray.ObjectRef, int] = {}
        self.stats = Stats()
        self.commit_s = 0.0
        self.counted_until = time.monotonic()
        self.progress = Progress(phase.name, len(self.wave_of), phase.workers)
        # Merging is light and must not wait for CPUs that the phase itself holds.
        remote = {"num_cpus": 0, **TASK_RETRIES}
        self.merge = ray.remote(scheduling_strategy="SPREAD", **remote)(_merge_timed)

    def consume(self, make: Callable[[list[int], str], Dataset], todo: list[int]) -> Stats:
        """Stream the dataset's receipts, merging and committing as shards complete."""
        for ordinal in todo:
            self._merge_if_complete(ordinal)
        pending = [ordinal for ordinal in todo if ordinal in self.files]
        if pending:
            for receipts in read_receipts(make(pending, self.parts_uri)):
                for receipt in receipts:
                    self._take(receipt)
                self._collect(wait=False)
        while self.merging:
            self._collect(wait=True)
        self.progress.finish()
        if any(self.missing.values()):
            short = sorted(ordinal for wave in self.missing.values() for ordinal in wave)
            raise RuntimeError(f"{self.phase.name}: shards {short[:10]} ended short of their rows")
        self.stats.add(self._count_wall().to_dict())
        return self.stats

    def _take(self, receipt: dict[str, Any]) -> None:
        ordinal = receipt[SHARD_ORDINAL]
        self.files[ordinal].append(receipt["file"])
        self.rows[ordinal] += receipt["rows"]
        if receipt["total"] is not None:
            self.totals[ordinal] = receipt["total"]
        stats = json.loads(receipt["stats"])
        self.wave_stats[self.wave_of[ordinal]].add(stats)
        self.progress.add(receipt["rows"], stats["seconds"])
        self._merge_if_complete(ordinal)

    def _merge_if_complete(self, ordinal: int) -> None:
        if self.rows[ordinal] == self.totals.get(ordinal):
            while len(self.merging) >= _MERGES_AT_ONCE:
                self._collect(wait=True)
            names = sorted(self.files.pop(ordinal))
            ref = self.merge.remote(self.phase.merge, ordinal, self.parts_uri, names, *self.phase.merge_args)
            self.merging[ref] = ordinal

    def _collect(self, wait: bool) -> None:
        """Commit the waves whose last shard is merged."""
        done, _ = (
            ray.wait(list(self.merging), num_returns=1, timeout=None if wait else 0)
            if self.merging
            else ([], [])
        )
        for ref in done:
            seconds = ray.get(ref)
            ordinal = self.merging.pop(ref)
            wave = self.wave_of[ordinal]
            self.wave_stats[wave].seconds["write"] += seconds
            self.progress.add(0, {"write": seconds})
            self.missing[wave].remove(ordinal)
            self.progress.finish_one()
            if not self.missing[wave]:
                self._commit(wave)

    def _commit(self, wave: int) -> None:
        """Write the wave's manifest. How long that takes, only the next manifest can tell."""
        self.phase.check()
        shards, stats = sorted(self.waves[wave]), self.wave_stats.pop(wave)
        stats.add(self._count_wall().to_dict())
        manifest = {"shards": shards, "stats": stats.to_dict()}
        started = time.monotonic()
        self.phase.work.write_json(manifest, "waves", f"{self.phase.name}-{shards[0]:08d}.json")
        self.commit_s += time.monotonic() - started
        self.stats.add(manifest["stats"])

    def _count_wall(self) -> Stats:
        """Return the time since the last count: wall, what it offered every stage, commits within it."""
        now = time.monotonic()
        wall_s, self.counted_until = now - self.counted_until, now
        commit_s, self.commit_s = self.commit_s, 0.0
        offered = Counter({stage: number * wall_s for stage, number in self.phase.workers.items()})
        return Stats(offered=offered, wall_s=wall_s, commit_s=commit_s)
