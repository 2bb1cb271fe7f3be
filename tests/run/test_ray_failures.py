"""What Ray loses by itself is a line and the cluster's failure; all else stays what it was."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from ray import exceptions as rays

from raycomp.config import ClusterConfig, ClusterFailed, TooMuchBadData, UserError
from raycomp.run import ray_session
from raycomp.run.executor import connect
from raycomp.run.ray_cluster import as_failed_cluster


def wrapped(cause: Exception, times: int = 1) -> Exception:
    """An error as ``ray.get`` raises it where a task raised it, or a task of that task."""
    for _ in range(times):
        cause = rays.RayTaskError("f", f"Traceback\n{cause}", cause, "", 1, "10.0.0.1").as_instanceof_cause()
    return cause


LOST = [
    rays.LocalRayletDiedError(),
    rays.WorkerCrashedError(),
    rays.ActorDiedError(),
    rays.RayActorError("00", "its node\nis gone"),
    rays.ActorUnavailableError("no\nanswer", None),
    rays.RaySystemError("the raylet was killed"),
    rays.OutOfMemoryError("a worker was killed"),
    rays.NodeDiedError("the node\ndied"),
    rays.ObjectLostError("00" * 28, None, ""),
    rays.RpcError("GCS is down"),
    rays.RuntimeEnvSetupError("no room"),
    rays.TaskUnschedulableError("no such node"),
    rays.ActorUnschedulableError("no such node"),
]


def test_what_ray_lost_is_reported_in_a_line_with_how_it_goes_on():
    for times in [0, 1, 2]:
        for lost in LOST:
            lost.__dict__.pop("__notes__", None)
            error = wrapped(lost, times)
            error.add_note("align: 1 of 3 shards are committed")
            with pytest.raises(ClusterFailed) as failed, as_failed_cluster():
                raise error
            assert str(failed.value).startswith(f"Ray failed: {type(lost).__name__}: ")
            assert "\n" not in str(failed.value) and "Traceback" not in str(failed.value)
            assert failed.value.__notes__ == ["align: 1 of 3 shards are committed"]


INIT_FAILED = rays.ActorDiedError(
    rays.RayTaskError("f", "its constructor raised", KeyError("ours"), "", 1, "a")
)


def test_all_else_is_left_as_it_is():
    for error in [
        ValueError("a"),
        OSError("the bucket is gone"),
        KeyError("ours"),
        TooMuchBadData("b"),
        ClusterFailed("c"),
        wrapped(UserError("d")),
        wrapped(KeyError("ours"), 2),
        wrapped(OSError("the bucket is gone"), 2),
        INIT_FAILED,
        rays.RaySystemError(ModuleNotFoundError("no module"), "Traceback: an object cannot be read"),
        rays.TaskCancelledError(),
        KeyboardInterrupt(),
    ]:
        with pytest.raises(type(error)) as found, as_failed_cluster():
            raise error
        assert found.value is error


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_run_on_a_cluster_that_fails_ends_with_its_failure(monkeypatch, is_joined):
    monkeypatch.setattr(ray_session.ray, "is_initialized", lambda: is_joined)
    monkeypatch.setattr(ray_session, "_start", lambda *_: None)
    monkeypatch.setattr(ray_session.ray, "shutdown", lambda: None)  # it would end the tests' own cluster
    monkeypatch.setattr(
        ray_session.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="127.0.0.1:9")
    )
    monkeypatch.setattr(ray_session, "_describe", lambda *_: None)
    with (
        pytest.raises(ClusterFailed, match="Ray failed: NodeDiedError: gone"),
        connect(ClusterConfig(executor="ray")),
    ):
        raise rays.NodeDiedError("gone")


WATCH = """
import sys, time
from raycomp.run.ray_cluster import watch_head
with watch_head(sys.argv[1]):
    time.sleep(float(sys.argv[2]))
time.sleep(1.5)
"""


def test_a_head_that_is_gone_is_reported_before_ray_ends_the_process():
    """Its patience is 0.7 s here; what is watched no longer ends nothing."""
    for answers in [True, False]:
        env = {**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "1"}
        with socket.socket() as head:
            head.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{head.getsockname()[1]}"
            if answers:
                head.listen()
            line = [sys.executable, "-c", WATCH, address, "2" if answers else "60"]
            done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == (0 if answers else ClusterFailed.exit_code), done
        message = f"raycomp: Ray's head at {address} has not answered for 1 s ("
        assert (done.stderr.startswith(message) and done.stderr.count("\n") == 1) or (
            answers and not done.stderr
        )
