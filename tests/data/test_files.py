"""Files appear whole or not at all; copies of files in a store."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raycomp.data import files as module
from raycomp.data.files import Folder, check_writable, new_file, remove_temporary_files
from raycomp.data.parquet import read_columns
from raycomp.data.runs import fetch


def test_a_file_appears_at_the_end(tmp_path):
    path = tmp_path / "deep" / "x"
    with new_file(str(path)) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == ["x"]
    assert fetch(str(path)) == fetch(f"file://{path}") == str(path)


def test_a_failed_write_keeps_what_was_there(tmp_path_factory):
    for stop in [RuntimeError, KeyboardInterrupt]:
        tmp_path = tmp_path_factory.mktemp("case")
        (tmp_path / "x").write_bytes(b"old")
        with pytest.raises(stop), new_file(str(tmp_path / "x")) as file:
            file.write(b"new")
            raise stop
        assert (tmp_path / "x").read_bytes() == b"old" and os.listdir(tmp_path) == ["x"], stop


def test_a_write_that_fails_names_its_file(tmp_path):
    """A limit on the size of files stands for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError) as error, new_file(str(tmp_path / "x")) as file:
            file.write(b"a" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(tmp_path) in str(error.value) and os.listdir(tmp_path) == []


def test_check_writable(tmp_path):
    check_writable(str(tmp_path / "new"))
    assert os.listdir(tmp_path / "new") == []
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        check_writable(str(tmp_path / "file" / "below"))


def test_temporary_files_of_another_run_below_are_its_own(tmp_path):
    names = [f".x.{'0' * 32}.tmp", f"sub/.x.{'1' * 32}.tmp"]
    others = [f"other/.x.{'2' * 32}.tmp", f"sub/live/scores/.x.{'3' * 32}.tmp"]
    for name in (*names, *others, "other/run.json", "sub/live/lease.json", "run.json", "lease.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    remove_temporary_files(str(tmp_path))
    assert [name for name in (*names, *others) if (tmp_path / name).exists()] == others


def test_what_is_no_file_is_never_opened(tmp_path):
    """Opening a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe or device")
    os.mkdir(tmp_path / "folder")
    for read in (Folder(str(tmp_path)).read_json, lambda name: read_columns(str(tmp_path / name))):
        for name in ("pipe or device", "folder"):
            with pytest.raises(ValueError, match=rf"/{name}: is a {name}, must be a file"):
                read(name)


@pytest.fixture
def copies(tmp_path, monkeypatch) -> list[str]:
    """What was copied, in order; copies go to a folder of the test's own."""
    done: list[str] = []
    copy = module.copy_file

    def reported(uri: str, target: Path) -> None:
        copy(uri, target)
        done.append(uri)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "copy_file", reported)
    return done


def test_a_file_is_copied_once_with_those_next_to_it_and_anew_when_one_changes(bucket, copies):
    uri, companions = f"{bucket}/once/a.bin", [f"{bucket}/once/a.json", f"{bucket}/none.txt"]
    Folder(bucket).write_bytes(b"1234", "once", "a.bin")
    Folder(bucket).write_bytes(b"{}", "once", "a.json")
    first = fetch(uri, companions)
    assert first == fetch(uri, companions)
    assert copies == [companions[0], uri]
    assert Path(first).read_bytes() == b"1234" and Path(first).with_suffix(".json").read_bytes() == b"{}"
    assert first.endswith(f"/s3/{bucket.removeprefix('s3://')}/once/a.bin")
    Folder(bucket).write_bytes(b"4321", "once", "a.bin")
    second = fetch(uri, companions)
    assert second != first and Path(second).read_bytes() == b"4321"
    Folder(bucket).write_bytes(b"[]", "once", "a.json")
    assert Path(fetch(uri, companions)).with_suffix(".json").read_bytes() == b"[]"


def test_several_that_ask_at_once_wait_for_one_copy(bucket, copies):
    Folder(bucket).write_bytes(bytes(1 << 20), "many.bin")
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(fetch, [f"{bucket}/many.bin"] * 8))
    assert len(paths) == 1 and copies == [f"{bucket}/many.bin"]


def test_what_breaks_off_leaves_no_file(bucket, copies, monkeypatch, tmp_path):
    Folder(bucket).write_bytes(bytes(1000), "broken.bin")

    def break_off(source, target, size):
        target.write(source.read(10))
        raise OSError("the line is cut")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the line is cut"):
        patch.setattr("shutil.copyfileobj", break_off)
        fetch(f"{bucket}/broken.bin")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != ".lock"]
    assert Path(fetch(f"{bucket}/broken.bin")).stat().st_size == 1000
