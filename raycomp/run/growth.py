"""The number of scorers and CPUs of a phase over time, on an elastic cluster."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from raycomp.run.progress import GPUS
from raycomp.run.stage import CPUS, SCORERS

_EVERY_S = 2.0


class There(NamedTuple):
    """The number of both from a given second on."""

    since_s: float
    scorers: int
    cpus: int


class Growth:
    """Count both every few seconds. Used as a context, whose end stops the counting thread."""

    def __init__(self, count: Callable[[], tuple[int, int]], every_s: float = _EVERY_S):
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
                self._note(*self.count())
            self.ended.wait(self.every_s)

    def _note(self, scorers: int, cpus: int) -> None:
        with self.lock:
            if (scorers, cpus) != self.steps[-1][1:]:
                self.steps.append(There(time.monotonic() - self.started, scorers, cpus))

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
