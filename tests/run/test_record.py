"""What run.json says of the time, from stats made by hand."""

import json
from collections import Counter

import pytest

from raycomp.run.executor import Stats, WorkerPool
from raycomp.run.run import describe_phases, describe_stages
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


def make_align(**more: float) -> Stats:
    return make_stats(10.0, 600, write=2.0, align=16.0, read=1.0, decode=20.0, **more)


def test_shares_are_of_the_time_that_all_workers_had():
    rows = describe_stages({"align": make_align(device=9.0)})
    assert [row["stage"] for row in rows] == ["read", "decode", "align", "write"]
    assert [row["says"] for row in rows] == ["reads", "decodes", "aligns", "writes"]
    shares = [row["busy_share"] for row in rows]
    assert shares == pytest.approx([1 / 40, 20 / 40, 16 / 20, 2 / 40])
    assert [row["rows_per_s"] for row in rows] == pytest.approx([600, 30, 37.5, 300])
    assert {row["phase"] for row in rows} == {"align"}


def test_a_phase_reports_how_busy_its_scorers_and_their_gpus_were():
    rank = make_stats(5.0, 400, read=1.0, parse=19.0, rank=6.0, write=0.5)
    align, second = describe_phases({"align": make_align(device=9.0), "negatives": rank})
    assert align["scorer_busy_share"] == pytest.approx(16 / 20)
    assert align["gpu_busy_share"] == pytest.approx(9 / 20)
    assert align["commit_share"] == pytest.approx(0.01)
    assert (align["wall_s"], align["rows"], align["bottleneck"]) == (10.0, 600, "align")
    assert "gpu_busy_share" not in second
    assert second["scorer_busy_share"] == pytest.approx(6 / 10)
    assert second["bottleneck"] == "parse"


def test_a_phase_that_only_merged_has_no_scorers_to_report():
    (phase,) = describe_phases({"attribute": make_stats(2.0, 0, write=4.0)})
    assert "scorer_busy_share" not in phase and phase["bottleneck"] == "write"


def test_a_restart_with_other_workers_adds_up_what_each_try_had():
    more = WORKER_POOLS | {"align": WorkerPool("aligns", 4, "scorers")}
    first, second = make_stats(10.0, 100, align=18.0), make_stats(5.0, 60, more, align=10.0)
    first.add(json.loads(json.dumps(second.to_dict())))
    (phase,) = describe_phases({"align": first})
    assert (phase["wall_s"], phase["rows"]) == (15.0, 160)
    assert phase["commit_s"] == pytest.approx(0.15)
    assert phase["scorer_busy_share"] == pytest.approx(28 / (2 * 10 + 4 * 5))
