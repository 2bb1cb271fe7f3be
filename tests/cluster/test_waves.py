"""Waves by themselves: what writing and committing cost, and walls that add up over a restart."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pytest

from raycomp.cluster import parts
from raycomp.cluster.parts import Part, stage_part
from raycomp.cluster.progress import Place
from raycomp.cluster.waves import Phase
from raycomp.shards.folder import Folder
from raycomp.words import (
    IS_LAST,
    OK,
    POSITION,
    SHARD_ORDINAL,
    STATUS,
)

PART = Part(pa.schema([(POSITION, pa.int32()), (STATUS, pa.string())]))
CREW = {"read": Place("reads", 3, "cpus"), "write": Place("writes", 2, "cpus")}
ROWS = 5
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
    monkeypatch.setattr(parts, "write_table", lambda *_: time.sleep(0.05))
    started = time.perf_counter()
    receipts = stage_part(pa.concat_tables(map(make_rows, (0, 1))), str(tmp_path), PART).to_pylist()
    took = time.perf_counter() - started
    seconds = [json.loads(receipt["stats"])["seconds"] for receipt in receipts]
    assert [part["read"] for part in seconds] == pytest.approx([0.1, 0.1])
    assert all(part["write"] >= 0.05 for part in seconds) and sum(part["write"] for part in seconds) <= took


class SlowFolder(Folder):
    """A folder whose json takes its time."""

    def write_json(self, content: object, *names: str) -> None:
        time.sleep(COMMIT_S)
        super().write_json(content, *names)


@dataclass
class Receipts:
    """Stands for the dataset of a phase: stages shard after shard.

    With ``work``, its first shard is committed there and then the user interrupts.
    """

    ordinals: list[int]
    parts_uri: str
    work: Folder | None = None

    def iter_batches(self, **_: object) -> Iterator[pa.Table]:
        for ordinal in self.ordinals:
            time.sleep(PAUSE_S)
            yield stage_part(make_rows(ordinal), self.parts_uri, PART)
            if self.work:
                while not self.work.list_names("waves"):
                    time.sleep(0.02)
                    yield stage_part(make_rows(ordinal)[:0], self.parts_uri, PART)
                time.sleep(PAUSE_S)
                raise KeyboardInterrupt


def merge_slowly(ordinal: int, parts_uri: str, names: list[str]) -> int:
    time.sleep(MERGE_S)
    return ROWS


@pytest.mark.ray
def test_walls_add_up_over_a_restart_and_what_was_lost_counts_nowhere(tmp_path, ray_cluster):
    work = SlowFolder(str(tmp_path))
    phase = Phase("align", work, 1, merge_slowly, (), CREW)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as interrupt:
        phase.run([0, 1, 2], partial(Receipts, work=work), None)
    assert interrupt.value.__notes__ == ["align: 1 of 3 waves are committed, wave 2 goes on"]
    first_s = time.monotonic() - started
    (name,) = work.list_names("waves")
    kept = work.read_json("waves", name)["stats"]
    assert PAUSE_S + MERGE_S <= kept["wall_s"] <= first_s - COMMIT_S - PAUSE_S  # to the commit, not its end
    assert kept["counts"][STATUS] == {OK: ROWS}

    started = time.monotonic()
    stats = phase.run([0, 1, 2], Receipts, None)
    second_s = time.monotonic() - started
    assert 2 * (PAUSE_S + COMMIT_S) <= stats.wall_s - kept["wall_s"] <= second_s
    assert 2 * COMMIT_S <= stats.commit_s <= second_s - 2 * PAUSE_S
    assert stats.statuses == {OK: 3 * ROWS}
    assert stats.seconds["read"] == pytest.approx(3 * 0.1)
    assert 3 * MERGE_S <= stats.seconds["write"] <= stats.offered["write"]
    assert stats.offered["read"] == pytest.approx(3 * stats.wall_s)
    again = phase.run([0, 1, 2], Receipts, None)
    assert again.statuses == stats.statuses
    assert again.wall_s <= stats.wall_s - COMMIT_S  # no manifest tells how long the last commit took
