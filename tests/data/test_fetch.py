"""A file of a store is copied to a machine once, whole, and anew when it has changed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raycomp.data import runs as module
from raycomp.data.files import Folder
from raycomp.data.runs import fetch


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


def test_a_file_on_a_disk_is_where_it_is(tmp_path, copies):
    assert fetch(str(tmp_path / "a.bin")) == fetch(f"file://{tmp_path}/a.bin") == str(tmp_path / "a.bin")
    assert not copies and not (tmp_path / "cache").exists()


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
