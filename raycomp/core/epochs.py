"""The order of training rows; one whole number is the whole state of a run's position in it.

S shards, B rows of a batch. An epoch orders the shards anew and shuffles the rows of a few neighbouring
shards, a window, together: a worker then reads each shard once, from start to end. ``ahead`` makes items in a
thread before their turn.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The rows of every global batch, for any number of workers. Compared by identity: it is used many times
    and may hold a thousand shards."""

    rows_S: tuple[int, ...]
    """Rows of every shard, at least 0. A repeated sample has several rows, see ``locate_rows``."""
    batch_size: int
    """B, the rows of a global batch."""
    window: int
    """Shards whose rows are shuffled together, at least 1."""
    seed: int
    """Seed of every epoch's order, at least 0."""
    mates_S: tuple[np.ndarray, ...] = ()
    """For each row of each shard, rows of the shard that may follow it, int (n, K), -1 for none."""

    def __post_init__(self) -> None:
        if self.batch_size > sum(self.rows_S):
            most = f"{sum(self.rows_S):,} available pairs; set --batch-size"
            raise ValueError(f"train.batch_size={self.batch_size}: must be at most the {most}")

    @cached_property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch. The remainder, fewer rows than a batch, differs in every epoch."""
        return sum(self.rows_S) // self.batch_size

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return shards and rows, int64 (B,), of the batch of ``step``: 0 is the first of all epochs."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        first, parts = batch * self.batch_size, []
        for window in self.windows_of(step):
            start, end = _bounds(self, epoch)[window % self._windows_per_epoch :][:2]
            low, high = max(first, start), min(first + self.batch_size, end)
            parts.append(_shuffle(self, window)[:, low - start : high - start])
        shard_B, row_B = np.concatenate(parts, 1)
        return shard_B, row_B

    def windows_of(self, step: int) -> range:
        """Return the windows, counted over all epochs, that may hold rows of the batch of ``step``."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        ends = _bounds(self, epoch)[1:]
        first = batch * self.batch_size
        low, high = np.searchsorted(ends, [first, first + self.batch_size - 1], side="right")
        before = epoch * self._windows_per_epoch
        return range(before + int(low), before + int(high) + 1)

    def shards_of(self, window: int) -> tuple[int, ...]:
        """Return the shards of a window, counted over all epochs."""
        epoch, number = divmod(window, self._windows_per_epoch)
        return _order(self, epoch)[number * self.window :][: self.window]

    def shards(self, step: int) -> set[int]:
        """Return the shards of the windows that the batch of ``step`` takes rows from."""
        return {shard for window in self.windows_of(step) for shard in self.shards_of(window)}

    def rows_of(self, window: int, num_ranks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return shard, row and rank of the rows of a window, in the order of training, int64 (n,) each.

        The rank is -1 for rows after the epoch's last batch, which no rank trains on.
        """
        epoch, number = divmod(window, self._windows_per_epoch)
        shard_n, row_n = _shuffle(self, window)
        place_n = int(_bounds(self, epoch)[number]) + np.arange(len(row_n))
        ends = [slice_of(rank, num_ranks, self.batch_size).stop for rank in range(num_ranks)]
        rank_n = np.searchsorted(ends, place_n % self.batch_size, side="right")
        return shard_n, row_n, np.where(place_n < self.steps_per_epoch * self.batch_size, rank_n, -1)

    @property
    def _windows_per_epoch(self) -> int:
        return -(-len(self.rows_S) // self.window)


@lru_cache(maxsize=4)
def _order(plan: EpochPlan, epoch: int) -> tuple[int, ...]:
    """Return the shards in the order of an epoch."""
    return tuple(np.random.default_rng((plan.seed, epoch, 0)).permutation(len(plan.rows_S)).tolist())


@lru_cache(maxsize=4)
def _bounds(plan: EpochPlan, epoch: int) -> np.ndarray:
    """Return the number of an epoch's rows before each window, and the total last."""
    row_S = np.array([plan.rows_S[shard] for shard in _order(plan, epoch)], np.int64)
    sizes = np.add.reduceat(row_S, np.arange(0, len(row_S), plan.window))
    return np.concatenate([[0], sizes.cumsum()])


@lru_cache(maxsize=4)
def _shuffle(plan: EpochPlan, window: int) -> np.ndarray:
    """Return the rows of a window in their order, int64 (2, n): shard and row."""
    shards = plan.shards_of(window)
    sizes = [plan.rows_S[shard] for shard in shards]
    shard_n = np.repeat(shards, sizes)
    row_n = np.concatenate([np.arange(size) for size in sizes])
    draw = np.random.default_rng((plan.seed, window // plan._windows_per_epoch, 1 + shards[0]))
    order_n = draw.permutation(len(row_n))
    if plan.mates_S:
        starts_n = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
        mate_nK = np.concatenate([plan.mates_S[shard] for shard in shards])
        order_n = let_follow(order_n, np.where(mate_nK < 0, -1, mate_nK + starts_n[:, None]), draw)
    return np.stack([shard_n, row_n])[:, order_n]


def let_follow(order_n: np.ndarray, mate_nK: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return an order of n rows in which each is followed by one of its mates, where one is left.

    Rows come in ``order_n``, each with a mate drawn among its own, -1 for none, that has not come yet.
    """
    turn_n = draw.random(len(order_n))
    come_n = np.zeros(len(order_n), bool)
    found: list[int] = []
    for row in order_n.tolist():
        if come_n[row]:
            continue
        come_n[row] = True
        found.append(row)
        left = [mate for mate in mate_nK[row].tolist() if mate >= 0 and not come_n[mate]]
        if left:
            mate = left[int(turn_n[row] * len(left))]
            come_n[mate] = True
            found.append(mate)
    return np.array(found, np.int64)


def locate_rows(first_N: np.ndarray, row_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sample of each row of a shard, int64 (R,), and the index of its copy, from 0.

    ``first_N`` is the first row of each of N samples of the shard, ascending: of all, or of some that have
    the rows. The rows of a sample are adjacent.
    """
    sample_R = np.searchsorted(first_N, row_R, side="right") - 1
    return sample_R, row_R - first_N[sample_R]


def slice_of(rank: int, num_ranks: int, batch_size: int) -> slice:
    """Return the rows of a global batch that belong to a rank: contiguous, counts differ by at most one."""
    return slice(rank * batch_size // num_ranks, (rank + 1) * batch_size // num_ranks)


Item = TypeVar("Item")


def ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yield the items; a thread makes up to ``count`` of them ahead.

    An error of making one comes in its place. Closing the generator ends the thread.
    """
    made, end, waiting = iter(items), object(), deque[Future[Any]]()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        try:
            while True:
                while len(waiting) <= count:
                    waiting.append(pool.submit(next, made, end))
                item = waiting.popleft().result()
                if item is end:
                    return
                yield item
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
