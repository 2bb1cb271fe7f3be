"""What holds shards for the ranks, and what carries their batches; neither needs a cluster."""

import numpy as np
import pytest

from raycomp.core.epochs import EpochPlan
from raycomp.train.ray_cache import ShardCache
from raycomp.train.ray_feed import from_table, to_table


class Loader:
    """Counts what is loaded; a table is the number of its load."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def remote(self, source: object, shard: int) -> int:
        self.loaded.append(shard)
        return len(self.loaded)


def put_up(plan: EpochPlan, num_steps: int) -> tuple[ShardCache, Loader]:
    cache = ShardCache([object()], plan, num_steps)
    cache.load = loader = Loader()
    return cache, loader


@pytest.mark.parametrize("behind", [0, 3, 13])
@pytest.mark.parametrize("rows", [30, 1000])
def test_a_shard_is_loaded_once_an_epoch_however_far_ranks_are_apart(rows, behind):
    plan = EpochPlan((rows,) * 80, 100, 8, seed=0)
    cache, loader = put_up(plan, plan.steps_per_epoch)
    for step in range(plan.steps_per_epoch + behind):
        for rank, at in ((0, step), (1, step - behind)):
            if 0 <= at < plan.steps_per_epoch:
                assert set(plan.batch(at)[0].tolist()) <= set(cache.take(at, rank))
    assert sorted(loader.loaded) == list(range(80))


def test_shards_are_held_while_they_may_be_asked_for_and_no_longer():
    plan = EpochPlan((1000,) * 80, 100, 8, seed=0)
    cache, loader = put_up(plan, 3 * plan.steps_per_epoch)
    held = []
    for step in range(3 * plan.steps_per_epoch):
        for shard, table in cache.take(step, 0).items():
            assert loader.loaded[table - 1] == shard
        held.append(len({shard for tables in cache.held.values() for shard in tables}))
    assert max(held) <= 3 * 8 and len(loader.loaded) <= 3 * 80


@pytest.mark.parametrize("late", [17, 40, 200])
def test_a_task_that_asks_long_after_its_turn_still_has_its_shards(late):
    plan = EpochPlan((20,) * 16, 32, 8, seed=0)
    cache, loader = put_up(plan, 300)
    for step in range(5, 5 + late):
        cache.take(step, 0)
    found = cache.take(4, 0)
    assert set(plan.batch(4)[0].tolist()) <= set(found)
    assert all(loader.loaded[table - 1] == shard for shard, table in found.items())
    assert set(plan.batch(5 + late)[0].tolist()) <= set(cache.take(5 + late, 0))


def test_nothing_is_loaded_for_after_the_last_step():
    plan = EpochPlan((1000,) * 80, 100, 8, seed=0)
    cache, loader = put_up(plan, 1)
    cache.take(0, 0)
    assert len(loader.loaded) == 8


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
