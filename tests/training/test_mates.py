"""Pairs whose images are alike: who they are, against a plain search; and that they share batches."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.core.epochs import EpochPlan, let_follow
from raycomp.training.hard import MOST, load_mates

ROWS = (6, 0, 9, 4)


def test_mates_are_those_of_a_plain_search(tmp_path):
    rng = random.Random(0)
    names = [f"{i:032x}" for i in rng.sample(range(40), 40)]
    near = {name: rng.sample(names, rng.randrange(0, 12)) for name in names}
    tables, uris = [], [str(tmp_path / f"{place}.parquet") for place in range(4)]
    for uri, start, end in zip(uris, (0, 12, 12, 21), (12, 12, 21, 28), strict=True):
        tables.append([(name, rng.choice([1, 1, 2])) for name in names[start:end]])
        columns = {"uid": names[start:end], "num_rows": [count for _, count in tables[-1]]}
        types = pa.schema([("uid", pa.string()), ("num_rows", pa.int64())])
        pq.write_table(pa.table(columns, types), uri)
    files = [str(tmp_path / f"near-{number}.parquet") for number in range(2)]
    for number, file in enumerate(files):
        columns = {"uid": [*near][number::2], "neighbours": [*near.values()][number::2]}
        pq.write_table(pa.table(columns), file)
    for rows, mates in zip(tables, load_mates(files, uris), strict=True):
        first_N = np.cumsum([0, *(count for _, count in rows)])
        firsts = {name: first for (name, _), first in zip(rows, first_N, strict=False)}
        wanted = []
        for name, count in rows:
            some = [firsts[other] for other in near[name] if other in firsts and other != name][:MOST]
            wanted += [[*some, *[-1] * (MOST - len(some))]] * count
        assert mates.tolist() == wanted
    pq.write_table(pa.table({"uid": names[:1], "neighbours": [["x"]]}), files[0])
    with pytest.raises(ValueError, match=r"hard_images=.*: .*x"):
        load_mates(files, uris)


def make_plan(batch_size: int, mates: bool, seed: int = 0) -> EpochPlan:
    """Every row's mate is the next one of its shard, the last one's the first."""
    every = ([[(row + 1) % rows, -1] for row in range(rows)] for rows in ROWS)
    found = tuple(np.array(one, np.int32).reshape(-1, 2) for one in every)
    return EpochPlan(ROWS, batch_size, 2, seed, found if mates else ())


def test_each_row_still_comes_once_and_mates_are_neighbours_in_the_order():
    for seed in range(20):
        plan = make_plan(sum(ROWS), True, seed)
        shard, row = plan.batch(0)
        assert sorted(zip(shard.tolist(), row.tolist(), strict=True)) == [
            (place, number) for place, rows in enumerate(ROWS) for number in range(rows)
        ]
        after = [(row[i] + 1) % ROWS[shard[i]] for i in range(len(row))]
        both = [(shard[i], after[i]) == (shard[i + 1], row[i + 1]) for i in range(len(row) - 1)]
        assert sum(both) >= 4
    assert any((make_plan(4, True).batch(i)[1] != make_plan(4, False).batch(i)[1]).any() for i in range(4))


def test_a_pair_is_followed_by_one_of_its_mates_that_is_left():
    mates = np.array([[1, 2], [0, -1], [-1, -1], [0, 1], [-1, -1]])
    for seed in range(30):
        order = let_follow(np.arange(5), mates, np.random.default_rng(seed)).tolist()
        assert sorted(order) == list(range(5)) and order[0] == 0 and order[1] in (1, 2)
    none = np.full((5, 2), -1)  # without mates the order is as it was
    assert let_follow(np.array([3, 1, 0, 4, 2]), none, np.random.default_rng(0)).tolist() == [3, 1, 0, 4, 2]
