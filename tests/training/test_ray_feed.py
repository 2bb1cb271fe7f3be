"""What holds shards for the ranks, and what carries their batches; neither needs a cluster."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.core.batches import EpochPlan, slice_of
from raycomp.training.ray_feed import ShardCache, cut_shard, from_table, to_table
from raycomp.words import FIRST_ROW, UID


class Loader:
    """Counts what is loaded; a rank's part of a shard is the number of its load with its rows."""

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.num_ranks = 1

    def options(self, num_returns: int) -> "Loader":
        self.num_ranks = num_returns
        return self

    def remote(self, source: object, shard: int, rows: list[np.ndarray]) -> Any:
        self.loaded.append(shard)
        parts = [(len(self.loaded), set(row_R.tolist())) for row_R in rows]
        return parts if self.num_ranks > 1 else parts[0]


def put_up(plan: EpochPlan, num_steps: int, **options: float) -> tuple[ShardCache, Loader]:
    cache = ShardCache([object()], plan, num_steps, **options)
    cache.load_and_cut = loader = Loader()
    return cache, loader


def check_rows(plan: EpochPlan, cache: ShardCache, step: int, rank: int, num_ranks: int = 1) -> None:
    """A rank gets all of its rows, and rows of no other rank."""
    parts = cache.take(step, rank)
    own = slice_of(rank, num_ranks, plan.batch_size)
    shard_B, row_B = plan.batch(step)
    for shard, row in zip(shard_B[own].tolist(), row_B[own].tolist(), strict=True):
        assert row in parts[shard][1]


def test_a_shard_is_loaded_once_an_epoch_however_far_ranks_are_apart():
    for behind, rows, most_bytes in itertools.product([0, 3, 13], [30, 1000], [0, 1e5]):
        plan = EpochPlan((rows,) * 80, 100, 8, seed=0)
        memory = {"bytes_per_row": 40, "most_bytes": most_bytes}
        cache, loader = put_up(plan, plan.steps_per_epoch, num_ranks=2, **memory)
        for step in range(plan.steps_per_epoch + behind):
            for rank, at in ((0, step), (1, step - behind)):
                if 0 <= at < plan.steps_per_epoch:
                    check_rows(plan, cache, at, rank, 2)
        assert sorted(loader.loaded) == list(range(80))


def test_shards_are_held_while_they_may_be_asked_for_and_within_the_memory():
    """Windows of 8,000 bytes: two of a step or of late tasks and one more are held in any case."""
    for most_bytes, windows in [(0, 3), (8000, 3), (32_000, 4), (56_500, 7)]:
        plan = EpochPlan((1000,) * 80, 100, 8, seed=0)
        cache, loader = put_up(plan, 3 * plan.steps_per_epoch, bytes_per_row=1, most_bytes=most_bytes)
        held = []
        for step in range(3 * plan.steps_per_epoch):
            for shard, (load, _) in cache.take(step, 0).items():
                assert loader.loaded[load - 1] == shard
            held.append(len(cache.held))
        assert max(held) <= windows and len(loader.loaded) == 3 * 80
        assert windows == 3 or min(held[: 2 * plan.steps_per_epoch]) >= windows - 1


def test_shards_that_fit_are_read_once_for_all_epochs():
    plan = EpochPlan((30,) * 6, 10, 2, seed=0)
    cache, _ = put_up(plan, 5 * plan.steps_per_epoch, bytes_per_row=1, most_bytes=360)
    read: list[int] = []
    cache.load = SimpleNamespace(remote=lambda source, shard: read.append(shard) or shard)
    cut = Loader()
    cache.cut = SimpleNamespace(
        options=lambda num_returns: SimpleNamespace(remote=lambda whole, rows: cut.remote(None, whole, rows))
    )
    for step in range(5 * plan.steps_per_epoch):
        check_rows(plan, cache, step, 0)
    assert sorted(read) == list(range(6)) and len(cut.loaded) == 30


def test_of_small_data_and_many_epochs_little_is_loaded_ahead():
    plan = EpochPlan((10,) * 4, 7, 2, seed=0)
    cache, _ = put_up(plan, 100_000, bytes_per_row=1, most_bytes=1e9)
    cache.whole = None
    cache.take(0, 0)
    assert len(cache.held) <= 40


def test_a_task_that_asks_long_after_its_turn_still_has_its_shards():
    for late in [17, 40, 200]:
        plan = EpochPlan((20,) * 16, 32, 8, seed=0)
        cache, _ = put_up(plan, 300)
        for step in range(5, 5 + late):
            cache.take(step, 0)
        for step in (4, 5 + late):
            check_rows(plan, cache, step, 0)


def test_a_shard_is_cut_into_the_samples_of_each_rank():
    """A sample that the subset repeats goes to every rank that has one of its rows."""
    rows_N = np.array([1, 3, 1, 2])
    first_N = rows_N.cumsum() - rows_N
    table = pa.table({FIRST_ROW: first_N, UID: list("abcd")})
    parts = cut_shard(table, [np.array([3, 0]), np.array([2, 4]), np.array([], np.int64), np.array([6, 5])])
    assert [part[UID].to_pylist() for part in parts] == [["a", "b"], ["b", "c"], [], ["d"]]


def test_batches_come_out_as_they_went_in():
    batch = {
        "image": np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3),
        "token": np.arange(21, dtype=np.int32).reshape(3, 7),
        "valid": np.array([[True, False], [False, False], [True, True]]),
        "kind": np.array([[1, 0], [0, 0], [2, 1]], np.int64),
    }
    found = from_table(to_table(batch))
    assert found.keys() == batch.keys()
    for name, value in batch.items():
        assert found[name].dtype == value.dtype and np.array_equal(found[name], value)
