"""The shard cache: each shard is read once for all ranks, and held while any rank may need it.

Without torch: neither the cache nor the tasks that read shards need it.
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
# Tasks of one rank run in parallel, so their steps arrive out of order, rarely further apart than this.
# The shards of a step that arrives even later are read again.
_APART = 16


class ShardCache:
    """An actor of the first rank. Holds shards as tables in Ray's object store: those of the windows that a
    rank may still need, and of the next one."""

    def __init__(self, source: list[Any], plan: EpochPlan, num_steps: int):
        """``source`` holds a reference to the ShardSource, in a list so that Ray does not fetch it here."""
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
