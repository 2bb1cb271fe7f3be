"""What was scored is what is written: an input that changed behind its name, size and time stops the run."""

import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import raycomp
from raycomp.cli import main


@pytest.fixture
def folder(curated) -> Iterator[Path]:
    """A folder with an input and what was curated of it; every test finds both as they were."""
    folder = curated[1].parent
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*.tar")}
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


def blank(path: Path) -> None:
    """Zero the second half of a file: its later samples are missing."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2].ljust(len(data), b"\0"))
    os.utime(path, ns=times)


EDITS = {
    "image": lambda path: edit(path, ".jpg", lambda data: data[:-2] + b"xx"),
    "caption": lambda path: edit(path, ".txt", lambda data: data.swapcase()),
    "missing": blank,
}


@pytest.mark.parametrize("change", EDITS)
def test_a_changed_input_is_not_written(folder, tmp_path, capsys, change):
    EDITS[change](folder / "in/00001.tar")
    for _ in range(2):
        assert main(["select", str(folder / "out"), "--out", str(tmp_path / "again")]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert "00001.tar" in line and "changed after it was scored" in line
    assert not (tmp_path / "again/shards").exists() and not (tmp_path / "again/report.html").exists()


@pytest.mark.parametrize("change", ["caption", "missing"])
def test_changed_shards_get_no_negatives(folder, tmp_path, capsys, change):
    EDITS[change](folder / "out/shards/00000000.tar")
    sets = [f"--set=input={folder / 'out'}", "--set=negatives.materialize=true", "--set=negatives.rank=false"]
    assert main(["negatives", *sets, "--out", str(tmp_path / "negatives")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "00000000.tar" in line and "changed after it was scored" in line
    assert not (tmp_path / "negatives/shards").exists()


def test_the_report_shows_no_photo_that_was_not_scored(folder, tmp_path):
    for path in (folder / "in").iterdir():
        EDITS["image"](path)
    raycomp.select(str(folder / "out"), {"materialize": "false"}, str(tmp_path / "again"))
    pages = [(run / "report.html").read_text() for run in (folder / "out", tmp_path / "again")]
    assert ["data:image/jpeg" in page for page in pages] == [True, False]
