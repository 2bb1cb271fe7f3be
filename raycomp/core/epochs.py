"""In which order rows are trained on: of a run's place in it one whole number is all there is to keep.

S shards, B rows of a batch. An epoch takes the shards in an order of its own and shuffles the rows of a few
neighbours, a window, together: a worker then reads each shard once, from its beginning to its end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class EpochPlan:
    """The rows of every global batch, whatever the number of workers."""

    rows_S: tuple[int, ...]
    """Rows of every shard, at least 0."""
    batch_size: int
    """B, the rows of a global batch."""
    window: int
    """Shards whose rows are shuffled together, at least 1."""
    seed: int
    """Draws every epoch's order, at least 0."""

    def __post_init__(self) -> None:
        if self.batch_size > sum(self.rows_S):
            most = f"{sum(self.rows_S):,} pairs there are"
            raise ValueError(f"train.batch_size={self.batch_size}: must be at most the {most}")

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch. The rest, fewer rows than a batch has, is another in every epoch."""
        return sum(self.rows_S) // self.batch_size

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return shards and rows, int64 (B,), of the batch of ``step``: 0 is the first of all epochs."""
        epoch, first, end = self._span(step)
        windows = self._windows(epoch, first, end)
        parts = [_shuffle(self, epoch, shards)[:, low:high] for shards, low, high in windows]
        shard_B, row_B = np.concatenate(parts, 1)
        return shard_B, row_B

    def shards(self, step: int) -> set[int]:
        """Return the shards of the windows that the batch of ``step`` takes rows from."""
        return {shard for shards, *_ in self._windows(*self._span(step)) for shard in shards}

    def _span(self, step: int) -> tuple[int, int, int]:
        """Return the epoch of a step, and from which to which of its rows the batch goes."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        return epoch, batch * self.batch_size, (batch + 1) * self.batch_size

    def _windows(self, epoch: int, first: int, end: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Yield windows of an epoch, and from which to which of its own rows lie in ``first`` to ``end``."""
        shard_S = _draw(self.seed, epoch, 0).permutation(len(self.rows_S))
        place = 0
        for start in range(0, len(shard_S), self.window):
            shards = tuple(shard_S[start : start + self.window].tolist())
            size = sum(self.rows_S[shard] for shard in shards)
            low, high = max(first, place), min(end, place + size)
            if low < high:
                yield shards, low - place, high - place
            place += size


@lru_cache(maxsize=4)
def _shuffle(plan: EpochPlan, epoch: int, shards: tuple[int, ...]) -> np.ndarray:
    """Return the rows of a window in their order, int64 (2, n): shard and row."""
    shard_n = np.repeat(shards, [plan.rows_S[shard] for shard in shards])
    row_n = np.concatenate([np.arange(plan.rows_S[shard]) for shard in shards])
    return np.stack([shard_n, row_n])[:, _draw(plan.seed, epoch, 1 + shards[0]).permutation(len(row_n))]


def slice_of(rank: int, num_ranks: int, batch_size: int) -> slice:
    """Return the rows of a global batch that are a rank's: contiguous, their numbers at most one apart."""
    return slice(rank * batch_size // num_ranks, (rank + 1) * batch_size // num_ranks)


def _draw(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)
