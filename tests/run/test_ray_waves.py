"""Waves by themselves: what writing and committing cost, walls over a restart, standing still."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import ray
from ray.data import DataContext
from ray.data._internal.execution.execution_callback import ExecutionCallback

from raycomp.config import ClusterFailed, LeaseLost
from raycomp.data.files import Folder
from raycomp.run import work as passes
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.run.progress import WorkerPool
from raycomp.run.ray_executor import OnRay, read_metadata
from raycomp.run.work import Part, Phase, Stalled, read_parts, stage_part
from raycomp.words import (
    IS_LAST,
    OK,
    POSITION,
    SHARD_ORDINAL,
    STATUS,
)

PART = Part(pa.schema([(POSITION, pa.int32()), (STATUS, pa.string())]))
WORKER_POOLS = {"read": WorkerPool("reads", 3, "cpus"), "write": WorkerPool("writes", 2, "cpus")}
ROWS = 5
NOTES = "_output_blocks_stats"
COMMIT_S, MERGE_S, PAUSE_S = 0.2, 0.1, 0.3


def make_rows(ordinal: int) -> pa.Table:
    return pa.table(
        {
            POSITION: pa.array(range(ROWS), pa.int32()),
            STATUS: pa.array([OK] * ROWS),
            SHARD_ORDINAL: pa.array([ordinal] * ROWS, pa.int32()),
            IS_LAST: pa.array([i == ROWS - 1 for i in range(ROWS)]),
            "seconds_read": pa.array([0.02] * ROWS),
        }
    )


def test_staging_counts_the_time_it_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "write_table", lambda *_: time.sleep(0.05))
    started = time.perf_counter()
    all_metadata = stage_part(pa.concat_tables(map(make_rows, (0, 1))), str(tmp_path), PART).to_pylist()
    took = time.perf_counter() - started
    seconds = [json.loads(metadata["stats"])["seconds"] for metadata in all_metadata]
    assert [part["read"] for part in seconds] == pytest.approx([0.1, 0.1])
    assert all(part["write"] >= 0.05 for part in seconds) and sum(part["write"] for part in seconds) <= took


class SlowFolder(Folder):
    """A folder whose json takes its time."""

    def write_json(self, content: object, *names: str) -> None:
        time.sleep(COMMIT_S)
        super().write_json(content, *names)


@dataclass
class PartMetadata:
    """Stands for the pass of a phase: stages shard after shard.

    With ``work``, its first shard is committed there and then the user interrupts.
    """

    ordinals: list[int]
    parts_uri: str
    work: Folder | None = None

    def __iter__(self) -> Iterator[list[dict]]:
        for ordinal in self.ordinals:
            time.sleep(PAUSE_S)
            yield stage_part(make_rows(ordinal), self.parts_uri, PART).to_pylist()
            if self.work:
                while not self.work.list_names("waves"):
                    time.sleep(0.02)
                    yield []
                time.sleep(PAUSE_S)
                raise KeyboardInterrupt


def merge_slowly(ordinal: int, parts_uri: str, names: list[str]) -> int:
    time.sleep(MERGE_S)
    return ROWS


BOTH = pytest.mark.parametrize("executor", [OnRay(60), Local(1)], ids=["ray", "local"])


@pytest.mark.ray
@BOTH
def test_walls_add_up_over_a_restart_and_what_was_lost_counts_nowhere(tmp_path, ray_cluster, executor):
    with use(executor):
        check_walls(SlowFolder(str(tmp_path)))


def check_walls(work: Folder) -> None:
    phase = Phase("align", work, 1, merge_slowly, (), WORKER_POOLS)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as interrupt:
        phase.run([0, 1, 2], partial(PartMetadata, work=work), None)
    assert interrupt.value.__notes__ == ["align: 1 of 3 waves are committed, wave 2 is next"]
    first_s = time.monotonic() - started
    (name,) = work.list_names("waves")
    kept = work.read_json("waves", name)["stats"]
    assert PAUSE_S + MERGE_S <= kept["wall_s"] <= first_s - COMMIT_S - PAUSE_S  # to the commit, not its end
    assert kept["counts"][STATUS] == {OK: ROWS}

    started = time.monotonic()
    stats = phase.run([0, 1, 2], PartMetadata, None)
    second_s = time.monotonic() - started
    assert 2 * (PAUSE_S + COMMIT_S) <= stats.wall_s - kept["wall_s"] <= second_s
    assert 2 * COMMIT_S <= stats.commit_s <= second_s - 2 * PAUSE_S
    assert stats.statuses == {OK: 3 * ROWS}
    assert stats.seconds["read"] == pytest.approx(3 * 0.1)
    assert 3 * MERGE_S <= stats.seconds["write"] <= stats.offered["write"]
    assert stats.offered["read"] == pytest.approx(3 * stats.wall_s)
    again = phase.run([0, 1, 2], PartMetadata, None)
    assert again.statuses == stats.statuses
    assert again.wall_s <= stats.wall_s - COMMIT_S  # no manifest tells how long the last commit took


def test_without_the_lease_no_wave_is_committed(tmp_path):
    """Who took the folder over redoes the wave; what this run would say of it must not stand there."""
    merged: list[int] = []

    def merge(ordinal: int, parts_uri: str, names: list[str]) -> int:
        merged.append(ordinal)
        return ROWS

    def refuse() -> None:
        if merged == [0, 1]:
            raise LeaseLost("gone to another")

    work = Folder(str(tmp_path))
    with use(Local(1)), pytest.raises(LeaseLost, match="gone to another"):
        Phase("align", work, 1, merge, (), WORKER_POOLS, check=refuse).run([0, 1, 2], PartMetadata, None)
    assert work.list_names("waves") == ["align-00000000.json"]


def test_parts_that_overlap_are_never_merged(tmp_path):
    """Rows that two tries cut in different places would stand twice."""
    whole = make_rows(0)
    tables = (whole, whole.slice(2))
    all_metadata = [stage_part(table, str(tmp_path), PART).to_pylist()[0] for table in tables]
    names = [metadata["file"] for metadata in all_metadata]
    assert read_parts(str(tmp_path), names[:1])[POSITION].to_pylist() == list(range(ROWS))
    with pytest.raises(RuntimeError, match="overlap"):
        read_parts(str(tmp_path), names)


class Watched(Folder):
    """A folder that notes which shards have parts at a commit, at the second once the first's are gone."""

    def write_json(self, content: object, *names: str) -> None:
        super().write_json(content, *names)
        deadline = time.monotonic() + 60
        while "00000" in self.list_names("parts", "align") and "00000000" not in names[-1]:
            assert time.monotonic() < deadline, "the first wave's parts are still there"
            time.sleep(0.05)
        (Path(self.uri) / f"seen-{names[-1]}").write_text(" ".join(self.list_names("parts", "align")))


@pytest.mark.ray
@BOTH
def test_a_waves_parts_go_once_it_is_committed(tmp_path, ray_cluster, executor):
    work = Watched(str(tmp_path))
    merge = partial(merge_counted, target=str(tmp_path))
    with use(executor):
        stats = Phase("align", work, 2, merge, (), WORKER_POOLS).run(list(range(4)), PartMetadata, None)
    first, second = ((tmp_path / f"seen-align-{n:08d}.json").read_text().split() for n in (0, 2))
    assert stats.statuses == {OK: 4 * ROWS}
    assert {"00000", "00001"} <= set(first) and {"00002", "00003"} <= set(second)
    assert not work.exists("parts", "align")
    assert [(tmp_path / f"{ordinal}").read_text() for ordinal in range(4)] == [f"{ROWS}"] * 4


def merge_counted(ordinal: int, parts_uri: str, names: list[str], target: str) -> int:
    table = read_parts(parts_uri, names)
    Path(target, f"{ordinal}").write_text(str(len(table)))
    return len(table)


def stage_or_hang(batch: dict, parts_uri: str, flag: str) -> pa.Table:
    """Stage a shard; the first time that it is the second's turn, never come back."""
    (ordinal,) = batch["id"]
    if ordinal == 1 and not Path(flag).exists():
        Path(flag).touch()
        time.sleep(600)
    return stage_part(make_rows(int(ordinal)), parts_uri, PART)


@pytest.mark.ray
def test_a_phase_that_stands_still_starts_again_from_its_commits(tmp_path, ray_cluster, monkeypatch, capfd):
    """A busy machine may take longer to start its workers: then it stands still once more."""
    work, asked = Folder(str(tmp_path)), []

    def run(ordinals: list[int], parts_uri: str) -> Iterator[list[dict]]:
        done = [int(name[6:14]) for name in work.list_names("waves")]
        assert sorted([*ordinals, *done]) == [0, 1, 2]
        asked.append(ordinals)
        stage = partial(stage_or_hang, parts_uri=parts_uri, flag=str(tmp_path / "hung"))
        rows = [{"id": ordinal} for ordinal in ordinals]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(stage, batch_size=1)
        return read_metadata(dataset)

    monkeypatch.setattr(DataContext.get_current(), "execution_no_progress_timeout_s", 6)
    merge = partial(merge_counted, target=str(tmp_path))
    with use(OnRay(6)):
        stats = Phase("align", work, 1, merge, (), WORKER_POOLS).run([0, 1, 2], run, None)
    assert stats.statuses == {OK: 3 * ROWS}
    line = r"^align: no block came for \d+ s; restarted from its commits$"
    said = re.findall(line, capfd.readouterr().err, re.MULTILINE)
    assert len(said) == len(asked) - 1 >= 1


@dataclass
class Still:
    """Stands for a pass of which never anything comes; what has come is committed."""

    ordinals: list[int]
    parts_uri: str

    def __iter__(self) -> Iterator[list[dict]]:
        if len(self.ordinals) > 2:
            yield stage_part(make_rows(self.ordinals[0]), self.parts_uri, PART).to_pylist()
            time.sleep(1)
            yield []
        raise Stalled("no block came")


@pytest.mark.ray
def test_a_phase_that_stands_still_for_good_ends_in_one_line(tmp_path, ray_cluster, capfd):
    merge = partial(merge_counted, target=str(tmp_path))
    phase = Phase("align", Folder(str(tmp_path)), 1, merge, (), WORKER_POOLS)
    with pytest.raises(
        ClusterFailed,
        match=r"^align: no block came for [\d,]+ s, 4 times without a commit .* the same command resumes it",
    ):
        phase.run([0, 1, 2], Still, None)
    assert len(phase.work.list_names("waves")) == 1
    assert capfd.readouterr().err.count("restarted from its commits") == 3 + 1


def pass_on(batch: dict) -> dict:
    return batch


@pytest.mark.ray
def test_nothing_is_kept_of_blocks_that_are_done(ray_cluster):
    """What Ray Data notes of every block would fill the driver; it is looked for where Ray Data keeps it."""
    kept = []

    class Observe(ExecutionCallback):
        def on_execution_step(self, executor: object) -> None:
            kept.append([len(op._output_blocks_stats) for op in executor._topology if hasattr(op, NOTES)])

    context = DataContext.get_current()
    before = context.custom_execution_callback_classes
    for classes, most in ((before, 0), ([], 20)):
        kept.clear()
        context.custom_execution_callback_classes = [*classes, Observe]
        try:
            list(ray.data.range(20, override_num_blocks=20).map_batches(pass_on).iter_batches())
        finally:
            context.custom_execution_callback_classes = before
        assert max(map(max, kept)) == most
