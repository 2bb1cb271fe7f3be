"""What keeps Ray from starting is said in one line, and no wait for it is without end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

import pytest

from raycomp.cluster import session
from raycomp.cluster.session import check_temporary_folder, connect
from raycomp.config import ClusterConfig, Terminated

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def temporary(monkeypatch):
    """Set the temporary folder as the environment would."""

    def set_folder(**names: str) -> None:
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", None)
        for name, value in names.items():
            monkeypatch.setenv(name, value)

    return set_folder


def test_a_temporary_folder_without_room_is_refused(temporary, monkeypatch):
    temporary(TMPDIR="/tmp")
    assert check_temporary_folder() == "/tmp"
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2_000_000, 0, 2_000_000))
    with pytest.raises(ValueError, match=r"TMPDIR='/tmp': has 2 MB free, must have at least 100 MB"):
        check_temporary_folder()


def test_a_temporary_folder_with_a_long_name_is_refused(temporary, tmp_path):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    temporary(TMPDIR=str(long))
    with pytest.raises(ValueError, match=r"TMPDIR='.*': must have at most \d+ letters"):
        check_temporary_folder()
    temporary(TMPDIR=str(long), RAY_TMPDIR="/tmp")
    assert check_temporary_folder() == "/tmp"
    temporary(RAY_TMPDIR=str(tmp_path / "none")[:40])
    with pytest.raises(ValueError, match=r"RAY_TMPDIR='.*': cannot be used"):
        check_temporary_folder()


NOBODY = [pytest.param(False, id="listens", marks=pytest.mark.slow), pytest.param(True, id="answers")]


@pytest.mark.ray
@pytest.mark.parametrize("is_open", NOBODY)
def test_a_cluster_that_does_not_answer_is_waited_for_so_long(is_open):
    """In a process of its own: this one may be connected already."""
    code = (
        "import sys\n"
        "from raycomp.cluster import session\n"
        "from raycomp.config import ClusterConfig\n"
        "session._JOIN_S = 4.0\n"
        "try:\n"
        "    with session.connect(ClusterConfig(address=sys.argv[1])):\n"
        "        pass\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if is_open:
            server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", code, address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert f"cluster.address='{address}': no Ray cluster answered there within 4 s" in done.stdout, done


def test_a_wait_ends_with_what_was_waited_for():
    with pytest.raises(ValueError, match="too late"), session._at_most(0.05, "too late"):
        try:
            time.sleep(10)
        except Exception:  # as Ray does, which then tries again
            time.sleep(10)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    with session._at_most(10, "never"):
        pass


def test_rays_way_of_ending_becomes_ours(monkeypatch):
    """Ray sets a handler of its own while it starts; a signal may come just then, or later."""
    arrived = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: arrived.append(number))

    def end_at_once(**settings):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(session.ray, "init", end_at_once)
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    try:
        with pytest.raises(Terminated) as end, connect(ClusterConfig(num_cpus=5)):
            pass
        assert end.value.exit_code == 143
        os.kill(os.getpid(), signal.SIGTERM)
        assert arrived == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
