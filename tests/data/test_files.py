"""Files appear whole or not at all; copies of files in a store."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch

from raycomp.data import files as module
from raycomp.data.files import Folder, check_writable, new_file, new_path, remove_temporary_files
from raycomp.data.parquet import read_columns
from raycomp.data.runs import fetch


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "x"
    with new_file(str(path)) as file:
        file.write(b"old")
        assert not path.exists()
    for stop in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(stop), new_file(str(path)) as file:
            file.write(b"new")
            raise stop
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == ["x"]
    assert fetch(str(path)) == fetch(f"file://{path}") == str(path)
    check_writable(str(tmp_path / "new"))
    assert os.listdir(tmp_path / "new") == []
    with pytest.raises(ValueError, match="cannot be written"):
        check_writable(str(path / "below"))


def test_a_write_that_fails_names_its_file(tmp_path):
    """A limit on the size of files stands for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError) as error, new_file(str(tmp_path / "x")) as file:
            file.write(b"a" * 100_000)
        assert str(tmp_path) in str(error.value)
        for save in (safetensors.torch.save_file, torch.save):  # which raise exceptions of their own
            with pytest.raises(OSError, match=str(tmp_path)), new_path(str(tmp_path / "x")) as path:
                save({"a": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []
    with pytest.raises(RuntimeError), new_path(str(tmp_path / "x")):
        raise RuntimeError("a mistake of ours stays one")


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


def test_a_file_is_copied_once_with_those_next_to_it_and_anew_when_one_changes(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    copied: list[str] = []
    copy = module.copy_file
    monkeypatch.setattr(module, "copy_file", lambda uri, target: copied.append(uri) or copy(uri, target))
    folder = Folder(f"{bucket}/once")
    uri, companions = folder.at("a.bin"), [folder.at("a.json"), folder.at("none.txt")]
    folder.write_bytes(b"1234", "a.bin")
    folder.write_bytes(b"{}", "a.json")

    def break_off(source, target, size):
        target.write(source.read(1))
        raise OSError("the line is cut")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the line is cut"):
        patch.setattr("shutil.copyfileobj", break_off)
        fetch(uri)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
    copied.clear()
    with ThreadPoolExecutor(8) as pool:
        (first,) = set(pool.map(fetch, [uri] * 8, [companions] * 8))
    assert copied == [companions[0], uri] and first.endswith("/once/a.bin")
    assert Path(first).read_bytes() == b"1234" and Path(first).with_suffix(".json").read_bytes() == b"{}"
    folder.write_bytes(b"4321", "a.bin")
    assert Path(fetch(uri, companions)).read_bytes() == b"4321"
    folder.write_bytes(b"[]", "a.json")
    assert Path(fetch(uri, companions)).with_suffix(".json").read_bytes() == b"[]"
