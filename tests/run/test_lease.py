"""One run at a time in a folder, on a disk and on a real S3 server."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from raycomp.config import LeaseLost
from raycomp.data.files import Folder
from raycomp.run.run import LEASE, WAITING, hold_lease, queue_lease, read_pid_namespace


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.stores)])
def folder(request, tmp_path) -> Folder:
    if request.param == "disk":
        return Folder(str(tmp_path / "out"))
    return Folder(f"{request.getfixturevalue('bucket')}/{request.node.name}")


def plant(folder: Folder, process: int, place: str, expires_s: float) -> None:
    expires = (datetime.now(UTC) + timedelta(seconds=expires_s)).isoformat()
    content = {"holder": "other", "host": "elsewhere", "place": place, "process": process}
    folder.write_json({**content, "started": "then", "expires": expires}, LEASE)


def test_a_second_holder_is_refused_and_a_later_one_is_not(folder):
    with hold_lease(folder):
        refused = pytest.raises(ValueError, match=f"process {os.getpid()} on {socket.gethostname()}")
        with refused, hold_lease(folder):
            raise AssertionError("held twice")
        assert folder.exists(LEASE)
    assert not folder.exists(LEASE)
    with hold_lease(folder) as lease:
        lease.check()


def test_of_many_at_once_one_gets_it(folder):
    together, held = threading.Barrier(4), threading.Barrier(4)

    def start(_) -> str:
        together.wait(60)
        try:
            with hold_lease(folder):
                held.wait(60)
                return "held"
        except ValueError as error:
            held.wait(60)
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(start, range(4)))
    assert said.count("held") == 1 and sum("wait for it" in line for line in said) == 3, said


def test_of_many_that_wait_each_gets_it_in_turn(folder):
    inside, most, said, until = 0, 0, [], time.monotonic() + 60

    def work(_):
        nonlocal inside, most
        with queue_lease(folder, said.append, lambda: None) as lease:
            inside += 1
            most = max(most, inside)
            while len(said) < 3 and time.monotonic() < until:
                time.sleep(0.01)
            lease.check()
            inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert most == 1 and not folder.exists(LEASE)
    assert len(said) == 3 and all(line.startswith(WAITING) and str(os.getpid()) in line for line in said)


def test_a_lease_that_expired_or_of_a_dead_process_here_is_taken_over(folder):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for process, place, expires_s in ((1, "elsewhere", -1), (gone.pid, read_pid_namespace(), 60)):
        plant(folder, process, place, expires_s)
        with hold_lease(folder) as lease:
            lease.check()
    plant(folder, gone.pid, "elsewhere", 60)
    with pytest.raises(ValueError, match=f"process {gone.pid} on elsewhere"), hold_lease(folder):
        pass


def test_who_lost_the_lease_may_not_commit_and_leaves_the_new_one_alone(folder):
    with hold_lease(folder) as lease:
        plant(folder, 1, "elsewhere", 60)
        with pytest.raises(LeaseLost, match="process 1 on elsewhere took"):
            lease.check()
    assert folder.read_json(LEASE)["holder"] == "other"
    folder.remove(LEASE)
    with hold_lease(folder) as lease:
        folder.write_bytes(b"{}", LEASE)
        with pytest.raises(LeaseLost, match="not a raycomp lease"):
            lease.check()
    assert folder.exists(LEASE)


def test_a_wait_ends_by_its_check_and_an_error_of_the_work_does_not_begin_one(tmp_path):
    def give_up():
        raise LeaseLost("mine")

    folder = Folder(str(tmp_path))
    with hold_lease(folder), pytest.raises(LeaseLost, match="mine"), queue_lease(folder, print, give_up):
        raise AssertionError("held twice")
    with pytest.raises(ValueError, match="mine"), queue_lease(folder, print, int):
        raise ValueError("mine")
    assert not folder.exists(LEASE)


def test_an_answer_that_is_lost_or_late_refuses_no_run(tmp_path, monkeypatch):
    """The file is there and is said to be another's, or was another's and is gone when it is read."""
    folder, create, tried = Folder(str(tmp_path)), Folder.create_json, []

    def lose(self, *args):
        return create(self, *args) and create(self, *args)

    def miss(self, *args):
        tried.append(args)
        return create(self, *args) if len(tried) > 1 else False

    for answer in (lose, miss):
        monkeypatch.setattr(Folder, "create_json", answer)
        with hold_lease(folder) as lease:
            lease.check()
    assert len(tried) == 2


def test_what_is_no_lease_is_said_and_left(tmp_path):
    folder = Folder(str(tmp_path))
    texts = (b'{"holder": "a"}', b'{"expires": "2030-01-01"}')
    for content in (b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, *texts):
        folder.write_bytes(content, LEASE)
        with pytest.raises(ValueError, match="not a raycomp lease file; remove it"), hold_lease(folder):
            pass
        assert folder.read_bytes(LEASE) == content


def test_a_lease_is_renewed_while_it_is_held(folder):
    with hold_lease(folder, seconds=0.3):
        first = folder.read_json(LEASE)
        deadline = time.monotonic() + 20
        while folder.read_json(LEASE)["expires"] == first["expires"] and time.monotonic() < deadline:
            time.sleep(0.05)
        renewed = folder.read_json(LEASE)
    assert renewed["holder"] == first["holder"] and renewed["expires"] > first["expires"]


def test_a_lease_that_is_renewed_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    """On a store the size and the bytes are two requests: the first read may end early."""
    read, reads = Folder.read_bytes, []

    def read_short(self, *names):
        reads.append(names)
        return read(self, *names)[: -5 if len(reads) == 1 else None]

    with hold_lease(Folder(str(tmp_path))) as lease:
        monkeypatch.setattr(Folder, "read_bytes", read_short)
        lease.check()
    assert len(reads) > 1


def test_a_storage_that_fails_for_good_is_reported_by_its_first_error(folder, monkeypatch):
    def fail(*_):
        raise OSError("the second")

    with pytest.raises(OSError, match="the first"), hold_lease(folder):
        monkeypatch.setattr(Folder, "read_json", fail)
        raise OSError("the first")
