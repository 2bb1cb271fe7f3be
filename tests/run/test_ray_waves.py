"""Waves on Ray: a run without progress is restarted from its commits and parts."""

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

from raycomp.config import ClusterFailed, WavesConfig
from raycomp.data.files import Folder
from raycomp.run.executor import Part, Stalled, There, WorkerPool, read_parts, stage_part, use
from raycomp.run.ray_cluster import OnRay, read_metadata
from raycomp.run.work import Phase
from raycomp.words import IS_LAST, OK, POSITION, SHARD_ORDINAL, STATUS

PART = Part(pa.schema([(POSITION, pa.int32()), (STATUS, pa.string())]))
ROWS = 5
OFTEN = WavesConfig(commit_s=0)


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


def merge_counted(ordinal: int, parts_uri: str, names: list[str], target: str) -> int:
    table = read_parts(parts_uri, names)
    Path(target, f"{ordinal}").write_text(str(len(table)))
    return len(table)


@dataclass
class Steps:
    """Stands for a pass over three shards."""

    work: Folder
    most: There | None = None

    def __post_init__(self):
        self.items = dict.fromkeys(range(3))
        self.worker_pools = {stage: WorkerPool(stage, 3, "cpus") for stage in ("read", "write")}

    def phase(self) -> Phase:
        return Phase("align", self.work, OFTEN, self, partial(merge_counted, target=self.work.uri), ())


def stage_or_hang(batch: dict, parts_uri: str, flag: str) -> pa.Table:
    """Stage a shard; the first time that it is the second's turn, never come back."""
    (ordinal,) = batch["id"]
    if ordinal == 1 and not Path(flag).exists():
        Path(flag).touch()
        time.sleep(600)
    return stage_part(make_rows(int(ordinal)), parts_uri, PART)


class Hangs(Steps):
    """Its second shard hangs the first time."""

    def run(self, ordinals: list[int], parts_uri: str, done: dict) -> Iterator[list[dict]]:
        assert 1 in ordinals and not done
        stage = partial(stage_or_hang, parts_uri=parts_uri, flag=self.work.at("hung"))
        rows = [{"id": ordinal} for ordinal in ordinals]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(stage, batch_size=1)
        return read_metadata(dataset)


def test_a_phase_that_stands_still_starts_again_from_its_commits(tmp_path, ray_cluster, monkeypatch, capfd):
    """A busy machine may take longer to start its workers: then it stands still once more."""
    monkeypatch.setattr(DataContext.get_current(), "execution_no_progress_timeout_s", 6)
    with use(OnRay(6)):
        stats = Hangs(Folder(str(tmp_path))).phase().run()
    assert stats.statuses == {OK: 3 * ROWS}
    assert [(tmp_path / f"{ordinal}").read_text() for ordinal in range(3)] == [f"{ROWS}"] * 3
    line = r"^align: no block came for \d+ s; restarted from its commits$"
    assert re.findall(line, capfd.readouterr().err, re.MULTILINE)


class Still(Steps):
    """Stands for a pass that yields one shard, then nothing more."""

    def run(self, ordinals: list[int], parts_uri: str, done: dict) -> Iterator[list[dict]]:
        if len(ordinals) > 2:
            yield stage_part(make_rows(ordinals[0]), parts_uri, PART).to_pylist()
            time.sleep(1)
            yield []
        raise Stalled("no block came")


def test_a_phase_that_stands_still_for_good_ends_in_one_line(tmp_path, ray_cluster, capfd):
    phase = Still(Folder(str(tmp_path))).phase()
    with pytest.raises(
        ClusterFailed,
        match=r"^align: no block came for [\d,]+ s, 4 times without a commit .* the same command resumes it",
    ):
        phase.run()
    assert len(phase.work.list_names("waves")) == 1
    assert capfd.readouterr().err.count("restarted from its commits") == 3 + 1
