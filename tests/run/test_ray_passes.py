"""One pass: how its stages are laid over workers, and what is told of them."""

import json
import os
import time
from collections import Counter
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import ray

from raycomp.run import ray_cluster
from raycomp.run.executor import CPUS, SCORERS, Part, Pass, Session, Stage, Stats, WorkerPool, read_parts
from raycomp.words import OK, POSITION, SHARD_ORDINAL, STATUS

ROWS, BLOCK = 64, 4
BYTES = 400_000
SCHEMA = pa.schema([(POSITION, pa.int32()), ("task", pa.string()), ("score", pa.float64())])


def read(ordinal: int):
    """Yield a shard's rows, heavy as pictures are."""
    for start in range(0, ROWS, BLOCK):
        yield pa.table(
            {
                SHARD_ORDINAL: pa.array([ordinal] * BLOCK, pa.int32()),
                POSITION: pa.array(range(start, start + BLOCK), pa.int32()),
                STATUS: pa.array([OK] * BLOCK),
                "image": pa.array([os.urandom(BYTES) for _ in range(BLOCK)], pa.large_binary()),
            }
        )


def decode(table: pa.Table) -> pa.Table:
    time.sleep(0.05)
    assert len(table) <= BLOCK
    task = ray.get_runtime_context().get_task_id()
    return table.drop_columns(["image"]).append_column("task", pa.array([task] * len(table)))


class Clock:
    """A GPU that computes for a second a call."""

    def take_busy_seconds(self) -> float:
        return 1.0

    def is_broken(self) -> bool:
        return False


class Score:
    """A scorer on a GPU that is none."""

    def __init__(self, num_threads: int | None):
        self.device = Clock()

    def __call__(self, table: pa.Table) -> pa.Table:
        return table.append_column("score", pa.array([1.0] * len(table)))


STAGES = (Stage("decode", "makes numbers", CPUS, decode), Stage("score", "scores", SCORERS, Score))


def make_pass(num_shards: int, session: Session, stages: tuple[Stage, ...] = STAGES) -> Pass:
    part = Part(SCHEMA, sampled=("score",))
    items = {ordinal: ordinal for ordinal in range(num_shards)}
    return Pass(session, items, read, stages, part, rows=BLOCK, scorer_rows=16)


def test_read_tasks_share_very_many_shards_and_every_row_arrives(tmp_path, monkeypatch, ray_cluster):
    monkeypatch.setattr("raycomp.run.ray_cluster._READ_TASKS_AT_MOST", 2)
    session = Session(1, {"num_cpus": 2}, None, 6, 1, BLOCK)
    items = {ordinal: ordinal for ordinal in range(5)}
    steps = Pass(
        session, items, read, (), Part(pa.schema([(POSITION, pa.int32())])), rows=BLOCK, is_cut=False
    )
    all_metadata = list(chain.from_iterable(steps.run([4, 0, 2, 1, 3], str(tmp_path))))
    for ordinal in items:
        names = [metadata["file"] for metadata in all_metadata if metadata[SHARD_ORDINAL] == ordinal]
        assert read_parts(str(tmp_path), names)[POSITION].to_pylist() == list(range(ROWS))


def test_one_shard_is_decoded_by_many_tasks_in_blocks_of_a_few_rows(tmp_path, ray_cluster):
    session = Session(1, {"num_cpus": 2}, None, 6, 1, BLOCK)
    all_metadata = list(chain.from_iterable(make_pass(1, session).run([0], str(tmp_path))))
    rows = read_parts(str(tmp_path), [metadata["file"] for metadata in all_metadata])
    assert rows[POSITION].to_pylist() == list(range(ROWS))
    assert len(set(rows["task"].to_pylist())) > 1
    stats = Stats()
    for metadata in all_metadata:
        stats.add(json.loads(metadata["stats"]))
    assert set(stats.seconds) == {"read", "decode", "score", "device", "write"}
    assert stats.seconds["decode"] >= 0.05 * ROWS / BLOCK
    assert stats.statuses == Counter(ok=ROWS) and set(stats.samples["score"]) == {1.0}


def test_a_worker_pool_is_what_scorers_leave_and_knows_its_gpus():
    on_cpu = make_pass(3, Session(1, {"num_cpus": 2}, 1, 6, 1, BLOCK)).worker_pools
    assert {name: place.workers for name, place in on_cpu.items()} == {
        "read": 3,
        "decode": 4,
        "score": 1,
        "write": 4,
    }
    assert on_cpu["score"] == WorkerPool("scores", 1, SCORERS)
    on_gpu = make_pass(100, Session(2, {"num_gpus": 1}, None, 6, 1, BLOCK)).worker_pools
    assert on_gpu["device"].workers == 2 and on_gpu["read"].workers == 8
    without = make_pass(100, Session(2, {"num_gpus": 1}, None, 6, 1, BLOCK), STAGES[:1]).worker_pools
    assert list(without) == ["read", "decode", "write"] and without["decode"].workers == 6


def test_a_second_stage_on_scorers_is_refused():
    """Its actors would wait for ever for the GPUs of the first."""
    again = Stage("score again", "scores", SCORERS, Score)
    with pytest.raises(AssertionError, match="2 stages on scorers: a pass has one at most"):
        make_pass(1, Session(1, {"num_gpus": 1}, None, 6, 1, BLOCK), (*STAGES, again))


@pytest.mark.parametrize(("least", "expected"), [(None, (3, 3, 3)), (1, (1, 3, 1))])
def test_a_pool_is_as_small_and_as_large_as_the_session_says(monkeypatch, least, expected):
    """Without a least size every scorer is started at once, and none of them goes."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(ray_cluster, "ActorPoolStrategy", lambda **options: asked.update(options))
    steps = make_pass(1, Session(3, {"num_cpus": 2}, 1, 6, 1, BLOCK, least))
    dataset = SimpleNamespace(map_batches=lambda *_, **options: asked.update(options))
    ray_cluster._on_scorers(dataset, STAGES[1], steps)
    assert (asked["min_size"], asked["max_size"], asked["initial_size"]) == expected
    assert asked["num_cpus"] == 2 and asked["batch_size"] == 16
