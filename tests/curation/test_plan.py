"""A plan stands on whole shards of middle size, and says what a million pairs cost on a machine."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from raycomp.cli import main
from raycomp.config import ClusterConfig, TooMuchBadData, override
from raycomp.config.options import Machine
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
    return take_sample(shards, [shard["size"] for shard in fingerprint_shards(shards)])


def test_a_broken_first_shard_does_not_count(tiny_scorer, tmp_path):
    first = write(tmp_path, 80, 20) / "00000.tar"
    whole = first.read_bytes()
    write_tar(str(tmp_path / "large"), [("a", {"txt": b"x" * (2 << 20)})])  # one text and nothing else
    large = (tmp_path / "large").read_bytes()
    (tmp_path / "large").unlink()
    for data in (whole[: len(whole) // 2], b"no tar " * 999, b"", large):
        first.write_bytes(data)
        text = plan(by_cpi(input=str(tmp_path), scorer=tiny_scorer, max_bad_fraction=0.5))
        count = int(re.search(r"samples +about ([0-9,]+)", text)[1].replace(",", ""))
        assert count == pytest.approx(60 + 20 * len(data) / len(whole), rel=0.1), data[:9]
        assert "00000.tar: incomplete" in text, data[:9]
    first.write_bytes(b"PK\3\4")
    with pytest.raises(TooMuchBadData, match=r"1 of 4 shards cannot .*; 00000\.tar is a zip or 7z archive"):
        plan(by_cpi(input=str(tmp_path), scorer=tiny_scorer))


def test_small_shards_are_measured_together_and_read_before_they_are_timed(tmp_path, monkeypatch):
    """And a shard of middle size stands for all."""
    reads: list[str] = []

    def read(shard, rows) -> Iterator[pa.Table]:
        reads.append(shard.name)
        return read_shard(shard, rows)

    monkeypatch.setattr(plans, "read_shard", read)
    found = sample(write(tmp_path / "small", 100, 10))
    assert len(found.table) == found.num_rows == 100 and len(found.names) == 10
    assert reads == [*found.names, *found.names]
    middle = write(tmp_path / "large", 300, 300) / "00000.tar"
    middle.rename(middle.with_name("middle.tar"))
    write_tar(str(middle.with_name("a-small.tar")), [("a", {"txt": b"a"})])
    write_tar(str(middle.with_name("z-large.tar")), [("a", {"txt": b"x" * (20 << 20)})])
    found = sample(tmp_path / "large")
    assert found.names == ["middle.tar"] and found.num_rows == 300 and len(found.table) == 256


def test_input_without_a_usable_row_is_one_line(tiny_scorer, tmp_path, capsys):
    for kind, members in (
        ("no tar", None),
        ("no image", {"txt": b"a"}),
        ("corrupt", {"jpg": b"x", "txt": b"a"}),
    ):
        for i in range(3):
            write_tar(str(tmp_path / kind / f"{i}.tar"), [("a", members)] if members else [])
            if members is None:
                (tmp_path / kind / f"{i}.tar").write_bytes(b"no tar " * 999 * (i > 0))
        sets = [f"input={tmp_path / kind}", f"scorer.model={tiny_scorer.model}", "scorer.weights=random:0"]
        line = ["curate", *(f"--set={one}" for one in sets), "--out", str(tmp_path / "out")]
        assert main([*line, "--dry-run"]) == 2
        said = capsys.readouterr().err.strip()
        assert "none of" in said and "\n" not in said
        assert main(line) == 2 and said in capsys.readouterr().err, "the run says the same"
        assert not (tmp_path / "out").exists()


def test_a_slow_stage_is_measured_on_a_few_rows(monkeypatch):
    calls: list[int] = []

    def work(table: pa.Table) -> pa.Table:
        calls.append(len(table))
        clock[0] += len(table) * 2.0
        return table

    clock, table = [0.0], pa.table({"x": range(256)})
    monkeypatch.setattr(plans.time, "perf_counter", lambda: clock[0])
    done, row_s = plans._time_stage(work, table, plans._STAGE_S)
    assert (len(done), row_s, calls) == (8, 2.0, [8]), "16 s are above the limit"
    done, row_s = plans._time_stage(work, table, 100.0)
    assert (len(done), row_s, calls) == (50, 2.0, [8, 8, 50])
    assert plans._time_stage(work, table.slice(0, 0), 100.0)[1] == 0


# An hour of a GPU for a million pairs, and 48 hours of a core to feed it; 32 hours of a core to score.
ON_GPU = {"cpu_s": 48 * 3600, "scorer_s": 3600, "scorer_cores": 0}
ON_CPU = {"cpu_s": 48 * 3600, "scorer_s": 4 * 3600, "scorer_cores": 8}


def test_the_slower_of_cpus_and_gpus_is_what_a_million_pairs_take():
    for measured, cpus, gpus, hours, bound in [
        (ON_GPU, 16, 1, 3.0, "its CPUs"),
        (ON_GPU, 64, 1, 1.0, "its GPUs"),
        (ON_GPU, 48, 4, 1.0, "its CPUs"),
        (ON_GPU, 192, 2, 0.5, "its GPUs"),
        (ON_CPU, 16, 0, 5.0, "its CPUs"),
        (ON_GPU, 16, 0, None, "not known: measured with a GPU"),
        (ON_CPU, 16, 1, None, "not known: measured without a GPU"),
    ]:
        row = plans.price_machines([Machine("a", cpus, gpus, 2.5)], **measured).rows[0]
        assert list(row[1:]) == [hours, hours and 2.5 * hours, bound]


def test_a_machine_that_says_less_is_refused():
    for text in ["a:16:1", "a:16:1:x", "a:0:1:1", "a:16:-1:1", "a:16:1:inf", "a:1:1:1:1", "a"]:
        with pytest.raises(ValueError, match=r"cluster\.machines='.*': must be NAME:CPUS:GPUS:PRICE"):
            override(ClusterConfig(), "machines", f"b:16:1:1.5,{text}")
