"""A run that was damaged or edited is refused by every reader, and so is an input that changed unseen."""

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import raycomp
from raycomp.cli import USER_ERROR, main
from raycomp.data.parquet import read_columns, write_table
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.training.pairs import load_shard
from tests.training.pairs import check_all, make_config


@pytest.fixture
def shards(curated) -> Iterator[Path]:
    """The input of the curation; every test finds it as it was."""
    folder = Path(curated[0].input)
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    yield folder
    for path, (data, time) in files.items():
        path.write_bytes(data)
        os.utime(path, ns=(time, time))


def edit(path: Path, extension: str, change: Callable[[bytes], bytes]) -> None:
    """Change every member of an extension in its place; the file keeps its size and its time."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        for member in tar:
            if member.name.endswith(extension):
                part = slice(member.offset_data, member.offset_data + member.size)
                data[part] = change(bytes(data[part]))
    path.write_bytes(data)
    os.utime(path, ns=times)


EDITS: dict[str, Callable[[Path], None]] = {
    "image": lambda path: edit(path, ".jpg", lambda data: data[:-2] + b"xx"),
    "caption": lambda path: edit(path, ".txt", lambda data: data.swapcase()),
}


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


def test_a_copy_with_other_times_in_another_place_is_read_and_no_changed_bit(shards, runs, tmp_path, capsys):
    """As cp without -p, rsync without -t and stores make it. Only --verify reads every byte."""
    moved = shutil.copytree(runs / "curated", tmp_path / "moved", copy_function=shutil.copyfile)
    (moved / "shards/.DS_Store").write_bytes(b"x")
    assert main(["show", str(moved), "--verify"]) == 0
    for path in shards.iterdir():
        path.touch()
    found = [check_all(make_config(input=str(folder))) for folder in (moved, runs / "selected")]
    assert pa.concat_tables(found[0][1])["uid"].equals(pa.concat_tables(found[1][1])["uid"])
    EDITS["image"](moved / "shards/00000000.tar")
    assert main(["show", str(moved)]) == 0 and main(["show", str(moved), "--verify"]) == USER_ERROR
    assert "00000000.tar: was changed; its SHA-256 is not the one" in capsys.readouterr().err


def cut_file(path: Path) -> None:
    """Zero the second half of a file: its later samples are missing."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))
    os.utime(path, ns=times)


def test_no_command_reads_a_run_that_was_broken(whole, tmp_path, capsys):
    of_shards, of_scores = ("train", "show"), ("negatives", "select", "explain", "show")
    for how, apply, said, readers in [
        ("tar cut", cut_tar, "00000000.tar: is shorter", of_shards),
        ("more tars", lambda run: shutil.copy(run / "shards/00000000.tar", run / "shards/00000001.tar"),
         "00000001.tar: was not written by the run", of_shards),
        ("shards gone", lambda run: shutil.rmtree(run / "shards"), "is missing", of_shards),
        ("subset cut", lambda run: (run / "subset/kept.parquet").write_bytes(b"PAR1"), "kept.parquet: is ",
         ("train", "negatives", "show")),
        ("scores edited", edit_scores, "00001.parquet: ", of_scores),
        ("scores cut", lambda run: (run / "scores/00001.parquet").write_bytes(b"PAR1"), "00001.parquet: ",
         of_scores),
    ]:  # fmt: skip
        run, out = str(tmp_path / how / "run"), ["--out", str(tmp_path / how / "out")]
        apply(shutil.copytree(whole / "curated", run, dirs_exist_ok=True) and Path(run))
        commands = {
            "train": ["train", "--set", f"input={run}", "--set", "model.weights=random:0", *out],
            "negatives": ["negatives", "--set", f"input={run}", "--set", "negatives.rank=false", *out],
            "select": ["select", run, *out],
            "explain": ["explain", run, "0" * 32],
            "show": ["show", run],
        }
        for name in readers:
            assert main(commands[name]) == USER_ERROR, (how, name)
            line = capsys.readouterr().err.splitlines()[-1]
            assert said in line and line.startswith("raycomp: "), (how, name, line)
        assert not (tmp_path / how / "out/run.json").exists()


def test_what_stands_under_a_uid_is_what_was_written(shards, runs):
    """In shards of the run, in the input of a selection without, and in negatives; sizes and times stay."""
    config = make_config(input=str(runs / "curated"), negatives=str(runs / "negatives"))
    check_all(config)
    pairs, indices, _ = check_all(make_config(input=str(runs / "selected")))
    for what, change in EDITS.items():
        change(shards / "00001.tar")
        with pytest.raises(ValueError, match=r"00001\.tar: its pairs differ from those that the run listed"):
            load_shard(pairs, 1, indices[1])
        before = (runs / "curated/shards/00000000.tar").read_bytes()
        change(runs / "curated/shards/00000000.tar")
        with pytest.raises(ValueError, match=rf"00000000\.tar: differs from what the run wrote: {what}"):
            check_all(config)
        (runs / "curated/shards/00000000.tar").write_bytes(before)
    last = sorted((runs / "negatives/negatives").iterdir())[-1]
    last.unlink()
    with pytest.raises(ValueError, match=rf"negatives=.*/{last.name}: is missing; the run wrote it with"):
        check_all(config)


@pytest.mark.parametrize("change", [*EDITS.values(), cut_file])
def test_a_changed_input_is_not_written_or_shown(shards, runs, tmp_path, capsys, change):
    def refuse(name: str, *line: str) -> None:
        assert main([*line, "--out", str(tmp_path / "out")]) == USER_ERROR
        said = capsys.readouterr().err.splitlines()[-1]
        assert name in said and "changed after it was scored" in said
        assert not (tmp_path / "out/shards").exists() and not (tmp_path / "out/report.html").exists()

    for path in shards.iterdir():
        change(path)
    for _ in range(2):
        refuse(".tar", "select", str(runs / "curated"))
    shutil.rmtree(tmp_path / "out")
    if change is not EDITS["image"]:
        change(runs / "curated/shards/00000000.tar")
        sets = [f"input={runs / 'curated'}", "negatives.materialize=true", "negatives.rank=false"]
        refuse("00000000.tar", "negatives", *(f"--set={one}" for one in sets))
        return
    raycomp.select(str(runs / "curated"), {"materialize": "false"}, str(tmp_path / "again"))
    pages = [(run / "report.html").read_text() for run in (runs / "curated", tmp_path / "again")]
    assert ["data:image/jpeg" in page for page in pages] == [True, False]
