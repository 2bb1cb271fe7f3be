"""What a run reports: events, a bar or lines, the number of workers over time; busy shares; rows left out.

Rows are counted by status, as words.py lists them, and bad ones are limited. These are not bad: a duplicate,
a removed row, a test sample that is left out because a model was trained on it, a caption without a
primitive. Rows that a subset leaves out are not counted.
"""

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TextIO

import pyarrow as pa
from tqdm import tqdm

from raycomp import words
from raycomp.config import LeaseLost, TooMuchBadData, UserError, exact_share
from raycomp.data.files import Folder, resolve
from raycomp.data.reader import Shards, explain_faults
from raycomp.run.executor import (
    CPUS,
    GPU_KIND,
    GPUS,
    RESIZED_BY,
    SCORERS,
    Silent,
    Stats,
    There,
    WorkerPool,
    find_current,
)


def _shows_bars(stream: TextIO) -> bool:
    """Whether the stream is a terminal that has a width, or a notebook; else progress is lines."""
    if not is_notebook() and stream.isatty():
        with suppress(OSError, ValueError):  # a stream without a descriptor
            return os.get_terminal_size(stream.fileno()).columns > 0
        return True
    return is_notebook()


def is_notebook() -> bool:
    """Whether IPython runs here with a kernel; in a terminal it has none. Imports nothing."""
    ipython = sys.modules.get("IPython")
    find_shell = getattr(ipython, "get_ipython", None)
    return find_shell is not None and hasattr(find_shell(), "kernel")


EVENTS = ("logs", "events.jsonl")
_events = logging.getLogger("raycomp.events")
_events.setLevel(logging.INFO)
_events.propagate = False  # a configured root logger must not print events on a terminal
_runs: list[tuple[dict[str, str], logging.Handler]] = []
# A lost head loses the messages of this long at most.
_UPLOAD_S = 60.0


class _LogFile(logging.FileHandler):
    """A file that is created by the first message. Messages that a full disk rejects are lost."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the error: the run itself fails on the same disk."""


@contextmanager
def open_log(out: Folder, names: tuple[str, ...], check: Callable[[], None]) -> Iterator[logging.Handler]:
    """Append to a file of a folder.

    A store's objects cannot be appended to: there the whole file is written each minute that adds messages,
    and at the end, unless ``check`` raises LeaseLost.
    """
    if out.is_local:
        with closing(_LogFile(Path(resolve(out.at(*names))[1]), delay=True)) as file:
            yield file
        return
    before: bytes | None = None
    uploaded = 0

    def upload() -> None:
        """Write what earlier starts and this one logged, in whole lines, unless nothing was added.

        A failed upload is repeated with the next; a run that fails by the same error reports it.
        """
        nonlocal before, uploaded
        with file.lock or nullcontext():
            added = path.read_bytes() if path.exists() else b""
        if len(added) == uploaded:
            return
        with suppress(OSError, LeaseLost):
            check()
            if before is None:
                before = out.read_bytes(*names) if out.exists(*names) else b""
            out.write_bytes(before + added, *names)
            uploaded = len(added)

    def keep_uploading() -> None:
        while not ended.wait(_UPLOAD_S):
            upload()

    with tempfile.TemporaryDirectory() as temporary:
        path, ended = Path(temporary, names[-1]), threading.Event()
        file = _LogFile(path, delay=True)
        uploader = threading.Thread(target=keep_uploading, name=f"upload {names[-1]}", daemon=True)
        uploader.start()
        try:
            yield file
        finally:
            ended.set()
            uploader.join()
            file.close()
            upload()


class _AsJson(logging.Formatter):
    """One JSON line per event: UTC time, run id, event name and facts."""

    def __init__(self, run: str):
        super().__init__()
        self.run = run

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", {})
        return json.dumps({"time": when, "run": self.run, "event": record.getMessage(), **facts})


@contextmanager
def keep_events(out: Folder, run: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Write the block's events to the folder of the run with this id; an inner run has its own file."""
    with open_log(out, EVENTS, check) as file:
        file.setFormatter(_AsJson(run))
        for _, outer in _runs[-1:]:
            _events.removeHandler(outer)
        _runs.append(({"run": run, "out": out.uri}, file))
        _events.addHandler(file)
        try:
            yield
        finally:
            _events.removeHandler(file)
            _runs.pop()
            for _, outer in _runs[-1:]:
                _events.addHandler(outer)


def log_event(event: str, **facts: Any) -> None:
    """Log an event of the current run, with facts that json can hold.

    The logger is ``raycomp.events``, the level INFO; the record's attribute ``facts`` holds the facts.
    """
    _events.info(event, extra={"facts": facts})


def name_run() -> dict[str, str]:
    """Return the id (``run``) and the folder (``out``) of the current run; empty outside of a run."""
    return _runs[-1][0] if _runs else {"run": "", "out": ""}


_BAR = "{desc}: {percentage:3.0f}%|{bar:10}| {n_fmt} of {total_fmt} {unit}s [{elapsed}<{remaining}{postfix}]"
_BAR_EVERY_S = 0.5
# A phase that ends sooner draws no bar.
_BAR_AFTER_S = 1.0
_LINE_EVERY_S = 30.0
# In a log, a phase that took longer has a line at its end.
_SAID_AFTER_S = 3.0
# Ray's nodes drop a gauge that was not set for 20 s.
_GAUGES_EVERY_S = 5.0
_END_S = 5.0
# A block may take this long without a fault.
_IDLE_S = 20.0


WorkerPools = Mapping[str, WorkerPool]
"""Stage -> its worker pool, in the order of the work."""


class _Bar(tqdm):
    monitor_interval = 0  # without tqdm's own thread, which never ends


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
        advice: str = "",
    ):
        self.phase, self.unit, self.worker_pools, self.advice = phase, unit, worker_pools or {}, advice
        self.num_shards, self.num_rows = num_shards, num_rows
        self.rows = self.shards = self.started_at = 0
        self.seconds: dict[str, float] = {}
        self.started = self.status_at = time.monotonic()
        self.stream: TextIO = sys.stderr
        self.shows_bar = _shows_bars(self.stream)
        self.bar: _Bar | None = None
        self.every_s = every_s or (_BAR_EVERY_S if self.shows_bar else _LINE_EVERY_S)
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
        name = f"progress of {phase}"
        self.reporter = threading.Thread(target=self._keep_reporting, name=name, daemon=True)
        self.reporter.start()

    @classmethod
    def forget(cls) -> None:
        """Reset the log timer between runs: an earlier run in this process does not count."""
        cls._reported_at = None

    def _measure(self) -> tuple[int, int, str]:
        """Return the amount done, the total and the unit: rows where their number is known."""
        if self.num_rows:
            return self.rows, self.num_rows, "row"
        return self.shards, self.num_shards, self.unit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """End the thread, close the bar, and report the end where lines were printed."""
        self.ended.set()
        self.open.remove(self)
        self.reporter.join(_END_S)  # a cluster that is down may block it
        if self.bar is not None and self.num_rows and error is None:  # it may be an estimate
            self.bar.total = self.rows
        spent = time.monotonic() - self.started
        if self.bar is not None or (self.has_reported and error is not None):
            self.report()
        elif error is None and spent > _SAID_AFTER_S and not self.shows_bar:
            done, noun = (self.rows, "row") if self.rows else (self.shards - self.started_at, self.unit)
            self._write(f"{done:,} {noun}{'s' * (done != 1)} in {spent:,.0f} s", say_rate(done, noun, spent))
        log_event("phase_end", **self._facts(spent))
        if self.bar is not None:
            self.bar.close()

    def add(self, rows: int, seconds: Mapping[str, float], statuses: Mapping[str, int] | None = None) -> None:
        """Count a part's rows, by status where that is known, and the seconds of each stage."""
        with self.counts:
            self.rows += rows
            self.status_at = time.monotonic()
            for stage, value in seconds.items():
                self.seconds[stage] = self.seconds.get(stage, 0.0) + value
                where = self.worker_pools[stage].where
                self.meter.add("raycomp_busy_seconds", value, stage=stage, where=where)
        for status, num in (statuses or {}).items():
            self.meter.add("raycomp_rows", num, status=status)

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
        pause = _BAR_AFTER_S if self.shows_bar else 0.0
        while not self.ended.wait(pause):
            is_inner = self.open[-1:] == [self]
            if is_inner and self.shows_bar and self.bar is None:
                _, total, noun = self._measure()
                how = {"file": self.stream, "bar_format": _BAR, "leave": self.open == [self]}
                self.bar = _Bar(desc=self.phase, total=total, unit=noun, **how)
                self.bar.start_t -= time.monotonic() - self.started
            if is_inner and (self.shows_bar or not self._name_pause()):
                self.report()
            self._put_gauges()
            pause = min(self._name_pause(), _GAUGES_EVERY_S)

    def _put_gauges(self) -> None:
        self.meter.put("raycomp_planned", self.num_shards, unit=self.unit)
        self.meter.put("raycomp_done", self.shards, unit=self.unit)
        for stage, place in self.worker_pools.items():
            self.meter.put("raycomp_workers", place.workers, stage=stage, where=place.where)
        what, idle_s = self._describe_wait()
        if what:
            self.meter.put("raycomp_waiting_seconds", idle_s, what=what)

    def _name_pause(self) -> float:
        """Return the seconds until the next line, or until the bar is redrawn."""
        if self.shows_bar or self.open[-1:] != [self]:
            return self.every_s
        return max(0.0, (Progress._reported_at or 0.0) + self.every_s - time.monotonic())

    def report(self) -> None:
        """Draw the bar, or write a line."""
        spent = max(1e-9, time.monotonic() - self.started)
        wait = self.name_wait()
        with self.counts:
            done, total, _ = self._measure()
            speed = say_rate(self.rows, "row", spent)
            count = f"{self.unit} {self.shards:,} of {self.num_shards:,}"
            rows = f"{self.rows:,} rows" if self.rows else ""
        if self.advice and spent >= _LINE_EVERY_S and 0 < self.rows < 2 * spent:
            tqdm.write(f"{self.phase}: {self.advice}", file=self.stream)
            self.advice = ""
        if self.bar is not None:
            self.bar.n = done
            wait = wait if done else wait.rpartition(" for ")[0]  # the bar has the seconds
            shown = ("" if self.num_rows else rows, speed, wait)
            self.bar.set_postfix_str(", ".join(filter(None, shown)), refresh=False)
            self.bar.refresh()
        else:
            left, own = "time left unknown", done - self.started_at
            if own > 0:
                left = f"{_Bar.format_interval(spent * (total - done) / own)} left"
            log_event("progress", **self._facts(spent), waits=wait)
            self._write(count, rows, speed, left, wait)

    def _write(self, *facts: str) -> None:
        with suppress(OSError, ValueError):  # the output is closed; the work continues
            self.stream.write(f"{self.phase}: {', '.join(filter(None, facts))}\n")
            self.stream.flush()
        self.has_reported, Progress._reported_at = True, time.monotonic()

    def name_wait(self) -> str:
        """Return the bottleneck stage or, without progress, the cause of the wait."""
        what, idle_s = self._describe_wait()
        if what:
            loads = what.startswith("the model")
            return f"{'loading' if loads else 'waiting for'} {what} for {idle_s:,.0f} s"
        with self.counts:
            busy = {stage: s / self.worker_pools[stage].workers for stage, s in self.seconds.items()}
        slowest = name_bottleneck(busy, self.worker_pools)
        return f"bottleneck {slowest}" if slowest else ""

    def _describe_wait(self) -> tuple[str | None, float]:
        """Return the cause of the wait (None where blocks arrive), and the seconds without a block."""
        with self.counts:
            idle_s = time.monotonic() - self.status_at
            which = "next" if self.rows or self.shards > self.started_at else "first"
        if idle_s < _IDLE_S and which == "next":
            return None, idle_s
        scores = any(pool.where == SCORERS for pool in self.worker_pools.values())
        what = f"the {which} {'rows' if self.worker_pools else self.unit}"
        if which == "first" and (scores or self.unit == "step"):
            what = f"the model and first {'rows' if scores else 'batch'}"
        return _name_lack(self.worker_pools) or what, idle_s

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


def say_rate(done: int, noun: str, seconds: float) -> str:
    """Return "9 rows/s", with a decimal below 2; "" below 0.05."""
    rate = done / max(1e-9, seconds)
    return f"{rate:,.{0 if rate >= 2 else 1}f} {noun}s/s" if rate >= 0.05 else ""


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


class Growth:
    """Count both every few seconds. Used as a context, whose end stops the counting thread."""

    def __init__(self, count: Callable[[], tuple[int, int]], every_s: float = 2.0):
        self.count, self.every_s = count, every_s
        self.started = time.monotonic()
        self.steps = [There(0.0, 0, 0)]
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.counter = threading.Thread(target=self._count_on, name="growth", daemon=True)

    def __enter__(self) -> Self:
        self.counter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()

    def _count_on(self) -> None:
        while not self.ended.is_set():
            with suppress(ConnectionError):  # the driver reports it where it waits for the cluster
                counted = self.count()
                with self.lock:
                    if counted != self.steps[-1][1:]:
                        self.steps.append(There(time.monotonic() - self.started, *counted))
            self.ended.wait(self.every_s)

    def take(self) -> list[There]:
        """Return the counts since the last call: the initial state, then every change, in seconds."""
        with self.lock:
            now = time.monotonic()
            taken, last = self.steps, self.steps[-1]
            self.steps, self.started = [There(0.0, last.scorers, last.cpus)], now
            return taken


def average(steps: Sequence[There], wall_s: float, most: There) -> Mapping[str, float]:
    """Return the average share of the maximum, 0 to 1, by resource: cpus, scorers or gpus."""
    ends = [*(step.since_s for step in steps[1:]), wall_s]
    spans = [(max(0.0, end - step.since_s), step) for step, end in zip(steps, ends, strict=True)]
    spent = max(1e-9, wall_s)
    scorers = sum(span * step.scorers for span, step in spans) / spent / max(1, most.scorers)
    cpus = sum(span * step.cpus for span, step in spans) / spent / max(1, most.cpus)
    return {SCORERS: min(1.0, scorers), GPUS: min(1.0, scorers), CPUS: min(1.0, cpus)}


def describe_phases(stats: dict[str, Stats]) -> list[dict[str, Any]]:
    """Return the wall time, the busy share of scorers (and their GPUs) and the bottleneck of every phase.

    Shares are of the wall time, 0 to 1; ``work.py`` defines it after a restart. ``growth``, on an elastic
    cluster: [second of the wall time, scorers, CPUs] at every change. ``gpu_rows``, where a run may have
    GPUs of several kinds: the rows that each kind computed; ``resized_by``: by what resized their pictures.
    """
    phases = []
    for name, part in stats.items():
        shares = part.busy_shares()
        on_scorers, on_gpus = (
            [share for stage, share in shares.items() if part.worker_pools[stage].where == where]
            for where in (SCORERS, GPUS)
        )
        phases.append(
            {
                "phase": name,
                "rows": part.statuses.total(),
                "wall_s": part.wall_s,
                "commit_s": part.commit_s,
                "commit_share": part.commit_s / part.wall_s if part.wall_s else 0.0,
                **({"scorer_busy_share": min(1.0, sum(on_scorers))} if on_scorers else {}),
                **({"gpu_busy_share": sum(on_gpus)} if on_gpus else {}),
                **({"gpu_rows": dict(part.counts[GPU_KIND])} if GPU_KIND in part.counts else {}),
                **({RESIZED_BY: dict(part.counts[RESIZED_BY])} if RESIZED_BY in part.counts else {}),
                **({"growth": [list(step) for step in part.growth]} if part.growth else {}),
                "bottleneck": name_bottleneck(shares, part.worker_pools),
            }
        )
    return phases


def describe_stages(stats: dict[str, Stats]) -> list[dict[str, Any]]:
    """Return rows, busy seconds (of all workers), maximum workers and busy share of every stage.

    ``rows_per_s`` is the throughput of one worker while it is busy. After a restart with other workers,
    ``busy_share`` uses each attempt's workers, ``workers`` the last one's.
    """
    rows = []
    for phase, part in stats.items():
        shares, num_rows = part.busy_shares(), part.statuses.total()
        for stage, place in part.worker_pools.items():
            if stage not in shares or place.where == GPUS:
                continue
            seconds = part.seconds[stage]
            rows.append(
                {
                    "phase": phase,
                    "stage": stage,
                    "rows": num_rows,
                    "seconds": seconds,
                    "workers": place.workers,
                    "busy_share": shares[stage],
                    "rows_per_s": num_rows / seconds if seconds else None,
                    "says": place.says,
                }
            )
    return rows


# Sound samples that cannot be used.
_UNUSED = (words.CONTAMINATED, words.NO_PRIMITIVE, words.NOT_DOWNLOADED)
Counts = Mapping[str, int]
Names = Callable[[], Sequence[str]]
_MEANINGS = {**words.STATUSES, **words.CONTINUAL_STATUSES, **words.PICTURE_STATUSES}


class NoneUsable(UserError):
    """No row of the input can be used, so no result of it is worth keeping."""


def list_counts(counts: Mapping[str, int]) -> str:
    """Return counts by status as words: "2 corrupt_image, 1 no_image"."""
    return ", ".join(f"{count:,} {status}" for status, count in counts.items())


def check_bad_rows(
    said: str, counts: Counts, most_bad: float, what: str = "rows", shards: Shards = (), names: Names = list
) -> None:
    """Raise NoneUsable where all rows are bad, TooMuchBadData where the bad share exceeds ``most_bad``.

    ``said``: the input, as errors name it; ``names()``: those of its ``shards`` that are lost, limited alike.
    """
    num_rows, bad = _count_rows(counts), _count_bad(counts)
    sound = {status: counts[status] for status in _UNUSED if counts.get(status)}
    if sum(bad.values()) == num_rows - sum(sound.values()):
        reasons = f"({list_counts(bad | sound) or 'no rows'}){_explain(bad | sound)}{explain_faults(shards)}"
        raise NoneUsable(f"{said}: none of {num_rows:,} {what} can be used {reasons}")
    _refuse(said, bad, num_rows, what, "max_bad_fraction", most_bad, shards)
    lost = {status: counts[status] for status in words.SHARD_STATUSES if shards and counts.get(status)}
    if sum(lost.values()) > exact_share(most_bad, len(shards)):
        there = names()
        raise TooMuchBadData(
            f"{said}: {sum(lost.values()):,} of {len(shards):,} shards cannot be read to their end "
            f"({list_counts(lost)}), such as {', '.join(there[:5])}; more than max_bad_fraction={most_bad}: "
            f"restore them, or set a higher limit{explain_faults([s for s in shards if s.name in there])}"
        )


def _explain(bad: Iterable[str]) -> str:
    return "".join(f"; {status}: {_MEANINGS[status]}" for status in bad if status in _MEANINGS)


def check_bad_pictures(
    said: str, counts: Mapping[str, int], most_bad: float, most_missing: float, what: str = "images"
) -> None:
    """Raise TooMuchBadData where more than the share ``most_missing`` of the pictures is missing, or more
    than the share ``most_bad`` of the present ones is bad."""
    missing = {status: counts[status] for status in words.MISSING_STATUSES if counts.get(status)}
    there = {status: count for status, count in counts.items() if status not in words.MISSING_STATUSES}
    _refuse(said, missing, sum(counts.values()), what, "max_missing_fraction", most_missing)
    what = f"present {what}"
    _refuse(said, _count_bad(there), sum(there.values()), what, "max_bad_fraction", most_bad)


def describe_dropped(
    said: str,
    counts: Mapping[str, int],
    what: str = "rows",
    examples: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Return a warning for every status whose rows are left out, duplicates included.

    ``examples``: for each status the names of such rows, as ``note_examples`` keeps them. Values that are no
    status, such as the reason of a gate, get no line.
    """
    num_rows, lines = _count_rows(counts), []
    for status, count in sorted(counts.items()):
        if not count or status in words.ALIGNED_STATUSES or status not in _MEANINGS:
            continue
        verb = "is" if count == 1 else "are"
        of = "the shards" if status in words.SHARD_STATUSES else f"{num_rows:,} {what}"
        names = (examples or {}).get(status, ())
        example = f", such as {', '.join(names)}" if names else ""
        lines.append(f"{said}: {count:,} of {of} {verb} {status} ({_MEANINGS[status]}){example}; left out")
    return lines


def note_examples(examples: dict[str, list[str]], named: Iterable[tuple[str, str]]) -> None:
    """Keep the first ten names of each status; ``named`` has pairs of status and name, in order."""
    for status, name in named:
        known = examples.setdefault(status, [])
        if len(known) < _MOST_EXAMPLES:
            known.append(name)


def name_dropped(table: pa.Table, reasons: Iterable[str]) -> dict[str, list[str]]:
    """Return the names, such as "00000.tar/a.jpg", of the first rows of each status that is left out."""
    left = {*_MEANINGS} - {*words.ALIGNED_STATUSES, words.REMOVED}
    rows = {row: reason for row, reason in enumerate(reasons) if reason in left}
    places = table.select([words.SHARD, words.KEY]).take(pa.array(rows, pa.int64())).to_pylist()
    found: dict[str, list[str]] = {}
    for reason, place in zip(rows.values(), places, strict=True):
        note_examples(found, [(reason, "/".join(filter(None, place.values())))])
    return found


def _count_rows(counts: Mapping[str, int]) -> int:
    return sum(counts.values()) - counts.get(words.NOT_IN_SUBSET, 0)


def _count_bad(counts: Mapping[str, int]) -> dict[str, int]:
    sound = {*words.ALIGNED_STATUSES, *_UNUSED, words.DUPLICATE_UID, words.REMOVED}
    sound |= {words.NOT_IN_SUBSET, words.HELD_OUT}
    return {status: count for status, count in sorted(counts.items()) if count and status not in sound}


def _refuse(
    said: str, bad: Mapping[str, int], num_rows: int, what: str, option: str, most: float, shards: Shards = ()
) -> None:
    """Raise TooMuchBadData where the share of bad rows exceeds what the option allows."""
    num_bad = sum(bad.values())
    if num_bad > exact_share(most, num_rows):
        raise TooMuchBadData(
            f"{said}: {num_bad / num_rows:.1%} of {num_rows:,} {what} cannot be used ({list_counts(bad)}), "
            f"more than {option}={most}; repair them, or set a higher limit"
            f"{_explain(bad)}{explain_faults(shards)}"
        )


_MOST_EXAMPLES = 10
