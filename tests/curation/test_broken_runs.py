"""A finished run that was damaged, cut, mixed or edited is refused by every command that reads it."""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import USER_ERROR, main
from raycomp.data.parquet import read_columns, write_table
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.training.pairs import load_shard
from tests.curation.test_changed_input import EDITS
from tests.training.pairs import check_all, make_config


@pytest.fixture(scope="module")
def whole(curated, tmp_path_factory) -> Path:
    """A folder of a curation, a selection without shards and negatives of it, which every test copies."""
    base = tmp_path_factory.mktemp("whole")
    shutil.copytree(curated[1], base / "curated")
    raycomp.select(str(base / "curated"), {"materialize": False}, str(base / "selected"))
    written = NegativesConfig(input=str(base / "curated"), negatives=WritingConfig(rank=False))
    raycomp.negatives(written, str(base / "negatives"))
    return base


@pytest.fixture
def runs(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "runs")


def list_commands(runs: Path) -> dict[str, list[str]]:
    curated, out = str(runs / "curated"), ["--out", str(runs / "out")]
    return {
        "train": ["train", "--set", f"input={curated}", "--set", "model.weights=random:0", *out],
        "negatives": ["negatives", "--set", f"input={curated}", "--set", "negatives.rank=false", *out],
        "select": ["select", curated, *out],
        "explain": ["explain", curated, "0" * 32],
        "show": ["show", curated],
    }


def cut_tar(run: Path) -> None:
    """Leave the first three samples of the shard alone."""
    path = run / "shards/00000000.tar"
    with tarfile.open(path) as tar:
        last = [member for member in tar][8]
    end = last.offset_data + -(-last.size // 512) * 512
    path.write_bytes(path.read_bytes()[:end] + bytes(1024))


def edit_scores(run: Path) -> None:
    """Turn around the letters of every caption, which takes as many bytes in memory."""
    path = str(run / "scores/00001.parquet")
    table = read_columns(path)
    place = table.schema.get_field_index("caption")
    write_table(table.set_column(place, "caption", pc.utf8_swapcase(table["caption"])), path, table.schema)


def copy(source: str, target: str) -> Callable[[Path], object]:
    return lambda run: shutil.copy(run / source, run / target)


def cut_kept(run: Path) -> None:
    path = run / "subset/kept.parquet"
    pq.write_table(pq.read_table(path).slice(0, 10), path)


OF_SHARDS, OF_SCORES = ("train", "show"), ("negatives", "select", "explain", "show")
TWICE = copy("shards/00000000.tar", "shards/00000001.tar")
BREAKS: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...]]] = {
    "tar cut": (cut_tar, "00000000.tar: is shorter", OF_SHARDS),
    "tar twice": (TWICE, "00000001.tar: was not written by the run", OF_SHARDS),
    "shards gone": (lambda run: shutil.rmtree(run / "shards"), "is missing", OF_SHARDS),
    "kept cut": (cut_kept, "kept.parquet: is ", ("train", "negatives", "show")),
    "scores edited": (edit_scores, "00001.parquet: ", OF_SCORES),
    "scores of another": (copy("scores/00000.parquet", "scores/00001.parquet"), "00001.parquet: ", OF_SCORES),
}


def test_no_command_reads_a_run_that_was_broken(whole, tmp_path, capsys):
    for how, (apply, said, readers) in BREAKS.items():
        runs = tmp_path / how
        shutil.copytree(whole / "curated", runs / "curated")
        apply(runs / "curated")
        for name in readers:
            assert main(list_commands(runs)[name]) == USER_ERROR, (how, name)
            out, err = capsys.readouterr()
            line = err.splitlines()[-1]
            assert said in line and line.startswith("raycomp: "), (how, name, line)
            assert name != "show" or "read" in out, "it prints what the run was"
        assert not (runs / "out/run.json").exists()


@pytest.mark.parametrize("what", ["image", "caption"])
def test_what_stands_under_a_uid_is_what_was_written(curated, runs, what):
    """In shards of the run, and in the input of a selection without; sizes and times stay."""
    config = make_config(input=str(runs / "curated"))
    check_all(config)
    EDITS[what](runs / "curated/shards/00000000.tar")
    with pytest.raises(ValueError, match=rf"00000000\.tar: differs from what the run wrote: {what}"):
        check_all(config)
    pairs, indices, _ = check_all(make_config(input=str(runs / "selected")))
    path = Path(curated[0].input) / "00001.tar"
    before = path.read_bytes()
    try:
        EDITS[what](path)
        with pytest.raises(ValueError, match=r"00001\.tar: its pairs differ from those that the run listed"):
            load_shard(pairs, 1, indices[1])
    finally:
        path.write_bytes(before)


def test_negatives_that_are_not_whole_are_refused(runs):
    config = make_config(input=str(runs / "curated"), negatives=str(runs / "negatives"))
    check_all(config)
    last = sorted((runs / "negatives/negatives").iterdir())[-1]
    last.unlink()
    with pytest.raises(ValueError, match=rf"negatives=.*/{last.name}: is missing; the run wrote it with"):
        check_all(config)


def test_a_copy_with_other_times_in_another_place_is_read_and_no_changed_bit(curated, runs, tmp_path, capsys):
    """As cp without -p, rsync without -t and stores make it. Only --verify reads every byte."""
    moved = shutil.copytree(runs / "curated", tmp_path / "moved", copy_function=shutil.copyfile)
    (moved / "shards/.DS_Store").write_bytes(b"x")
    assert main(["show", str(moved), "--verify"]) == 0
    for path in Path(curated[0].input).iterdir():
        path.touch()
    found = [check_all(make_config(input=str(folder))) for folder in (moved, runs / "selected")]
    assert pa.concat_tables(found[0][1])["uid"].equals(pa.concat_tables(found[1][1])["uid"])
    EDITS["image"](moved / "shards/00000000.tar")
    assert main(["show", str(moved)]) == 0 and main(["show", str(moved), "--verify"]) == USER_ERROR
    assert "00000000.tar: was changed; its SHA-256 is not the one" in capsys.readouterr().err
