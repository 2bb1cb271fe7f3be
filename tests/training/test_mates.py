"""Pairs whose images are alike: who they are, against a plain search; and that they share batches."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.core.epochs import EpochPlan, let_follow
from raycomp.training.hard import MOST, load_mates

ROWS = (6, 0, 9, 4)


def uid(number: int) -> str:
    return f"{number:032x}"


Tables = tuple[list[str], dict[str, list[str]], list[list[tuple[str, int]]]]


def write_tables(folder: Path, seed: int) -> Tables:
    """Write tables of pairs, some of several rows; return names, neighbours, and (uid, rows) by table."""
    rng = random.Random(seed)
    names = [uid(i) for i in range(40)]
    rng.shuffle(names)
    tables, uris, start = [], [], 0
    for place, size in enumerate((12, 0, 9, 7)):
        rows = [(name, rng.choice([1, 1, 2])) for name in names[start : start + size]]
        start += size
        tables.append(rows)
        table = pa.table(
            {
                "uid": pa.array([name for name, _ in rows], pa.string()),
                "num_rows": pa.array([count for _, count in rows], pa.int64()),
            }
        )
        pq.write_table(table, folder / f"{place}.parquet")
        uris.append(str(folder / f"{place}.parquet"))
    near = {name: rng.sample(names, rng.randrange(0, 12)) for name in names}
    return uris, near, tables


def test_mates_are_those_of_a_plain_search(tmp_path):
    for seed in range(6):
        uris, near, tables = write_tables(tmp_path, seed)
        (tmp_path / "near").mkdir(exist_ok=True)
        half = len(near) // 2
        for number, part in enumerate((list(near.items())[:half], list(near.items())[half:])):
            columns = {"uid": [name for name, _ in part], "neighbours": [texts for _, texts in part]}
            pq.write_table(pa.table(columns), tmp_path / "near" / f"{number}.parquet")
        found = load_mates(sorted(map(str, (tmp_path / "near").iterdir())), uris)
        for rows, mates in zip(tables, found, strict=True):
            firsts = dict(
                zip((name for name, _ in rows), np.cumsum([0, *(n for _, n in rows)]), strict=False)
            )
            place = 0
            for name, count in rows:
                want = [firsts[other] for other in near[name] if other in firsts and other != name][:MOST]
                for _ in range(count):
                    assert mates[place].tolist() == [*want, *[-1] * (MOST - len(want))]
                    place += 1
            assert place == len(mates)


def test_other_tables_are_refused(tmp_path):
    for columns, why in [({"uid": [uid(0)], "neighbours": [["x"]]}, "hard_images=.*: .*x")]:
        uris, *_ = write_tables(tmp_path, 0)
        (tmp_path / "near").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / "near" / "0.parquet")
        with pytest.raises(ValueError, match=why):
            load_mates(sorted(map(str, (tmp_path / "near").iterdir())), uris)


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
    none = np.full((5, 2), -1)
    assert let_follow(np.array([3, 1, 0, 4, 2]), none, np.random.default_rng(0)).tolist() == [3, 1, 0, 4, 2]


def test_without_mates_the_order_is_as_it_was():
    plan = EpochPlan(ROWS, 5, 2, 7)
    again = EpochPlan(ROWS, 5, 2, 7, tuple(np.full((rows, 3), -1) for rows in ROWS))
    for step in range(6):
        for one, other in zip(plan.batch(step), again.batch(step), strict=True):
            np.testing.assert_array_equal(one, other)
