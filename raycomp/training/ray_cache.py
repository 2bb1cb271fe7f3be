"""The shard cache: each shard is read once for all ranks, and cut by rank, so that a node gets the pairs of
its own ranks alone.

Without torch: neither the cache nor the tasks that read shards need it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from raycomp.core.epochs import EpochPlan
from raycomp.data.parquet import read_columns
from raycomp.data.paths import count_bytes
from raycomp.data.retries import TASK_RETRIES
from raycomp.training.feed import cut_shard
from raycomp.training.pairs import load_shard
from raycomp.training.training import ShardSource

_LOADER: dict[str, Any] = {"scheduling_strategy": "SPREAD", **TASK_RETRIES}
# Tasks of one rank run in parallel, so their steps arrive out of order, rarely further apart than this.
# The shards of a step that arrives even later are read again.
_APART = 16
# Share of the cluster's object store for pairs that are loaded in advance.
_SHARE = 0.3
# Files whose size is asked for to estimate the size of all.
_SIZED = 64


class ShardCache:
    """An actor of the first rank. Holds the pairs of windows in Ray's object store, cut by rank: those of the
    windows that a rank may still need, of the next one, and of more while they fit into ``most_bytes``.

    If all shards fit into half of that, they are read once for all epochs.
    """

    def __init__(
        self,
        source: list[Any],
        plan: EpochPlan,
        num_steps: int,
        num_ranks: int = 1,
        bytes_per_row: float = 0,
        most_bytes: float = 0,
        cpus: float = 1.0,
    ):
        """``source`` holds a reference to the ShardSource, in a list so that Ray does not fetch it here.
        ``bytes_per_row``: the size of a pair, about. Loading a shard takes half of ``cpus``."""
        (self.source,) = source
        self.plan, self.end, self.num_ranks = plan, plan.windows_of(num_steps - 1).stop, num_ranks
        self.bytes_per_row, self.most_bytes = bytes_per_row, most_bytes
        self.steps: dict[int, int] = {}
        self.held: dict[int, dict[int, Sequence[Any]]] = {}
        """The references to a shard's pairs, one for each rank, by window and shard."""
        is_small = 0 < 2 * bytes_per_row * sum(plan.rows_S) <= most_bytes
        self.whole: dict[int, Any] | None = {} if is_small else None
        """All shards that were read, if they are kept."""
        self.load = ray.remote(num_cpus=cpus / 2, **_LOADER)(_load)
        self.cut = ray.remote(num_cpus=cpus / 2)(_cut)
        self.load_and_cut = ray.remote(num_cpus=cpus / 2, **_LOADER)(_load_and_cut)

    def take(self, step: int, rank: int) -> dict[int, Any]:
        """Return references to the rank's pairs that a step may need, by number of their shard."""
        windows = self.plan.windows_of(step)
        for window in range(windows.start, self.end):
            if window not in self.held:
                if window > windows.stop and not self._fits(window):
                    break
                self.held[window] = self._hold(window)
        taken = {shard: parts[rank] for window in windows for shard, parts in self.held[window].items()}
        self.steps[rank] = max(step, self.steps.get(rank, 0))
        first = self.plan.windows_of(max(0, min(self.steps.values()) - _APART)).start
        self.held = {window: tables for window, tables in self.held.items() if window >= first}
        return taken

    def _fits(self, window: int) -> bool:
        """Whether there is memory for one more window."""
        return sum(map(self._size, {*self.held, window})) <= self.most_bytes

    def _size(self, window: int) -> float:
        return self.bytes_per_row * sum(self.plan.rows_S[shard] for shard in self.plan.shards_of(window))

    def _hold(self, window: int) -> dict[int, Sequence[Any]]:
        """Start to load a window; return the references to come."""
        shard_n, row_n, rank_n = self.plan.rows_of(window, self.num_ranks)
        found: dict[int, Sequence[Any]] = {}
        for shard in self.plan.shards_of(window):
            is_own = shard_n == shard
            rows = [row_n[is_own & (rank_n == rank)] for rank in range(self.num_ranks)]
            if self.whole is None:
                load = self.load_and_cut.options(num_returns=self.num_ranks)
                parts: Any = load.remote(self.source, shard, rows)
            else:
                if shard not in self.whole:
                    self.whole[shard] = self.load.remote(self.source, shard)
                parts = self.cut.options(num_returns=self.num_ranks).remote(self.whole[shard], rows)
            found[shard] = [parts] if self.num_ranks == 1 else parts
        return found


def start_cache(source: Any, plan: EpochPlan, num_steps: int, num_ranks: int, cpus: float) -> Any:
    """Start the actor that holds the pairs of a ShardSource, given by a reference, for the ranks."""
    most_bytes = _SHARE * ray.cluster_resources().get("object_store_memory", 0.0)
    found = ray.get(source)
    bytes_per_row = estimate_row(found, plan)
    cache = ray.remote(num_cpus=0)(ShardCache)
    return cache.remote([source], plan, num_steps, num_ranks, bytes_per_row, most_bytes, cpus)


def estimate_row(source: ShardSource, plan: EpochPlan) -> float:
    """Return the bytes of a pair, from the sizes of some shards: at most those that a pair has there."""
    shards = source.pairs.shards
    chosen = range(0, len(shards), -(-len(shards) // _SIZED))
    num_rows = sum(plan.rows_S[shard] for shard in chosen)
    return count_bytes(shards[shard] for shard in chosen) / max(1, num_rows)


def _load(source: ShardSource, shard: int) -> pa.Table:
    return load_shard(source.pairs, shard, read_columns(source.index[shard]))


def _cut(table: pa.Table, rows: Sequence[np.ndarray]) -> list[pa.Table] | pa.Table:
    """Return a table for each rank; of one rank the table itself, as Ray wants it."""
    parts = cut_shard(table, rows)
    return parts[0] if len(parts) == 1 else parts


def _load_and_cut(source: ShardSource, shard: int, rows: Sequence[np.ndarray]) -> list[pa.Table] | pa.Table:
    return _cut(_load(source, shard), rows)
