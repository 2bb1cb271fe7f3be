"""The work of a run in this process: passes, tasks, and the choice of it, without Ray."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from raycomp.config import ClusterConfig, ClusterFailed, UserError
from raycomp.core.batches import ahead
from raycomp.data import reader
from raycomp.data.parquet import read_columns
from raycomp.run import executor, local
from raycomp.run.executor import (
    CPUS,
    MOST_LOCAL_BYTES,
    SCORERS,
    Part,
    Pass,
    Session,
    Stage,
    choose_executor,
    connect,
    current,
    find_current,
    read_parts,
    use,
)
from raycomp.run.local import Later, Local, cut, regroup
from raycomp.run.work import map_files, map_some, map_tasks
from raycomp.words import IS_LAST, OK, POSITION, SHARD_ORDINAL, STATUS

ROWS, BLOCK = 23, 4
STORAGE = "AWS Error NETWORK_CONNECTION during GetObject"


def table_of(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int32())})


def numbers_in(tables: Iterator[pa.Table]) -> list[list[int]]:
    return [table["n"].to_pylist() for table in tables]


def test_tables_are_joined_and_cut_to_sizes_with_their_rows_in_order():
    for sizes, rows in product([(), (0,), (5,), (2, 0, 7, 1), (4, 4), (1,) * 9, (30,)], [1, 4, 100]):
        numbers, starts = list(range(sum(sizes))), [sum(sizes[:i]) for i in range(len(sizes))]
        tables = [table_of(*numbers[a : a + size]) for a, size in zip(starts, sizes, strict=True)]
        joined = numbers_in(regroup(iter(tables), rows))
        assert joined == [numbers[start : start + rows] for start in range(0, len(numbers), rows)]
        pieces = numbers_in(cut(iter(tables), rows))
        assert [*chain.from_iterable(pieces)] == numbers, (sizes, rows)
        assert all(0 < len(piece) <= rows for piece in pieces), (sizes, rows)
        assert len(pieces) == sum(-(-size // rows) for size in sizes), (sizes, rows)
    endless = regroup((table_of(i, i, i) for i in count()), 2)
    assert next(endless)["n"].to_pylist() == [0, 0], "as soon as it is whole"


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_items_are_made_ahead_in_a_thread_and_come_in_order_before_an_error():
    made: list[int] = []
    closed = threading.Event()

    def make(error: Exception | None) -> Iterator[int]:
        try:
            for item in range(20):
                made.append(item)
                yield item
            if error:
                raise error
        finally:
            closed.set()

    found = ahead(make(None), 3)
    assert next(found) == 0 and len(threads_of("ahead")) == 1
    deadline = time.monotonic() + 30
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2, 3], "so many, and no more"
    assert list(found) == list(range(1, 20)) and list(ahead([], 2)) == [] and not threads_of("ahead")
    found = ahead(make(OSError("the disk is gone")), 50)
    assert [next(found) for _ in range(20)] == list(range(20))
    with pytest.raises(OSError, match="the disk is gone"):
        next(found)
    closed.clear()
    found = ahead(make(None), 2)
    assert next(found) == 0
    found.close()  # half way
    assert not threads_of("ahead")
    del found
    assert closed.wait(10)
    unused = ahead(make(None), 2)
    assert threads_of("ahead"), "from the start"
    unused.close()
    assert not threads_of("ahead")


SCHEMA = pa.schema([(POSITION, pa.int32()), ("twice", pa.int32()), ("score", pa.float64())])


def read(ordinal: int) -> Iterator[pa.Table]:
    """Yield a shard's rows in blocks of odd sizes."""
    for start in range(0, ROWS, 5):
        positions = range(start, min(start + 5, ROWS))
        yield pa.table(
            {
                SHARD_ORDINAL: pa.array([ordinal] * len(positions), pa.int32()),
                POSITION: pa.array(positions, pa.int32()),
                STATUS: [OK] * len(positions),
                IS_LAST: [position == ROWS - 1 for position in positions],
            }
        )


def double(table: pa.Table, seen: list[tuple[int, str]] | None = None) -> pa.Table:
    if seen is not None:
        time.sleep(0.002 * (len(table) % 3))
        seen.append((len(table), threading.current_thread().name))
    twice = [2 * position for position in table[POSITION].to_pylist()]
    return table.append_column("twice", pa.array(twice, pa.int32()))


class Score:
    """A model on a CPU that notes how many rows it was given."""

    def __init__(self, num_threads: int | None, calls: list[tuple[int | None, int]]):
        self.device, self.num_threads, self.calls = self, num_threads, calls

    def take_busy_seconds(self) -> None:
        return None

    def is_broken(self) -> bool:
        return False

    def __call__(self, table: pa.Table) -> pa.Table:
        self.calls.append((self.num_threads, len(table)))
        score = [number / 2 for number in table["twice"].to_pylist()]
        return table.append_column("score", pa.array(score, pa.float64()))


def make_pass(*stages: Stage, num_shards: int = 3, read: Callable[..., Any] = read) -> Pass:
    items = {ordinal: ordinal for ordinal in range(num_shards)}
    schema = pa.schema([field for field in SCHEMA if field.name == POSITION or len(stages) > 1])
    return Pass(Session(1, {}, 2, 2, 1, BLOCK, is_local=True), items, read, stages, Part(schema), BLOCK, 8)


def run_all(steps: Pass, folder: Path, num_threads: int) -> dict[str, pa.Table]:
    """Run a pass; return its parts by name, and check that its receipts tell of all rows."""
    with use(Local(num_threads)):
        all_metadata = [one for some in steps.run(sorted(steps.items), str(folder)) for one in some]
    for ordinal in steps.items:
        own = [one for one in all_metadata if one[SHARD_ORDINAL] == ordinal]
        assert sum(one["rows"] for one in own) == ROWS
        assert [one["total"] for one in own if one["total"] is not None] == [ROWS]
        rows = read_parts(str(folder), [one["file"] for one in own])
        assert rows[POSITION].to_pylist() == list(range(ROWS))
    paths = sorted(folder.rglob("*.parquet"))
    return {str(path.relative_to(folder)): read_columns(str(path)) for path in paths}


def test_a_pass_writes_the_same_parts_with_one_thread_and_with_two(tmp_path):
    parts = []
    for in_threads, num_threads in product((False, True), (1, 2)):
        seen: list[tuple[int, str]] = []
        calls: list[tuple[int | None, int]] = []
        stages = (
            Stage("double", "doubles", CPUS, partial(double, seen=seen), in_threads),
            Stage("score", "halves", SCORERS, partial(Score, calls=calls)),
        )
        parts.append(run_all(make_pass(*stages), tmp_path / f"{in_threads}{num_threads}", num_threads))
        assert max(size for size, _ in seen) == BLOCK and sum(size for size, _ in seen) == 3 * ROWS
        names = {name for _, name in seen}
        assert all(name.startswith("double") == in_threads for name in names) and len(names) <= num_threads
        # Whole calls across the shards' borders, but for the last.
        assert calls == [(num_threads, 8)] * (3 * ROWS // 8) + [(num_threads, 3 * ROWS % 8)]
    assert parts[0] == parts[1] == parts[2] == parts[3] and len(parts[0]) > 3
    assert len(run_all(make_pass(), tmp_path / "without", 1)) == 3


def test_rows_are_made_while_the_model_loads(tmp_path):
    made = threading.Event()

    def make(table: pa.Table) -> pa.Table:
        made.set()
        return double(table)

    def load(num_threads: int | None) -> Score:
        assert made.wait(30), "no row was made before the model was there"
        return Score(num_threads, [])

    for in_threads in (False, True):
        made.clear()
        stages = (
            Stage("double", "doubles", CPUS, make, in_threads),
            Stage("score", "halves", SCORERS, load),
        )
        run_all(make_pass(*stages), tmp_path / str(in_threads), 1)


def test_a_pass_that_is_left_half_way_leaves_no_thread(tmp_path):
    steps = make_pass(Stage("double", "doubles", CPUS, double, True), num_shards=500)
    with use(Local(2)):
        parts = steps.run(sorted(steps.items), str(tmp_path))
        next(parts)
        parts.close()
    deadline = time.monotonic() + 30
    while (left := threads_of("double") + threads_of("ahead")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def fail(table: pa.Table, error: Exception) -> pa.Table:
    raise error


def test_what_a_stage_raises_is_the_users_or_the_storages_only_where_it_says_so(tmp_path):
    for error, raised, said in [
        (ValueError("ours"), RuntimeError, "^stage fail failed: ours$"),
        (KeyError("ours"), KeyError, "ours"),
        (UserError("theirs"), UserError, "^theirs$"),
        (ClusterFailed("lost"), ClusterFailed, "^lost$"),
        (FileNotFoundError("gone"), FileNotFoundError, "^gone$"),
    ]:
        for in_threads in (False, True):
            steps = make_pass(Stage("fail", "fails", CPUS, partial(fail, error=error), in_threads))
            with use(Local(2)), pytest.raises(raised, match=said) as found:
                list(steps.run([0], str(tmp_path)))
            assert type(found.value) is raised


class Flaky:
    """Fails so often before it works."""

    def __init__(self, times: int, error: Exception, work: Callable[..., Any]):
        self.left, self.error, self.work, self.calls = times, error, work, 0

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return self.work(*args, **more)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(local, "_PAUSE_S", 0.0)
    monkeypatch.setattr(reader, "time", SimpleNamespace(sleep=lambda seconds: None))


def test_what_may_pass_of_a_storage_is_tried_again_and_nothing_else(tmp_path):
    for times, error, most in [
        (0, OSError("none"), None),
        (2, OSError(STORAGE), None),
        (3, OSError(STORAGE), 3),
        (1, OSError("no space left"), 1),
        (1, ValueError(STORAGE), 1),
    ]:
        works, task = Flaky(times, error, double), Flaky(times, error, lambda: 7)
        steps = make_pass(Stage("double", "doubles", CPUS, works), num_shards=1)
        with use(Local(1)):
            if most is None:
                list(steps.run([0], str(tmp_path)))
                assert works.calls == -(-5 // BLOCK) * 4 + 1 + times
                assert current().get(current().submit(task)) == 7 and task.calls == times + 1
                continue
            with pytest.raises((OSError, RuntimeError), match=str(error)):
                list(steps.run([0], str(tmp_path)))
            with pytest.raises(type(error)):
                current().get(current().submit(task))
            assert works.calls == task.calls == most, error
    failures = [OSError("reset"), OSError("reset")]

    def read_flaky(ordinal: int) -> Iterator[pa.Table]:
        for number, table in enumerate(read(ordinal)):
            if number == 2 and failures:
                raise failures.pop()
            yield table

    run_all(make_pass(read=read_flaky), tmp_path / "read", 1)
    assert not failures


def test_a_task_runs_once_and_only_when_it_is_asked_for():
    ran: list[int] = []

    def run(number: int) -> int:
        ran.append(number)
        if number == 3:
            raise KeyError(number)
        return number * 10

    executor = Local(1)
    tasks = [executor.submit(run, number, num_cpus=0, max_retries=1) for number in range(5)]
    assert all(isinstance(task, Later) for task in tasks) and ran == []
    assert executor.wait(tasks, 2) == tasks[:2] and ran == [0, 1]
    assert [executor.get(task) for task in tasks[:3]] == [0, 10, 20]
    for _ in range(2):
        with pytest.raises(KeyError):
            executor.get(tasks[3])
    executor.stop(tasks)
    assert ran == [0, 1, 2, 3], "the last was never asked for"
    assert executor.wait(tasks, 5, 0) == tasks and ran == [0, 1, 2, 3, 4]


def add(item: int, more: int) -> int:
    if item == 90:
        raise UserError("the last are amiss")
    return item + more


def test_tasks_over_files_come_in_order_and_the_users_mistake_as_it_was_raised():
    with use(Local(2)):
        for run in (map_tasks, map_files):
            assert list(run(add, range(80), 5)) == list(range(5, 85)) and list(run(add, [], 5)) == []
            with pytest.raises(UserError, match=r"^the last are amiss$"):
                list(run(add, range(100), 5))
        jobs = [(number,) for number in range(6)]
        some = map_some(partial(add, more=1), jobs, 2, lambda: None, label="some", unit="job")
        assert sorted(some) == jobs


@pytest.fixture
def bare(monkeypatch) -> None:
    """No cluster and no GPU, whatever else goes on in this process."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(executor, "is_connected", lambda: False)
    monkeypatch.setattr(executor, "_DRIVER", "/no/such/driver")
    monkeypatch.setattr(executor, "find_current", lambda: None)


def choose(ray_for: str | None = None, size: int = 0, better: str | None = None, **options: Any) -> Any:
    return choose_executor(ClusterConfig(**options), lambda: size, better, ray_for)


def test_what_only_ray_does_is_done_there_and_refused_here_in_one_line(bare, monkeypatch):
    for options, ray_for, why in [
        ({"address": "10.0.0.1:6379"}, None, r"cluster\.address='10\.0\.0\.1:6379' names a cluster"),
        ({"labels": ("a=b",)}, None, r"cluster\.labels='a=b' asks for nodes of a cluster"),
        ({"scorers": "1..3"}, None, r"cluster\.scorers or train\.workers=3 needs several processes"),
        ({"gpu": True}, None, r"cluster\.gpu=true asks for a GPU"),
        ({}, "the engine vLLM runs there", "the engine vLLM runs there"),
        ({}, None, r"RAY_ADDRESS='10\.0\.0\.2:6379' names a cluster"),
    ]:
        if why.startswith("RAY_ADDRESS"):
            monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
        is_local, said = choose(ray_for, **options)
        assert not is_local and re.match(why, said), said
        line = rf"^cluster\.executor=local: {why}.*; set cluster\.executor=ray$"
        with pytest.raises(ValueError, match=line):
            choose(ray_for, executor="local", **options)


def test_what_is_better_done_on_ray_is_done_here_only_where_that_is_asked_for(bare, monkeypatch, tmp_path):
    (tmp_path / "driver").touch()
    assert choose(executor="ray") == (False, "cluster.executor=ray")
    for why, more, patch in [
        (None, {"size": MOST_LOCAL_BYTES}, {}),
        ("the input has 2.0 GB, more than 2", {"size": MOST_LOCAL_BYTES + 1}, {}),
        ("this process is connected to a cluster", {}, {"is_connected": lambda: True}),
        ("this machine has a GPU", {}, {"_DRIVER": str(tmp_path / "driver")}),
        ("many", {"better": "many"}, {}),
    ]:
        with monkeypatch.context() as patched:
            for name, value in patch.items():
                patched.setattr(executor, name, value)
            is_local, said = choose(**more)
            assert (is_local, said if why else None) == (why is None, why)
            assert choose(executor="local", **more) == (True, "cluster.executor=local"), why
            if "_DRIVER" in patch:
                assert choose(gpu=False)[0]
    for options, better in (({"executor": "local"}, None), ({"scorers": 2}, None), ({}, "many trainings")):
        choose_executor(ClusterConfig(**options), lambda: pytest.fail("the size was counted"), better, None)


def test_a_run_within_a_run_is_done_where_that_is_and_says_nothing_more(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before, said = find_current(), []
    with connect(ClusterConfig(executor="local", num_cpus=3, block_rows=7), say=said.append) as outer:
        executor = current()
        assert (outer.is_local, outer.device, outer.num_threads, outer.block_rows) == (True, "cpu", 3, 7)
        assert isinstance(executor, Local) and executor.count("CPU") == 3 and executor.count("GPU") == 0
        with connect(ClusterConfig(num_cpus=3), say=said.append, num_bytes=lambda: 10**12) as inner:
            assert inner.is_local and current() is executor
        assert current() is executor
        with (
            pytest.raises(ValueError, match="needs several processes"),
            connect(ClusterConfig(executor="local", scorers=4)),
        ):
            pass
    assert find_current() is before
    alone = ["executor: local, in this process (cluster.executor=local)"]
    assert said == (alone if before is None else [])
    monkeypatch.setattr("raycomp.run.executor._used", [])
    with pytest.raises(RuntimeError, match="no executor"):
        current()
