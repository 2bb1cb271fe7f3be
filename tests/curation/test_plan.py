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


def test_a_broken_first_shard_does_not_count(tiny_scorer, tmp_path):
    first = write(tmp_path, 80, 20) / "00000.tar"
    whole = first.read_bytes()
    write_tar(str(tmp_path / "large"), [("a", {"txt": b"x" * (2 << 20)})])  # one text and nothing else
    large = (tmp_path / "large").read_bytes()
    (tmp_path / "large").unlink()
    for data in (whole[: len(whole) // 2], b"no tar " * 999, b"", large):
        first.write_bytes(data)
        text = plan(by_cpi(input=str(tmp_path), scorer=tiny_scorer))
        count = int(re.search(r"samples +about ([0-9,]+)", text)[1].replace(",", ""))
        assert count == pytest.approx(60 + 20 * len(data) / len(whole), rel=0.1), data[:9]
        assert "00000.tar: incomplete" in text, data[:9]


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


def test_input_without_a_usable_row_is_one_line(tiny_scorer, tmp_path, capsys):
    for kind in ("no tar", "no image", "corrupt"):
        folder = tmp_path / kind
        for i in range(3):
            members = {"txt": b"a dog"} if kind == "no image" else {"jpg": b"no picture", "txt": b"a dog"}
            write_tar(str(folder / f"{i}.tar"), [("a", members)])
            if kind == "no tar":
                (folder / f"{i}.tar").write_bytes(b"no tar " * 999 * (i > 0))
        options = (
            f"input={folder}",
            f"scorer.model={tiny_scorer.model}",
            f"scorer.weights={tiny_scorer.weights}",
        )
        sets = [f"--set={option}" for option in options]
        assert main(["curate", *sets, "--out", str(tmp_path / "out"), "--dry-run"]) == 2
        said = capsys.readouterr().err.strip()
        assert "no usable row" in said and "\n" not in said and str(folder) in said
