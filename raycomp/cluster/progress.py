"""Progress on a terminal: one line that names rows, speed, time left and the bottleneck."""

import sys
import time
from collections.abc import Mapping
from typing import TextIO

ON_SCORERS = ("image", "text", "attribute", "rank")
"""Stages that take turns on the scorers; all others take turns on the CPUs that scorers leave."""
DEVICE = "device"
"""Stands where a stage does, and is none: seconds that the scorers' GPUs computed."""


class Progress:
    """Count rows and shards of one phase; print a line now and then, nothing where nobody looks."""

    def __init__(self, phase: str, num_shards: int, workers: dict[str, int], unit: str = "shard"):
        self.phase = phase
        self.num_shards = num_shards
        self.workers = workers
        self.unit = unit
        self.stream: TextIO = sys.stderr
        self.is_shown = self.stream.isatty()
        self.started = time.monotonic()
        self.last_shown = 0.0
        self.rows = self.shards = 0
        self.seconds: dict[str, float] = {}

    def add(self, rows: int, seconds: dict[str, float]) -> None:
        """Count a part's rows and the seconds that its stages took."""
        self.rows += rows
        for stage, value in seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + value
        self._show_sometimes()

    def finish_one(self) -> None:
        """Count a shard (or what the unit is) as done."""
        self.shards += 1
        self._show_sometimes()

    def _show_sometimes(self) -> None:
        if self.is_shown and time.monotonic() - self.last_shown > 0.5:
            self.show()

    def show(self, after: str = "") -> None:
        """Print the line over the one before."""
        self.last_shown = time.monotonic()
        spent = self.last_shown - self.started
        share = self.shards / self.num_shards if self.num_shards else 1.0
        left = f"{spent * (1 - share) / share:,.0f} s left" if share else "time left unknown"
        line = f"{self.phase}: {self.unit} {self.shards} of {self.num_shards}, {left}"
        line += f", {self.rows:,} rows, {self.rows / max(spent, 1e-9):,.0f} rows/s" if self.rows else ""
        slowest = name_bottleneck({s: value / self.workers.get(s, 1) for s, value in self.seconds.items()})
        line += f", bottleneck {slowest}" if slowest else ""
        self.stream.write(f"\r\x1b[2K{line}{after}")
        self.stream.flush()

    def finish(self) -> None:
        """End the line."""
        if self.last_shown:
            self.show(after="\n")


def name_bottleneck(busy: Mapping[str, float]) -> str | None:
    """Return the stage that holds the others up; None before anything was measured.

    ``busy``: seconds per worker of every stage, or their share of the time. Stages that take turns on the
    same workers hold each other up, so the busiest workers count, and of their stages the longest.
    """
    pools = [
        {stage: value for stage, value in busy.items() if (stage in ON_SCORERS) is on and stage != DEVICE}
        for on in (True, False)
    ]
    busiest = max(pools, key=lambda pool: sum(pool.values()))
    return max(busiest, key=busiest.__getitem__, default=None)
