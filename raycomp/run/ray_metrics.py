"""Prometheus metrics of a running phase, through the metrics of its Ray node; docs/grafana.json plots them.

The driver counts, as it receives every finished block. Names here lack what Ray adds: the prefix ``ray_``,
and the suffix ``_total`` of counters.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import ray
from ray.util.metrics import Counter, Gauge, Metric

from raycomp.run.events import name_run


class Kind(NamedTuple):
    """A metric's type, its description, and its labels in addition to the common ones."""

    make: type[Metric]
    says: str
    labels: tuple[str, ...] = ()


LABELS = ("run", "out", "phase")
"""Labels of every metric: the run's id in run.json, its folder, and the phase."""
METRICS = {
    "raycomp_rows": Kind(Counter, "finished rows, by status", ("status",)),
    "raycomp_busy_seconds": Kind(
        Counter, "busy seconds, summed over the workers of a stage", ("stage", "where")
    ),
    "raycomp_workers": Kind(Gauge, "maximum number of workers of a stage", ("stage", "where")),
    "raycomp_done": Kind(Gauge, "finished shards (or another unit)", ("unit",)),
    "raycomp_planned": Kind(Gauge, "planned shards (or another unit)", ("unit",)),
    "raycomp_waiting_seconds": Kind(Gauge, "seconds without progress, by cause", ("what",)),
    "raycomp_waves": Kind(Counter, "committed waves"),
}


@cache
def _make(name: str) -> Metric:
    kind = METRICS[name]
    return kind.make(name, kind.says, (*LABELS, *kind.labels))


class RayMeter:
    """The metrics of one phase. Without a cluster the values are discarded."""

    def __init__(self, phase: str):
        self.labels = {**name_run(), "phase": phase}

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter. Zero is ignored."""
        if value and ray.is_initialized():
            metric = _make(name)
            assert isinstance(metric, Counter), name
            metric.inc(value, self.labels | labels)

    def put(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge, which its node reports for 20 s."""
        if ray.is_initialized():
            metric = _make(name)
            assert isinstance(metric, Gauge), name
            metric.set(value, self.labels | labels)

    def add_rows(self, statuses: Mapping[str, int]) -> None:
        """Count rows by their status."""
        for status, count in statuses.items():
            self.add("raycomp_rows", count, status=status)
