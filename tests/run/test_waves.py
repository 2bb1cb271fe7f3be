"""Phases on the local executor: commits by time, kept parts of a killed run, walls, the lease."""

import os
import time
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from pathlib import Path

import pyarrow as pa
import pytest

from raycomp.config import LeaseLost, WavesConfig
from raycomp.data.files import Folder
from raycomp.run.executor import (
    SCORERS,
    Part,
    Pass,
    Session,
    Stage,
    Stats,
    merge_parts,
    read_parts,
    stage_part,
    use,
)
from raycomp.run.local import Local
from raycomp.run.work import Phase
from raycomp.words import OK, POSITION, SHARD_ORDINAL
from tests.run.test_local import ROWS, read

NUM_SHARDS, PER_CALL = 5, 4
SCHEMA = pa.schema([(POSITION, pa.int32()), ("score", pa.float64())])
OFTEN, SELDOM = WavesConfig(commit_s=0), WavesConfig(shards_per_wave=10**6, commit_s=10**6)


class Score:
    """A scorer that notes its rows, and is killed when it has seen ``most`` calls."""

    def __init__(self, num_threads: int | None, seen: list[tuple[int, int]], most: float):
        self.device, self.seen, self.left = self, seen, most

    def take_busy_seconds(self) -> None:
        return None

    def is_broken(self) -> bool:
        return False

    def __call__(self, table: pa.Table) -> pa.Table:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        rows = [*zip(table[SHARD_ORDINAL].to_pylist(), table[POSITION].to_pylist(), strict=True)]
        self.seen += rows
        return table.append_column("score", pa.array([100.0 * shard + row for shard, row in rows]))


def make_phase(
    folder: Path, waves: WavesConfig, seen: list[tuple[int, int]], most: float = -1, per_call: int = PER_CALL
) -> Phase:
    stage = Stage("score", "scores", SCORERS, partial(Score, seen=seen, most=most))
    session = Session(1, {}, 1, 1, 1, 8, is_local=True)
    items = {ordinal: ordinal for ordinal in range(NUM_SHARDS)}
    steps = Pass(session, items, read, (stage,), Part(SCHEMA), rows=8, scorer_rows=per_call)
    return Phase("score", Folder(str(folder / "work")), waves, steps, merge_parts, (str(folder), SCHEMA))


def run(folder: Path, waves: WavesConfig, seen: list[tuple[int, int]], **options: float) -> Stats:
    with use(Local(1)):
        return make_phase(folder, waves, seen, **options).run()


def results(folder: Path) -> list[bytes]:
    return [(folder / f"{ordinal:05d}.parquet").read_bytes() for ordinal in range(NUM_SHARDS)]


def all_rows() -> list[tuple[int, int]]:
    return [(shard, row) for shard in range(NUM_SHARDS) for row in range(ROWS)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("whole")
    stats = run(folder, SELDOM, seen := [])
    assert seen == all_rows() and stats.statuses == {OK: NUM_SHARDS * ROWS}
    assert [*(folder / "work" / "waves").iterdir()] == [folder / "work/waves/score-00000000.json"]
    return results(folder)


def test_commits_come_by_time_or_by_number_and_give_equal_bytes(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("raycomp.run.work._POLL_EVERY_S", 0)
    two = replace(SELDOM, shards_per_wave=2)
    for name, waves, sizes in (("often", OFTEN, [1] * NUM_SHARDS), ("two", two, [2, 2, 1])):
        folder = tmp_path / name
        run(folder, waves, [])
        work = Folder(str(folder / "work"))
        manifests = [work.read_json("waves", found)["shards"] for found in work.list_names("waves")]
        assert [*chain(*manifests)] == [*range(NUM_SHARDS)] and [*map(len, manifests)] == sizes, name
        assert results(folder) == whole, name
        assert not work.exists("parts", "score")


def run_killed(folder: Path, waves: WavesConfig, seen: list[tuple[int, int]], calls: int) -> list[str]:
    """Run until a kill at the call after these; return what was said of the rest."""
    with pytest.raises(KeyboardInterrupt) as killed:
        run(folder, waves, seen, most=calls)
    return killed.value.__notes__


def test_a_killed_run_resumes_within_its_shard_at_another_pace_and_scores_no_row_twice(tmp_path, whole):
    for calls, (first, then) in product((1, 6, 13, 26), [(SELDOM, OFTEN), (OFTEN, SELDOM)]):
        folder, seen = tmp_path / f"{calls}-{first.commit_s}", []
        run_killed(folder, first, seen, calls)
        assert seen == all_rows()[: calls * PER_CALL]
        rest: list[tuple[int, int]] = []
        stats = run(folder, then, rest, per_call=3)
        assert sorted(seen + rest) == all_rows(), calls
        assert stats.statuses == {OK: NUM_SHARDS * ROWS}, calls
        assert results(folder) == whole, calls


@pytest.mark.stores
def test_parts_in_a_bucket_are_kept_as_well(tmp_path, whole, bucket):
    work, seen, rest = Folder(f"{bucket}/waves/work"), [], []
    with use(Local(1)):
        with pytest.raises(KeyboardInterrupt):
            replace(make_phase(tmp_path, SELDOM, seen, most=7), work=work).run()
        replace(make_phase(tmp_path, OFTEN, rest), work=work).run()
    assert len(seen) == 7 * PER_CALL and sorted(seen + rest) == all_rows()
    assert results(tmp_path) == whole and not work.exists("parts", "score")


def test_damaged_cut_and_overlapping_parts_are_not_taken(tmp_path, whole):
    run_killed(tmp_path, SELDOM, first := [], 4)
    parts = tmp_path / "work" / "parts" / "score"
    cut, moved, *_ = kept = sorted((parts / "00000").iterdir())
    assert len(kept) == 4
    rows = {path: read_parts(str(parts), [f"00000/{path.name}"])[POSITION].to_pylist() for path in kept}
    cut.write_bytes(cut.read_bytes()[:-9])
    moved.rename(moved.with_name(f"00000000-{PER_CALL}.parquet"))
    (parts / "00000" / "tmp-of-a-writer").write_bytes(b"PAR1")
    again = [(0, row) for row in (*rows[cut], *rows[moved])]
    # A worker that outlived its run cut the rows otherwise; this part covers a part that is kept.
    table = pa.concat_tables(read(0)).slice(0, ROWS - 1)
    table = table.append_column("score", table[POSITION].cast(pa.float64()))
    (late,) = stage_part(table, str(parts), Part(SCHEMA)).to_pylist()
    os.rename(parts / late["file"], parts / "00000" / f"{'f' * 8}-{ROWS - 1}.parquet")
    rest: list[tuple[int, int]] = []
    run(tmp_path, OFTEN, rest)
    assert sorted(rest) == sorted({*all_rows()} - {*first} | {*again})
    assert results(tmp_path) == whole


def test_the_wall_of_lost_work_counts_nowhere_and_busy_seconds_lie_within_walls(tmp_path, monkeypatch):
    monkeypatch.setattr("raycomp.run.work._POLL_EVERY_S", 0)
    said = run_killed(tmp_path, OFTEN, [], 8)  # the first shard is committed
    assert said == [f"score: 1 of {NUM_SHARDS} shards are committed"]
    work = Folder(str(tmp_path / "work"))
    (name,) = work.list_names("waves")
    first = work.read_json("waves", name)["stats"]
    time.sleep(0.2)
    started = time.monotonic()
    stats = run(tmp_path, OFTEN, [])
    assert 0 < stats.wall_s - first["wall_s"] <= time.monotonic() - started
    assert all(0 < stats.seconds[stage] <= stats.offered[stage] for stage in ("read", "score", "write"))
    assert run(tmp_path, OFTEN, seen := []).statuses == stats.statuses and not seen


def test_without_the_lease_no_wave_is_committed(tmp_path, monkeypatch):
    monkeypatch.setattr("raycomp.run.work._POLL_EVERY_S", 0)
    merged: list[int] = []

    def merge(ordinal: int, *args: object) -> int:
        merged.append(ordinal)
        return ROWS

    def refuse() -> None:
        if merged == [0, 1]:
            raise LeaseLost("gone to another")

    phase = replace(make_phase(tmp_path, OFTEN, []), merge=merge, check=refuse)
    with use(Local(1)), pytest.raises(LeaseLost, match="gone to another"):
        phase.run()
    assert phase.work.list_names("waves") == ["score-00000000.json"]


class Watched(Folder):
    """A folder that notes which shards have parts at a commit."""

    def write_json(self, content: object, *names: str) -> None:
        super().write_json(content, *names)
        (Path(self.uri) / f"seen-{names[-1]}").write_text(" ".join(self.list_names("parts", "score")))


def test_a_waves_parts_go_once_it_is_committed(tmp_path):
    work = Watched(str(tmp_path / "work"))
    with use(Local(1)):
        replace(make_phase(tmp_path, replace(SELDOM, shards_per_wave=2), []), work=work).run()
    first, second = ((tmp_path / f"work/seen-score-{n:08d}.json").read_text().split() for n in (0, 2))
    assert {"00000", "00001"} <= {*first} and {"00002", "00003"} <= {*second} and "00000" not in second


def test_rows_that_are_missing_and_parts_that_overlap_are_a_mistake_of_ours(tmp_path):
    phase = make_phase(tmp_path, SELDOM, [])
    phase.steps = replace(phase.steps, read=lambda shard: islice(read(shard), 2 if shard == 1 else None))
    with use(Local(1)), pytest.raises(RuntimeError, match=r"shards \[1\] ended short of their rows"):
        phase.run()
    whole = pa.concat_tables(read(0))
    parts = [stage_part(table, str(tmp_path), Part(SCHEMA.remove(1))) for table in (whole, whole.slice(2))]
    with pytest.raises(RuntimeError, match="overlap"):
        read_parts(str(tmp_path), [part["file"][0].as_py() for part in parts])
