"""The order of rows: every row once an epoch, the same from any step on, near in storage."""

from collections import Counter

import numpy as np
import pytest

from raycomp.core.batches import EpochPlan, locate_rows, slice_of

ROWS = (5, 0, 7, 3, 9, 1, 6)  # 31 rows


def rows(plan: EpochPlan, steps: range) -> list[tuple[int, int]]:
    return [pair for step in steps for pair in zip(*map(np.ndarray.tolist, plan.batch(step)), strict=True)]


def test_every_row_comes_once_an_epoch_but_for_a_rest():
    for window in [1, 2, 3, 100]:
        for batch_size in [1, 4, 31]:
            plan = EpochPlan(ROWS, batch_size, window, seed=0)
            everything = {(shard, row) for shard, count in enumerate(ROWS) for row in range(count)}
            left_out = Counter()
            for epoch in range(30):
                found = rows(plan, range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch))
                assert (
                    len(found) == len(set(found)) == 31 // batch_size * batch_size
                    and set(found) <= everything
                )
                left_out.update(everything - set(found))
            assert (len(left_out) > 15) == (31 % batch_size > 0)


def test_a_batch_is_that_of_its_step_alone():
    forward = [rows(EpochPlan(ROWS, 4, 2, seed=1), range(step, step + 1)) for step in range(20)]
    backward = [rows(EpochPlan(ROWS, 4, 2, seed=1), range(step, step + 1)) for step in reversed(range(20))]
    assert forward == backward[::-1]
    assert len({tuple(batch) for batch in forward}) == 20
    assert forward[0] != rows(EpochPlan(ROWS, 4, 2, seed=2), range(1))
    with pytest.raises(ValueError, match=r"train\.batch_size=32: must be at most the 31 available pairs"):
        EpochPlan(ROWS, 32, 1, 0)


def test_a_shard_is_read_within_its_window_and_windows_are_drawn_anew():
    plan = EpochPlan((10,) * 12, 10, 3, seed=0)
    windows = []
    for epoch in range(2):
        found = [shard for shard, _ in rows(plan, range(epoch * 12, epoch * 12 + 12))]
        parts = [found[start : start + 30] for start in range(0, 120, 30)]
        assert all(Counter(part) == dict.fromkeys(part, 10) for part in parts)
        assert all(part != sorted(part, key=part.index) for part in parts)  # shuffled, not one by one
        windows.append([frozenset(part) for part in parts])
    assert set(windows[0]) != set(windows[1])


def test_a_step_names_the_windows_that_its_rows_lie_in():
    for batch_size in [1, 4, 31]:
        plan = EpochPlan(ROWS, batch_size, 2, seed=0)
        for step in range(3 * plan.steps_per_epoch):
            shards = {shard for window in plan.windows_of(step) for shard in plan.shards_of(window)}
            assert {shard for shard, _ in rows(plan, range(step, step + 1))} <= shards == plan.shards(step)
        assert sorted(shard for window in range(4) for shard in plan.shards_of(4 + window)) == list(range(7))
        assert plan.windows_of(plan.steps_per_epoch)[0] >= 4


def test_every_copy_of_a_sample_has_a_row():
    rows_N = np.random.default_rng(0).integers(1, 5, 40)
    oracle = [(sample, copy) for sample, times in enumerate(rows_N) for copy in range(times)]
    row_R = np.random.default_rng(1).permutation(len(oracle))
    first_N = rows_N.cumsum() - rows_N
    sample_R, copy_R = locate_rows(first_N, row_R)
    assert list(zip(sample_R.tolist(), copy_R.tolist(), strict=True)) == [oracle[row] for row in row_R]
    some_R = row_R[:9]
    held_M = np.unique(sample_R[:9])
    part_R, copy_R = locate_rows(first_N[held_M], some_R)
    found = list(zip(held_M[part_R].tolist(), copy_R.tolist(), strict=True))
    assert found == [oracle[row] for row in some_R]


def test_the_rows_of_windows_are_those_of_the_ranks_batches():
    for num_ranks in [1, 2, 3]:
        for window in [1, 3, 100]:
            plan = EpochPlan(ROWS, 4, window, seed=0)
            wanted = Counter()
            for step in range(2 * plan.steps_per_epoch):
                shard_B, row_B = plan.batch(step)
                for rank in range(num_ranks):
                    own = slice_of(rank, num_ranks, 4)
                    rows = zip(shard_B[own].tolist(), row_B[own].tolist(), strict=True)
                    wanted.update((rank, *row) for row in rows)
            windows = 2 * -(-len(ROWS) // window)
            parts = [np.stack(plan.rows_of(number, num_ranks)) for number in range(windows)]
            found = Counter(
                (rank, shard, row) for part in parts for shard, row, rank in part.T.tolist() if rank >= 0
            )
            assert found == wanted
