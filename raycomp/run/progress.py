"""How far a phase is: a bar on a terminal or in a notebook; elsewhere a line now and then, in silence too."""

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
"""Where a scorer's model computes: no place of a stage, the time there is a part of the scorers' time."""
_BAR = "{desc}: {percentage:3.0f}%|{bar:20}| {n_fmt} of {total_fmt} {unit}s [{elapsed}<{remaining}{postfix}]"
_BAR_EVERY_S = 0.5
_LINE_EVERY_S = 30.0
# Ray's nodes forget a gauge that nobody has set for 20 s.
_GAUGES_EVERY_S = 5.0
_END_S = 5.0
# As long may a block take that nothing is amiss with.
_IDLE_S = 20.0


class WorkerPool(NamedTuple):
    """Who works on a stage."""

    says: str
    """What the stage does."""
    workers: int
    """How many there are at most."""
    where: str
    """Stages of one place take turns on its workers: cpus, scorers or gpus."""


WorkerPools = Mapping[str, WorkerPool]
"""Stage -> who works on it, in the order of the work."""


class _Bar(tqdm):
    """A bar without tqdm's own thread, which never ends."""

    monitor_interval = 0


class Progress:
    """Count one phase's shards (or another unit) and rows; a thread tells, also while nothing comes.

    Use as a context, which ends the thread. Time between lines is counted across phases: many short ones do
    not add up to a long silence, and a short run says nothing. ``forget`` before a run. While a thread has
    another phase open within this one, that one tells alone.
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
        """Count the time between lines anew: what an earlier run told in this process is no line of this."""
        cls._reported_at = None

    def _open_bar(self) -> _Bar:
        _, total, unit = self._measure()
        return _Bar(desc=self.phase, total=total, unit=unit, file=self.stream, bar_format=_BAR)

    def _measure(self) -> tuple[int, int, str]:
        """Return what is done of how much of what: rows where their number is known."""
        if self.num_rows:
            return self.rows, self.num_rows, "row"
        return self.shards, self.num_shards, self.unit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def add(self, rows: int, seconds: Mapping[str, float], statuses: Mapping[str, int] | None = None) -> None:
        """Count a part's rows, by status where that is known, and the seconds that its stages took."""
        with self.counts:
            self.rows += rows
            self.status_at = time.monotonic()
            for stage, value in seconds.items():
                self.seconds[stage] = self.seconds.get(stage, 0.0) + value
                where = self.worker_pools[stage].where
                self.meter.add("raycomp_busy_seconds", value, stage=stage, where=where)
        self.meter.add_rows(statuses or {})

    def finish_one(self) -> None:
        """Count a shard (or what the unit is) as done."""
        with self.counts:
            self.shards += 1
            self.status_at = time.monotonic()

    def start_at(self, shards: int) -> None:
        """Count so many as done before, in no time."""
        with self.counts:
            self.shards = self.started_at = shards

    def reach(self, shards: int, rows_each: int) -> None:
        """Count so many as done, of as many rows each."""
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
        """Return the seconds until the next line, or until the bar is drawn again."""
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
            with suppress(OSError, ValueError):  # nobody reads any more, which ends no work
                self.stream.write(f"{self.phase}: {', '.join(facts)}\n")
                self.stream.flush()
            self.has_reported, Progress._reported_at = True, time.monotonic()

    def name_wait(self) -> str:
        """Return the stage that holds the others up or, where nothing comes, what is waited for."""
        what, idle_s = self._find_wait()
        if what:
            return f"waiting for {what} for {idle_s:,.0f} s"
        with self.counts:
            busy = {stage: s / self.worker_pools[stage].workers for stage, s in self.seconds.items()}
        slowest = name_bottleneck(busy, self.worker_pools)
        return f"bottleneck {slowest}" if slowest else ""

    def _find_wait(self) -> tuple[str | None, float]:
        """Return what is waited for, none where blocks come, and for how many seconds nothing has come."""
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
        """End the thread, close the bar, tell the end where lines were told; once."""
        if self.ended.is_set():
            return
        self.ended.set()
        self.open.remove(self)
        self.reporter.join(_END_S)  # a cluster that is down may keep it
        if self.bar is not None or self.has_reported:
            self.report()
        log_event("phase_end", **self._facts(time.monotonic() - self.started))
        if self.bar is not None:
            self.bar.close()


def _name_lack(worker_pools: WorkerPools) -> str | None:
    """Return what the cluster has too few of for a phase to go on; None where it is not for want of that."""
    wanted = sum(place.workers for place in worker_pools.values() if place.where == GPUS)
    executor = find_current() if wanted else None
    there = executor.count("GPU") if executor else wanted
    return f"GPUs ({there:.0f} of {wanted} are there)" if there < wanted else None


def name_bottleneck(busy: Mapping[str, float], worker_pools: WorkerPools) -> str | None:
    """Return the stage that holds the others up; None before anything was measured.

    ``busy``: seconds per worker of every stage, or their share of the time. Stages that take turns on the
    same workers hold each other up, so the busiest workers count, and of their stages the longest.
    """
    pools = [
        {stage: value for stage, value in busy.items() if worker_pools[stage].where == where}
        for where in (CPUS, SCORERS)
    ]
    busiest = max(pools, key=lambda pool: sum(pool.values()))
    return max(busiest, key=busiest.__getitem__, default=None)
