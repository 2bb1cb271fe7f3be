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
from tests.curation.test_changed_input import edit
from tests.training.pairs import check_all, make_config


@pytest.fixture(scope="module")
def whole(curated, tmp_path_factory) -> Path:
    """A folder of a curation, a selection without shards and negatives of it, which every test copies."""
    base = tmp_path_factory.mktemp("whole")
    shutil.copytree(curated[1], base / "curated")
    raycomp.select(str(base / "curated"), {"materialize": False}, str(base / "selected"))
    writing = WritingConfig(rank=False)
    raycomp.negatives(
        NegativesConfig(input=str(base / "curated"), negatives=writing), str(base / "negatives")
    )
    return base


@pytest.fixture
def runs(whole, tmp_path) -> Path:
    for name in ("curated", "selected", "negatives"):
        shutil.copytree(whole / name, tmp_path / name)
    return tmp_path


def list_commands(runs: Path) -> dict[str, list[str]]:
    curated, out = str(runs / "curated"), ["--out", str(runs / "out")]
    return {
        "train": ["train", "--set", f"input={curated}", "--set", "model.weights=random:0", *out],
        "negatives": ["negatives", "--set", f"input={curated}", "--set", "negatives.rank=false", *out],
        "select": ["select", curated, *out],
        "explain": ["explain", curated, "0" * 32],
        "show": ["show", curated],
    }


def cut_tar(runs: Path, count: int = 3) -> None:
    """Leave the first samples of the shard alone."""
    path = runs / "curated/shards/00000000.tar"
    with tarfile.open(path) as tar:
        names = [member for member in tar][: 3 * count]
        end = names[-1].offset_data + -(-names[-1].size // 512) * 512
    path.write_bytes(path.read_bytes()[:end] + bytes(1024))


def edit_scores(runs: Path) -> None:
    """Turn around the letters of every caption, which takes as many bytes in memory."""
    path = str(runs / "curated/scores/00001.parquet")
    table = read_columns(path)
    place = table.schema.get_field_index("caption")
    write_table(table.set_column(place, "caption", pc.utf8_swapcase(table["caption"])), path, table.schema)


def cut_kept(runs: Path) -> None:
    path = runs / "curated/subset/kept.parquet"
    pq.write_table(pq.read_table(path).slice(0, 10), path)


BREAKS: dict[str, tuple[Callable[[Path], object], str, set[str]]] = {
    "tar cut": (cut_tar, "00000000.tar: is shorter", {"train", "show"}),
    "tar twice": (
        lambda runs: shutil.copy(runs / "curated/shards/00000000.tar", runs / "curated/shards/00000001.tar"),
        "00000001.tar: was not written by the run",
        {"train", "show"},
    ),
    "shards gone": (lambda runs: shutil.rmtree(runs / "curated/shards"), "is missing", {"train", "show"}),
    "kept cut": (cut_kept, "kept.parquet: is ", {"train", "negatives", "show"}),
    "scores edited": (edit_scores, "00001.parquet: ", {"negatives", "select", "explain", "show"}),
    "scores of another": (
        lambda runs: shutil.copy(
            runs / "curated/scores/00000.parquet", runs / "curated/scores/00001.parquet"
        ),
        "00001.parquet: ",
        {"negatives", "select", "explain", "show"},
    ),
}


@pytest.mark.parametrize("how", BREAKS)
def test_no_command_reads_a_run_that_was_broken(runs, capsys, how):
    apply, said, readers = BREAKS[how]
    apply(runs)
    lines = list_commands(runs)
    for name in sorted(readers):
        assert main([*lines[name]]) == USER_ERROR, name
        line = capsys.readouterr().err.splitlines()[-1]
        assert said in line and line.startswith("raycomp: "), (name, line)
    assert not (runs / "out").exists() or not (runs / "out/run.json").exists()


def test_show_prints_what_a_broken_run_was(runs, capsys):
    cut_tar(runs)
    assert main(["show", str(runs / "curated")]) == USER_ERROR
    assert "read" in capsys.readouterr().out


EDITS = {
    "image": lambda path: edit(path, ".jpg", lambda data: data[:-2] + b"xx"),
    "caption": lambda path: edit(path, ".txt", lambda data: data.swapcase()),
}


@pytest.mark.parametrize("what", EDITS)
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


def test_a_copy_with_other_times_in_another_place_is_read(curated, runs, tmp_path):
    """As cp without -p, rsync without -t and stores make it."""
    moved = shutil.copytree(runs / "curated", tmp_path / "moved", copy_function=shutil.copyfile)
    (moved / "shards/.DS_Store").write_bytes(b"x")
    assert main(["show", str(moved), "--verify"]) == 0
    for path in Path(curated[0].input).iterdir():
        path.touch()
    found = [check_all(make_config(input=str(folder))) for folder in (moved, runs / "selected")]
    assert pa.concat_tables(found[0][1])["uid"].equals(pa.concat_tables(found[1][1])["uid"])


def test_verify_finds_a_bit_that_no_size_shows(runs, capsys):
    EDITS["image"](runs / "curated/shards/00000000.tar")
    assert main(["show", str(runs / "curated")]) == 0
    assert main(["show", str(runs / "curated"), "--verify"]) == USER_ERROR
    assert "00000000.tar: was changed; its SHA-256 is not the one" in capsys.readouterr().err
