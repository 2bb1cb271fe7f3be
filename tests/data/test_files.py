"""A file is there whole or not at all."""

import os
import resource

import pytest

from raycomp.data.files import Folder, check_writable, new_file, remove_temporary_files
from raycomp.data.parquet import read_columns


def test_a_file_appears_at_the_end(tmp_path):
    path = tmp_path / "deep" / "x"
    with new_file(str(path)) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == ["x"]


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


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_never_opened(tmp_path, make):
    """Opening a pipe would wait for ever."""
    make(tmp_path / "run.json")
    for read in (Folder(str(tmp_path)).read_json, lambda name: read_columns(str(tmp_path / name))):
        with pytest.raises(ValueError, match=r"run\.json: is a (folder|pipe or device), must be a file"):
            read("run.json")
