"""What run.json says of the time, from stats made by hand, and of scorers that come and go."""

import json
import time
from collections import Counter
from itertools import chain, repeat

import pytest

from raycomp.run.executor import Stats, There, WorkerPool
from raycomp.run.progress import Growth, average, describe_phases, describe_stages
from raycomp.words import STATUS

WORKER_POOLS = {
    "read": WorkerPool("reads", 4, "cpus"),
    "decode": WorkerPool("decodes", 4, "cpus"),
    "parse": WorkerPool("parses", 4, "cpus"),
    "align": WorkerPool("aligns", 2, "scorers"),
    "rank": WorkerPool("ranks", 2, "scorers"),
    "device": WorkerPool("computes", 2, "gpus"),
    "write": WorkerPool("writes", 4, "cpus"),
}


def make_stats(
    wall_s: float, rows: int, worker_pools: dict[str, WorkerPool] = WORKER_POOLS, **seconds: float
) -> Stats:
    offered = Counter({stage: place.workers * wall_s for stage, place in worker_pools.items()})
    return Stats(
        worker_pools=dict(worker_pools),  # adding another one changes it
        seconds=Counter(seconds),
        offered=offered,
        wall_s=wall_s,
        commit_s=0.01 * wall_s,
        counts={STATUS: Counter(ok=rows)},
    )


def test_shares_are_of_the_time_that_all_workers_had():
    align = make_stats(10.0, 600, write=2.0, align=16.0, read=1.0, decode=20.0, device=9.0)
    rows = describe_stages({"align": align})
    assert [row["stage"] for row in rows] == ["read", "decode", "align", "write"]
    assert [row["says"] for row in rows] == ["reads", "decodes", "aligns", "writes"]
    shares = [row["busy_share"] for row in rows]
    assert shares == pytest.approx([1 / 40, 20 / 40, 16 / 20, 2 / 40])
    assert [row["rows_per_s"] for row in rows] == pytest.approx([600, 30, 37.5, 300])
    rank = make_stats(5.0, 400, read=1.0, parse=19.0, rank=6.0, write=0.5)
    merged = make_stats(2.0, 0, write=4.0)
    first, second, third = describe_phases({"align": align, "negatives": rank, "attribute": merged})
    names = ("scorer_busy_share", "gpu_busy_share", "commit_share", "wall_s", "rows")
    assert [first[name] for name in names] == pytest.approx([16 / 20, 9 / 20, 0.01, 10.0, 600])
    assert second["scorer_busy_share"] == pytest.approx(6 / 10) and "gpu_busy_share" not in second
    assert "scorer_busy_share" not in third
    assert [phase["bottleneck"] for phase in (first, second, third)] == ["align", "parse", "write"]


def test_a_restart_with_other_workers_adds_up_what_each_try_had():
    more = WORKER_POOLS | {"align": WorkerPool("aligns", 4, "scorers")}
    first, second = make_stats(10.0, 100, align=18.0), make_stats(5.0, 60, more, align=10.0)
    first.add(json.loads(json.dumps(second.to_dict())))
    (phase,) = describe_phases({"align": first})
    assert (phase["wall_s"], phase["rows"]) == (15.0, 160)
    assert phase["commit_s"] == pytest.approx(0.15)
    assert phase["scorer_busy_share"] == pytest.approx(28 / (2 * 10 + 4 * 5))


MOST = There(0.0, 4, 16)


def test_changes_are_noted_once_and_taken_once():
    reported = chain([(0, 4), (1, 4), (1, 4), (3, 12)], repeat((3, 12)))
    with Growth(lambda: next(reported), every_s=0.01) as growth:
        while len(growth.steps) < 4:
            time.sleep(0.01)
        first = growth.take()
    assert [step[1:] for step in first] == [(0, 0), (0, 4), (1, 4), (3, 12)]
    assert [step.since_s for step in first] == sorted(step.since_s for step in first)
    assert growth.take() == [There(0.0, 3, 12)]


def test_workers_that_come_and_go_offer_what_they_were_there_for():
    for steps, scorers, cpus in [
        ([There(0.0, 4, 16)], 1.0, 1.0),
        ([There(0.0, 0, 0), There(5.0, 4, 8)], 0.5, 0.25),
        ([There(0.0, 1, 4), There(4.0, 2, 8), There(8.0, 9, 99)], 1.0 * (4 + 8 + 18) / 40, 1.0),
    ]:
        shares = average(steps, 10.0, MOST)
        assert shares == pytest.approx({"scorers": scorers, "gpus": scorers, "cpus": cpus})


def test_a_phases_growth_goes_on_where_its_last_commit_left_it():
    stats = Stats()
    commits = [There(0.0, 0, 4), There(2.0, 1, 4)], [There(0.0, 1, 4), There(3.0, 2, 8)], [There(0.0, 2, 8)]
    for steps in commits:
        stats.add(Stats(growth=steps, wall_s=10.0).to_dict())
    assert stats.growth == [There(0.0, 0, 4), There(2.0, 1, 4), There(13.0, 2, 8)]
    [phase] = describe_phases({"align": stats})
    assert phase["growth"][-1] == [13.0, 2, 8]
    assert "growth" not in describe_phases({"align": Stats()})[0]
