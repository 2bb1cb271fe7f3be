"""A cluster of one machine whose autoscaler starts and ends nodes, as it would in a cloud."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ray._private.services import get_node_ip_address

from tests.faults.harness import is_killable, processes
from tests.run.head import make_short_folder

_HEAD_ID = "f" * 51 + "00000"
_HEAD, _WORKER = "ray.head.default", "worker"
_START_S = 300


def write_config(path: Path, address: str, cpus: int, most: int, idle_s: float) -> None:
    """Write a cluster.yaml, which json is, of a head without CPUs and so many workers with some."""
    nothing = ["initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"]
    nothing += ["head_start_ray_commands", "worker_start_ray_commands"]
    config = {
        "cluster_name": "growing",
        "max_workers": most,
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": _HEAD_ID,
            "gcs_address": address,
        },
        "available_node_types": {
            _HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            _WORKER: {"resources": {"CPU": cpus}, "node_config": {}, "max_workers": most},
        },
        "head_node_type": _HEAD,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        **{name: [] for name in nothing},
    }
    path.write_text(json.dumps(config))


@contextmanager
def start_growing(folder: Path, cpus: int, most: int, idle_s: float) -> Iterator[Mapping[str, str]]:
    """Start the head, its files in ``folder``; yield the environment of its clients.

    In the end whatever runs in its session is killed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"{get_node_ip_address()}:{port}"
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    config = folder / "ray_bootstrap_config.yaml"  # where the head's own would lie, in HOME
    write_config(config, address, cpus, most, idle_s)
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env = {
        **known,
        "HOME": str(folder),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(_START_S),
        "RAY_ADDRESS": address,
    }
    of_the_head = {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID,
    }
    line = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    line += ["--num-cpus=0", f"--autoscaling-config={config}"]
    line += ["--include-dashboard=false", "--object-store-memory=200000000"]
    without = {name: value for name, value in env.items() if name != "RAY_ADDRESS"}
    with make_short_folder() as temporary, open(folder / "head.log", "wb") as log:
        head = subprocess.Popen(
            [*line, f"--temp-dir={temporary}"],
            env={**without, **of_the_head},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _wait_for(head, folder / "head.log")
            yield env
        finally:
            for pid in processes(head.pid):
                if is_killable(pid, head.pid):
                    os.kill(pid, signal.SIGKILL)
            head.wait()


def _wait_for(head: subprocess.Popen, log: Path) -> None:
    for _ in range(5 * _START_S):
        assert head.poll() is None, log.read_text()
        if "Ray runtime started" in log.read_text():
            return
        time.sleep(0.2)
    raise AssertionError(f"no head node within {_START_S} s: {log.read_text()}")


def kill_node(node_id: str) -> None:
    """Kill the raylet of a node of this machine, as a cloud that takes the node back would."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                environ = (path / "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if words[0].endswith(b"raylet/raylet") and f"RAY_CLOUD_INSTANCE_ID={node_id}".encode() in environ:
                os.kill(int(path.name), signal.SIGKILL)
