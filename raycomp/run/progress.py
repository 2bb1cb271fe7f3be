"""Progress of a phase: a bar on a terminal or in a notebook; elsewhere a line at intervals."""

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Self, TextIO

from tqdm import tqdm

from raycomp.run.events import log_event
from raycomp.run.executor import Silent, find_current
from raycomp.run.notebook import is_notebook
from raycomp.run.stage import CPUS, SCORERS

GPUS = "gpus"
"""A scorer's model time: not a stage's worker pool; its time is a part of the scorers' time."""
_BAR = "{desc}: {percentage:3.0f}%|{bar:20}| {n_fmt} of {total_fmt} {unit}s [{elapsed}<{remaining}{postfix}]"
_BAR_EVERY_S = 0.5
_LINE_EVERY_S = 30.0
# Ray's nodes drop a gauge that was not set for 20 s.
_GAUGES_EVERY_S = 5.0
_END_S = 5.0
# A block may take this long without a fault.
_IDLE_S = 20.0


class WorkerPool(NamedTuple):
    """The workers of a stage."""

    says: str
    """The stage's work, in words."""
    workers: int
    """Maximum number of workers."""
    where: str
    """cpus, scorers or gpus: stages with the same value share its workers."""


WorkerPools = Mapping[str, WorkerPool]
"""Stage -> its worker pool, in the order of the work."""


class _Bar(tqdm):
    """A bar without tqdm's own thread, which never ends."""

    monitor_interval = 0


class Progress:
    """Count one phase's shards (or another unit) and rows; a thread reports, also without new results.

    Used as a context, whose end stops the thread. Time between lines is counted across phases: many short
    phases do not add up to a long silence, and a short run prints nothing. Call ``forget`` before a run.
    While a thread has an inner phase open, only the inner phase reports.
    """

    _reported_at: float | None = None
    _opened = threading.local()

    def __init__(
        self,
        phase: str,
        num_shards: int,
        worker_pools: WorkerPools | None = None,
        unit: str = "shard",
        num_rows: int | None = None,
        every_s: float | None = None,
    ):
        self.phase, self.unit, self.worker_pools = phase, unit, worker_pools or {}
        self.num_shards, self.num_rows = num_shards, num_rows
        self.rows = self.shards = self.started_at = 0
        self.seconds: dict[str, float] = {}
        self.started = self.status_at = time.monotonic()
        self.stream: TextIO = sys.stderr
        self.bar = self._open_bar() if self.stream.isatty() or is_notebook() else None
        self.every_s = every_s or (_BAR_EVERY_S if self.bar is not None else _LINE_EVERY_S)
        self.has_reported = False
        self.counts = threading.Lock()
        self.ended = threading.Event()
        Progress._reported_at = Progress._reported_at or self.started
        executor = find_current()
        self.meter = executor.open_meter(phase) if executor else Silent()
        workers = {stage: place.workers for stage, place in self.worker_pools.items()}
        log_event("phase", phase=phase, unit=unit, planned=num_shards, workers=workers)
        self.open: list[Progress] = Progress._opened.__dict__.setdefault("phases", [])
        self.open.append(self)
        self.reporter = threading.Thread(
            target=self._keep_reporting, name=f"progress of {phase}", daemon=True
        )
        self.reporter.start()

    @classmethod
    def forget(cls) -> None:
        """Reset the log timer between runs: an earlier run in this process does not count."""
        cls._reported_at = None

    def _open_bar(self) -> _Bar:
        _, total, unit = self._measure()
        return _Bar(desc=self.phase, total=total, unit=unit, file=self.stream, bar_format=_BAR)

    def _measure(self) -> tuple[int, int, str]:
        """Return the amount done, the total and the unit: rows where their number is known."""
        if self.num_rows:
            return self.rows, self.num_rows, "row"
        return self.shards, self.num_shards, self.unit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def add(self, rows: int, seconds: Mapping[str, float], statuses: Mapping[str, int] | None = None) -> None:
        """Count a part's rows, by status where that is known, and the seconds of each stage."""
        with self.counts:
            self.rows += rows
            self.status_at = time.monotonic()
            for stage, value in seconds.items():
                self.seconds[stage] = self.seconds.get(stage, 0.0) + value
                where = self.worker_pools[stage].where
                self.meter.add("raycomp_busy_seconds", value, stage=stage, where=where)
        self.meter.add_rows(statuses or {})

    def finish_one(self) -> None:
        """Count one shard (or other unit) as done."""
        with self.counts:
            self.shards += 1
            self.status_at = time.monotonic()

    def start_at(self, shards: int) -> None:
        """Count ``shards`` as done before this start, with no time."""
        with self.counts:
            self.shards = self.started_at = shards

    def reach(self, shards: int, rows_each: int) -> None:
        """Set the number of shards done, each of ``rows_each`` rows."""
        with self.counts:
            if shards != self.shards:
                self.status_at = time.monotonic()
            self.shards, self.rows = shards, max(0, shards - self.started_at) * rows_each

    def _keep_reporting(self) -> None:
        pause = 0.0
        while not self.ended.wait(pause):
            is_inner = self.open[-1:] == [self]
            if is_inner and (self.bar is not None or not self._name_pause()):
                self.report()
            self._put_gauges()
            pause = min(self._name_pause(), _GAUGES_EVERY_S)

    def _put_gauges(self) -> None:
        self.meter.put("raycomp_planned", self.num_shards, unit=self.unit)
        self.meter.put("raycomp_done", self.shards, unit=self.unit)
        for stage, place in self.worker_pools.items():
            self.meter.put("raycomp_workers", place.workers, stage=stage, where=place.where)
        what, idle_s = self._find_wait()
        if what:
            self.meter.put("raycomp_waiting_seconds", idle_s, what=what)

    def _name_pause(self) -> float:
        """Return the seconds until the next line, or until the bar is redrawn."""
        if self.bar is not None or self.open[-1:] != [self]:
            return self.every_s
        return max(0.0, (Progress._reported_at or 0.0) + self.every_s - time.monotonic())

    def report(self) -> None:
        """Draw the bar, or write a line."""
        spent = max(1e-9, time.monotonic() - self.started)
        wait = self.name_wait()
        with self.counts:
            done, total, _ = self._measure()
            speed = f"{self.rows / spent:,.0f} rows/s" if self.rows else ""
            count = f"{self.unit} {self.shards:,} of {self.num_shards:,}"
            rows = f"{self.rows:,} rows" if self.rows else ""
        if self.bar is not None:
            self.bar.n = done
            self.bar.set_postfix_str(", ".join(filter(None, (speed, wait))), refresh=False)
            self.bar.refresh()
        else:
            own = done - self.started_at
            left = (
                f"{_Bar.format_interval(spent * (total - done) / own)} left"
                if own > 0
                else "time left unknown"
            )
            facts = filter(None, (count, rows, speed, left, wait))
            log_event("progress", **self._facts(spent), waits=wait)
            with suppress(OSError, ValueError):  # the output is closed; the work continues
                self.stream.write(f"{self.phase}: {', '.join(facts)}\n")
                self.stream.flush()
            self.has_reported, Progress._reported_at = True, time.monotonic()

    def name_wait(self) -> str:
        """Return the bottleneck stage or, without progress, the cause of the wait."""
        what, idle_s = self._find_wait()
        if what:
            return f"waiting for {what} for {idle_s:,.0f} s"
        with self.counts:
            busy = {stage: s / self.worker_pools[stage].workers for stage, s in self.seconds.items()}
        slowest = name_bottleneck(busy, self.worker_pools)
        return f"bottleneck {slowest}" if slowest else ""

    def _find_wait(self) -> tuple[str | None, float]:
        """Return the cause of the wait (None where blocks arrive), and the seconds without a block."""
        with self.counts:
            idle_s = time.monotonic() - self.status_at
            which = "next" if self.rows or self.shards else "first"
        if idle_s < _IDLE_S and which == "next":
            return None, idle_s
        return _name_lack(
            self.worker_pools
        ) or f"the {which} {'block' if self.worker_pools else self.unit}", idle_s

    def _facts(self, spent_s: float) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "unit": self.unit,
            "done": self.shards,
            "planned": self.num_shards,
            "rows": self.rows,
            "seconds": round(spent_s, 3),
            "busy_seconds": {stage: round(value, 3) for stage, value in self.seconds.items()},
        }

    def finish(self) -> None:
        """End the thread, close the bar, and report the end where lines were printed; runs once."""
        if self.ended.is_set():
            return
        self.ended.set()
        self.open.remove(self)
        self.reporter.join(_END_S)  # a cluster that is down may block it
        if self.bar is not None or self.has_reported:
            self.report()
        log_event("phase_end", **self._facts(time.monotonic() - self.started))
        if self.bar is not None:
            self.bar.close()


def _name_lack(worker_pools: WorkerPools) -> str | None:
    """Return the resource that the cluster lacks for the phase to continue; None where it lacks none."""
    wanted = sum(place.workers for place in worker_pools.values() if place.where == GPUS)
    executor = find_current() if wanted else None
    there = executor.count("GPU") if executor else wanted
    return f"GPUs ({there:.0f} of {wanted} available)" if there < wanted else None


def name_bottleneck(busy: Mapping[str, float], worker_pools: WorkerPools) -> str | None:
    """Return the bottleneck stage; None before anything was measured.

    ``busy``: seconds per worker of every stage, or their share of the time. Stages that share workers delay
    each other. The result is therefore the longest stage of the busiest worker pool.
    """
    pools = [
        {stage: value for stage, value in busy.items() if worker_pools[stage].where == where}
        for where in (CPUS, SCORERS)
    ]
    busiest = max(pools, key=lambda pool: sum(pool.values()))
    return max(busiest, key=busiest.__getitem__, default=None)
