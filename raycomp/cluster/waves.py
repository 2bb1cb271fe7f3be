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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray.data import Dataset
from ray.exceptions import UserCodeException

from raycomp.cluster.events import log_event
from raycomp.cluster.parts import Stats
from raycomp.cluster.progress import Crew, Progress
from raycomp.loops.stage import WRITE
from raycomp.shards.folder import Folder
from raycomp.shards.retries import TASK_RETRIES
from raycomp.words import SHARD_ORDINAL, STATUS

_MERGES_AT_ONCE = 64
_STORAGE_FAILED = re.compile(
    r"^(?:OSError|PermissionError|TimeoutError|Connection\w*Error): (.+)\n\n"
    r"The above exception was the direct cause of the following exception:$",
    re.MULTILINE,
)
_USER_FAILED = re.compile(r"^raycomp\.config\.check\.UserError: (.+)$", re.MULTILINE)


def read_receipts(dataset: Dataset) -> Iterator[list[dict[str, Any]]]:
    """Run a dataset, yield its receipts block by block.

    Raises OSError where a stage's storage failed and ValueError where the user can mend what did: Ray Data
    tells a stage's errors by their traceback alone.
    """
    try:
        receipts: Any
        for receipts in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield receipts.to_pylist()
    except UserCodeException as error:
        if said := _USER_FAILED.search(str(error)):
            raise ValueError(said[1]) from error
        if said := _STORAGE_FAILED.search(str(error)):
            raise OSError(said[1]) from error
        raise


def _tell_wave(stats: Stats) -> dict[str, Any]:
    """Return what an event of the log says of a wave that is committed."""
    seconds = {stage: round(value, 3) for stage, value in stats.seconds.items()}
    return {"wall_s": round(stats.wall_s, 3), "statuses": dict(stats.statuses), "busy_seconds": seconds}


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
    crew: Crew
    """Who works on each stage."""
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
            left = [[ordinal for ordinal in wave if ordinal not in done] for wave in waves]
            num_rows = sum(totals[ordinal] for ordinal in todo) if totals else None
            with Progress(self.name, len(todo), self.crew, num_rows=num_rows) as progress:
                run = _Run(self, parts_uri, left, totals, progress)
                try:
                    stats.add(run.consume(make, todo).to_dict())
                except BaseException as error:
                    error.add_note(run.name_rest())
                    raise
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

    def __init__(
        self,
        phase: Phase,
        parts_uri: str,
        waves: list[list[int]],
        totals: dict[int, int] | None,
        progress: Progress,
    ):
        self.phase = phase
        self.parts_uri = parts_uri
        self.waves = waves
        self.wave_of = {ordinal: w for w, wave in enumerate(waves) for ordinal in wave}
        self.missing = {w: set(wave) for w, wave in enumerate(waves)}
        self.committed = {w for w, wave in enumerate(waves) if not wave}
        self.wave_stats = {w: Stats() for w in self.missing}
        self.totals = dict(totals or {})
        self.files: dict[int, list[str]] = {ordinal: [] for ordinal in self.wave_of}
        self.rows: Counter = Counter()
        self.merging: dict[ray.ObjectRef, int] = {}
        self.stats = Stats()
        self.commit_s = 0.0
        self.counted_until = time.monotonic()
        self.progress = progress
        # Merging is light and must not wait for CPUs that the phase itself holds.
        remote: dict[str, Any] = {"scheduling_strategy": "SPREAD", "num_cpus": 0, **TASK_RETRIES}
        self.merge = ray.remote(**remote)(_merge_timed)

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
        if any(self.missing.values()):
            short = sorted(ordinal for wave in self.missing.values() for ordinal in wave)
            raise RuntimeError(f"{self.phase.name}: shards {short[:10]} ended short of their rows")
        self.stats.add(self._count_wall().to_dict())
        return self.stats

    def name_rest(self) -> str:
        """Return how many waves are committed, and with which the phase goes on."""
        rest = min(set(range(len(self.waves))) - self.committed, default=len(self.waves))
        return (
            f"{self.phase.name}: {len(self.committed):,} of {len(self.waves):,} waves are committed, "
            f"wave {rest + 1:,} goes on"
        )

    def _take(self, receipt: dict[str, Any]) -> None:
        ordinal = receipt[SHARD_ORDINAL]
        self.files[ordinal].append(receipt["file"])
        self.rows[ordinal] += receipt["rows"]
        if receipt["total"] is not None:
            self.totals[ordinal] = receipt["total"]
        stats = json.loads(receipt["stats"])
        self.wave_stats[self.wave_of[ordinal]].add(stats)
        self.progress.add(receipt["rows"], stats["seconds"], stats["counts"].get(STATUS))
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
            self.wave_stats[wave].seconds[WRITE] += seconds
            self.progress.add(0, {WRITE: seconds})
            self.missing[wave].remove(ordinal)
            self.progress.finish_one()
            if not self.missing[wave]:
                self._commit(wave)

    def _commit(self, wave: int) -> None:
        """Write the wave's manifest. How long that takes, only the next manifest can tell."""
        self.phase.check()
        shards, stats = sorted(self.waves[wave]), self.wave_stats.pop(wave)
        stats.add(self._count_wall().to_dict())
        manifest: dict[str, Any] = {"shards": shards, "stats": stats.to_dict()}
        started = time.monotonic()
        self.phase.work.write_json(manifest, "waves", f"{self.phase.name}-{shards[0]:08d}.json")
        self.commit_s += time.monotonic() - started
        self.stats.add(manifest["stats"])
        self.committed.add(wave)
        log_event("wave", phase=self.phase.name, wave=wave + 1, waves=len(self.waves), **_tell_wave(stats))
        self.progress.meter.add("raycomp_waves")

    def _count_wall(self) -> Stats:
        """Return the time since the last count: wall, what it offered every stage, commits within it."""
        now = time.monotonic()
        wall_s, self.counted_until = now - self.counted_until, now
        commit_s, self.commit_s = self.commit_s, 0.0
        crew = dict(self.phase.crew)
        offered = Counter({stage: place.workers * wall_s for stage, place in crew.items()})
        return Stats(offered=offered, wall_s=wall_s, commit_s=commit_s, crew=crew)
