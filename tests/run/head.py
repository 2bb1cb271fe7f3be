"""Nodes of Ray that a test starts by itself: ports and a folder of their own, a token, a dashboard."""

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

BIN = Path(sys.executable).parent
_AGENT = ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port")


@dataclass(frozen=True)
class Head:
    """A head node, and the environment of its clients: nothing of the tests' own but what S3 needs."""

    address: str
    env: Mapping[str, str]
    folder: Path


@contextmanager
def start_head(folder: Path, num_cpus: int, auth: str = "token", **more: str) -> Iterator[Head]:
    """Start a head node with ``more`` variables, its token and log in ``folder``; end it at the end.

    Ray reads ``auth``, "token" or "disabled", when it is imported: a process that imported it before cannot
    join a head with a token.
    """
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    port, dashboard, client = _find_free_ports(3)
    env = {
        "HOME": str(folder),
        "PATH": f"{BIN}:/usr/bin:/bin",
        "RAY_AUTH_MODE": auth,
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAY_USAGE_STATS_ENABLED": "0",
        **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
    }
    head = Head(f"127.0.0.1:{port}", env, folder)
    with make_short_folder() as temporary:
        line = ["--head", f"--port={port}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
        line += [
            f"--ray-client-server-port={client}",
            f"--num-cpus={num_cpus}",
            f"--temp-dir={temporary}",
            "--labels=ray.io/market-type=on-demand",
        ]
        with _run(head, line, {"RAY_JOB_STOP_WAIT_TIME_S": "60", **more}) as process:  # as in deploy/env.sh
            _wait_for(head, process)
            yield head


def make_short_folder() -> TemporaryDirectory:
    """Return a folder for Ray: its sockets' names have 67 bytes more, and at most 107."""
    return TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True)


@contextmanager
def join(head: Head, instance: str) -> Iterator[None]:
    """Start one more node, with a CPU, that Ray's autoscaler would know as the machine ``instance``."""
    line = [f"--address={head.address}", "--num-cpus=1"]
    with _run(head, line, {"RAY_CLOUD_INSTANCE_ID": instance}):
        yield


@contextmanager
def _run(head: Head, line: Sequence[str], more: Mapping[str, str]) -> Iterator[subprocess.Popen]:
    ports = zip(_AGENT, _find_free_ports(len(_AGENT)), strict=True)
    command = ["ray", "start", "--block", "--node-ip-address=127.0.0.1", "--object-store-memory=200000000"]
    command += [*line, *(f"--{name}={port}" for name, port in ports)]
    with open(head.folder / "nodes.log", "ab") as log:
        env = {**head.env, **more}
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        # When asked to end, it may drain its node for 30 s before it ends the processes that it started.
        started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        _, alive = psutil.wait_procs(started, 3)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(180)


def _find_free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _wait_for(head: Head, process: subprocess.Popen) -> None:
    token, log = (head.folder / "token").read_text(), head.folder / "nodes.log"
    jobs = f"{head.env['RAY_API_SERVER_ADDRESS']}/api/jobs/"
    request = urllib.request.Request(jobs, headers={"Authorization": f"Bearer {token}"})
    for _ in range(900):
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no head node within 180 s: {log.read_text()}")
