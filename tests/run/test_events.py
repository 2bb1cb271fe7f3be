"""A log in a bucket is there while the run lives: a killed process loses an interval at most."""

import json
import time

import pytest

from raycomp.config import LeaseLost
from raycomp.data.files import Folder
from raycomp.run import progress
from raycomp.run.progress import EVENTS, keep_events, log_event


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(progress, "_UPLOAD_S", 0.05)


def read(out: Folder) -> list[str]:
    """Return the events that are in the folder; every line is whole."""
    if not out.exists(*EVENTS):
        return []
    return [json.loads(line)["event"] for line in out.read_bytes(*EVENTS).decode().splitlines()]


def wait_for(out: Folder, wanted: list[str]) -> None:
    until = time.monotonic() + 20
    while read(out) != wanted:
        assert time.monotonic() < until, read(out)
        time.sleep(0.02)


def test_events_reach_a_bucket_while_the_run_lives(bucket, often, monkeypatch):
    """What a killed process logged is there; the next start adds to it. An upload that fails is repeated."""
    out, tries = Folder(f"{bucket}/lives"), []
    write = Folder.write_bytes

    def fail_twice(folder, data, *names):
        tries.append(names)
        if len(tries) < 3:
            raise OSError("the bucket is busy")
        write(folder, data, *names)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_bytes", fail_twice)
        with keep_events(out, "a"):
            log_event("begin")
            wait_for(out, ["begin"])
    assert len(tries) == 3  # and none where nothing was added
    with keep_events(out, "a"):
        log_event("wave")
        wait_for(out, ["begin", "wave"])
        log_event("finish")
    assert read(out) == ["begin", "wave", "finish"]


def test_a_run_that_lost_its_folder_uploads_nothing_more(bucket, often):
    out, is_lost = Folder(f"{bucket}/lost"), []

    def check() -> None:
        if is_lost:
            raise LeaseLost("another run's")

    with keep_events(out, "a", check):
        log_event("begin")
        wait_for(out, ["begin"])
        is_lost.append(True)
        log_event("wave")
        time.sleep(0.2)
    assert read(out) == ["begin"]
