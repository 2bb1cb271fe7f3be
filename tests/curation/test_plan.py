"""A plan stands on whole shards of middle size, whatever the first one is like."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from raycomp.cli import main
from raycomp.curation.score import score as plans
from raycomp.curation.score.score import plan, take_sample
from raycomp.data.inputs import expand_input, fingerprint_shards
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar
from tests.corpus import by_cpi
from tests.drawn import world_shards


def write(folder: Path, count: int, per_shard: int) -> Path:
    for name, samples in world_shards(count, 0, 0, per_shard=per_shard):
        write_tar(str(folder / name), samples)
    return folder


def sample(folder: Path) -> plans.TimedRows:
    shards = expand_input(str(folder))
    return take_sample(shards, [shard["size"] for shard in fingerprint_shards(shards)], str(folder))


def reported(text: str) -> int:
    """Return the number of samples that a plan tells."""
    return int(re.search(r"samples +about ([0-9,]+)", text)[1].replace(",", ""))


@pytest.mark.parametrize("broken", ["cut", "no tar", "empty", "large", "corrupt"])
def test_a_broken_first_shard_does_not_count(tiny_scorer, tmp_path, broken):
    first = write(tmp_path, 80, 20) / "00000.tar"
    whole = first.read_bytes()
    if broken == "large":  # one text of two megabytes and nothing else
        write_tar(str(first), [("a", {"txt": b"x" * (2 << 20)})])
    elif broken == "corrupt":
        write_tar(str(first), [("a", {"jpg": b"no picture", "txt": b"a dog"})])
    else:
        first.write_bytes({"cut": whole[: len(whole) // 2], "no tar": b"no tar " * 999, "empty": b""}[broken])
    text = plan(by_cpi(input=str(tmp_path), scorer=tiny_scorer))
    other_bytes = first.stat().st_size / len(whole) * 20
    assert reported(text) == pytest.approx(60 + other_bytes, rel=0.1)
    assert ("00000.tar: incomplete" in text) == (broken in ("cut", "no tar", "empty", "large"))


def test_the_shard_of_middle_size_stands_for_all(tmp_path):
    write(tmp_path, 300, 300)
    (tmp_path / "00000.tar").rename(tmp_path / "middle.tar")
    write_tar(str(tmp_path / "a-small.tar"), [("a", {"txt": b"a"})])
    write_tar(str(tmp_path / "z-large.tar"), [("a", {"txt": b"x" * (20 << 20)})])
    found = sample(tmp_path)
    assert found.names == ["middle.tar"] and found.num_rows == 300 and len(found.table) == 256


def test_small_shards_are_measured_together_and_read_before_they_are_timed(tmp_path, monkeypatch):
    reads: list[str] = []

    def read(shard, rows) -> Iterator[pa.Table]:
        reads.append(shard.name)
        return read_shard(shard, rows)

    monkeypatch.setattr(plans, "read_shard", read)
    found = sample(write(tmp_path, 100, 10))
    assert len(found.table) == found.num_rows == 100 and len(found.names) == 10
    assert reads == [*found.names, *found.names]


@pytest.mark.parametrize("kind", ["no tar", "empty", "no image", "corrupt"])
def test_input_without_a_usable_row_is_one_line(tiny_scorer, tmp_path, capsys, kind):
    folder = tmp_path / "in"
    for i in range(3):
        members = {"txt": b"a dog"} if kind == "no image" else {"jpg": b"no picture", "txt": b"a dog"}
        write_tar(str(folder / f"{i}.tar"), [("a", members)])
        if kind in ("no tar", "empty"):
            (folder / f"{i}.tar").write_bytes(b"no tar " * 999 if kind == "no tar" else b"")
    options = {"input": folder, "scorer.model": tiny_scorer.model, "scorer.weights": tiny_scorer.weights}
    line = [part for item in options.items() for part in ("--set", "{}={}".format(*item))]
    assert main(["curate", *line, "--out", str(tmp_path / "out"), "--dry-run"]) == 2
    said = capsys.readouterr().err.strip()
    assert "no usable row" in said and "\n" not in said and str(folder) in said
