"""Shards on their way to the ranks: each is read once for all of them, and held while any may need it.

Nothing heavy is imported here: neither the shelf nor the tasks that read shards need torch.
"""

from typing import Any

import pyarrow as pa
import ray

from raycomp.core.epochs import EpochPlan
from raycomp.data.parquet import read_columns
from raycomp.data.retries import TASK_RETRIES
from raycomp.train.pairs import load_shard
from raycomp.train.training import ShardSource

_LOADER: dict[str, Any] = {"num_cpus": 0.5, **TASK_RETRIES}
# Tasks of one rank run side by side, so they ask for steps in no strict order, and seldom so far apart: a
# worker that has just begun may ask later still, and its shards are then read again.
_APART = 16


class ShardCache:
    """An actor of the first rank's. Holds shards as tables in Ray's object store: those of the windows that
    a rank may still ask for, and of the one that comes next."""

    def __init__(self, source: list[Any], plan: EpochPlan, num_steps: int):
        """``source`` holds a reference to the stock, which need not be here itself."""
        (self.source,) = source
        self.plan, self.end = plan, plan.windows_of(num_steps - 1).stop
        self.steps: dict[int, int] = {}
        self.held: dict[int, dict[int, Any]] = {}
        self.load = ray.remote(**_LOADER)(_load)

    def take(self, step: int, rank: int) -> dict[int, Any]:
        """Return references to the tables that a step may need, by number of their shard."""
        windows = self.plan.windows_of(step)
        for window in range(windows.start, min(windows.stop + 1, self.end)):
            if window not in self.held:
                there = {shard: table for tables in self.held.values() for shard, table in tables.items()}
                self.held[window] = {
                    shard: there.get(shard) or self.load.remote(self.source, shard)
                    for shard in self.plan.shards_of(window)
                }
        taken = {shard: table for window in windows for shard, table in self.held[window].items()}
        self.steps[rank] = max(step, self.steps.get(rank, 0))
        first = self.plan.windows_of(max(0, min(self.steps.values()) - _APART)).start
        self.held = {window: tables for window, tables in self.held.items() if window >= first}
        return taken


def _load(source: ShardSource, shard: int) -> pa.Table:
    return load_shard(source.pairs, shard, read_columns(source.index[shard]))
