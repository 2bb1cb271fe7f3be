"""Which input rows an output is made of, and runs that are cut while they write outputs."""

import json
from pathlib import Path

import numpy as np
import pytest

import raycomp
from raycomp.config import ClusterConfig, override_all
from raycomp.curation import outputs, write
from raycomp.curation.outputs import count_pieces, cut_ranges, plan_outputs, split_rows
from raycomp.data.samples import write_tar
from tests.corpus import by_cpi, scenes, write_world_shards

SPAN = 20


def draw_rows(seed: int, most: int = 70) -> list[int]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, most, rng.integers(1, 40)).tolist()


def test_ranges_hold_every_row_once_in_order():
    for most in [3, 15, 70]:
        for seed in range(8):
            rows = draw_rows(seed, most)
            ranges = cut_ranges(rows)
            pieces = [piece for parts in ranges for piece in parts]
            flat = [(shard, row) for shard, start, end in pieces for row in range(start, end)]
            assert flat == [(shard, row) for shard, count in enumerate(rows) for row in range(count)]
            assert all(0 < sum(end - start for _, start, end in parts) <= 2 * SPAN for parts in ranges)
            assert most == 70 or len(rows) < 2 or any(len(parts) > 1 for parts in ranges)


def test_a_new_row_changes_one_range():
    """As long as the number of shards per output stays the same."""
    for seed in range(8):
        rows = [count or 1 for count in draw_rows(seed, 9)]
        before = cut_ranges(rows)
        for shard in range(len(rows)):
            after = cut_ranges([count + (number == shard) for number, count in enumerate(rows)])
            if len(before) == len(after):
                assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_outputs_are_numbered_without_gaps_and_hold_what_is_kept():
    for seed in range(8):
        rng, rows = np.random.default_rng(seed), draw_rows(seed)
        kept = [np.flatnonzero(rng.random(count) < rng.choice([0, 0.05, 0.5])) for count in rows]
        found = plan_outputs(rows, [count_pieces(position) for position in kept])
        assert [output.number for output in found] == list(range(len(found)))
        slow = [
            sum(start <= row < end for shard, start, end in parts for row in kept[shard])
            for parts in cut_ranges(rows)
        ]
        assert [output.size for output in found] == [size for size in slow if size]


def test_rows_of_files_are_split_as_a_loop_splits_them():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, 6, 12).tolist()
        sizes, left = [], sum(rows)
        while left:
            sizes.append(min(left, int(rng.integers(1, 9))))
            left -= sizes[-1]
        flat = [(file, row) for file, count in enumerate(rows) for row in range(count)]
        for size, parts in zip(sizes, split_rows(rows, sizes), strict=True):
            assert [(file, row) for file, start, end in parts for row in range(start, end)] == flat[:size]
            flat = flat[size:]
        assert not flat


class Cut(Exception):
    """Ends a run at any place."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Outputs of few rows: the two shards of 45 rows become three each."""
    monkeypatch.setattr(outputs, "SPAN", SPAN)


def curate(folder: Path, source: str, scorer, **options) -> Path:
    cluster = ClusterConfig(executor="local", num_cpus=2)
    config = by_cpi(input=source, scorer=scorer, cluster=cluster, materialize=True)
    raycomp.curate(override_all(config, options), str(folder))
    return folder


def read_files(folder: Path, *names: str) -> dict[str, bytes]:
    paths = [path for name in names for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_run_that_is_cut_resumes_with_the_outputs_that_are_left(tmp_path, monkeypatch, tiny_scorer):
    source, cut = write_world_shards(tmp_path / "in", 90, 45), tmp_path / "cut"
    whole = curate(tmp_path / "whole", source, tiny_scorer)
    commit, counts = outputs.commit_output, []

    def commit_few(*args):
        counts[-1] -= 1
        if counts[-1] < 0:
            raise Cut
        return commit(*args)

    with monkeypatch.context() as patched:
        patched.setattr(write, "commit_output", commit_few)
        for count, total in ((0, 0), (2, 2), (3, 5)):
            before = {path: path.stat().st_mtime_ns for path in (cut / "shards").glob("*.tar")}
            counts.append(count)
            with pytest.raises(Cut):
                curate(cut, source, tiny_scorer)
            written = {path: path.stat().st_mtime_ns for path in (cut / "shards").glob("*.tar")}
            assert len(written) == total and before.items() <= written.items()
            assert not (cut / "subset/kept.parquet").exists()
    curate(cut, source, tiny_scorer)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    names = ("scores", "subset", "shards")
    assert read_files(cut, *names) == read_files(whole, *names)
    assert len([*(cut / "shards").glob("*.tar")]) == 6
    manifests = [json.loads((one / "run.json").read_text())["manifest"]["results"] for one in (whole, cut)]
    assert manifests[0] == manifests[1]


def test_a_new_sample_changes_one_output(tmp_path, tiny_scorer):
    """All others keep their bytes: a json holds raw scores, and no output follows the counts before it."""
    samples, found = scenes(91, seed=0), []
    for num in (45, 46):
        folder = tmp_path / f"in-{num}"
        for name, part in (("a", [*samples[:45], *samples[90:]][:num]), ("b", samples[45:90])):
            write_tar(str(folder / f"{name}.tar"), ((f"{i:03d}", one) for i, one in enumerate(part)))
        out = curate(tmp_path / f"out-{num}", str(folder), tiny_scorer, **{"select.rule": "full"})
        found.append(read_files(out, "shards"))
    old, new = found
    changed = [name for name in new if name.endswith(".tar") and new[name] != old.get(name)]
    assert changed == ["shards/00000002.tar"]
    assert [*json.loads(new["shards/sizes.json"]).values()] == [20, 20, 6, 20, 20, 5]
