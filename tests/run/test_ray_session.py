"""What keeps Ray from starting is said in one line, and no wait for it is without end."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import worker
from ray.exceptions import AuthenticationError, RaySystemError

from raycomp.config import ClusterConfig, ClusterFailed, Terminated
from raycomp.data.files import Folder
from raycomp.data.stores import STORAGE_ERRORS
from raycomp.run import ray_cluster, ray_session
from raycomp.run.executor import connect, use
from raycomp.run.progress import Progress
from raycomp.run.ray_cluster import OnRay
from raycomp.run.ray_session import LOG, check_temporary_folder, keep_log


def test_a_temporary_folder_that_rays_sockets_and_logs_do_not_fit_in_is_refused(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    for folders, free, said in [
        ({"TMPDIR": "/tmp"}, 10**12, None),
        ({"TMPDIR": str(long), "RAY_TMPDIR": "/tmp"}, 10**12, None),
        ({"TMPDIR": "/tmp"}, 2_000_000, r"TMPDIR='/tmp': has 2 MB free, must have at least 100 MB"),
        ({"RAY_TMPDIR": str(long)}, 10**12, r"TMPDIR='.*': must have at most \d+ characters"),
        ({"RAY_TMPDIR": "/no/such/folder"}, None, r"RAY_TMPDIR='.*': cannot be used"),
    ]:
        with monkeypatch.context() as patch:
            patch.delenv("RAY_TMPDIR", raising=False)
            for name, value in folders.items():
                patch.setenv(name, value)
            if free is not None:
                patch.setattr(shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
            if said is None:
                assert check_temporary_folder() == "/tmp"
                continue
            with pytest.raises(ValueError, match=said):
                check_temporary_folder()


def test_a_cluster_that_does_not_answer_is_waited_for_so_long():
    """In a process of its own: this one may be connected already."""
    code = (
        "import sys\n"
        "from raycomp.run import executor, ray_session\n"
        "from raycomp.config import ClusterConfig\n"
        "ray_session._JOIN_S = 2.0\n"
        "try:\n"
        "    with executor.connect(ClusterConfig(executor='ray', address=sys.argv[1])):\n"
        "        pass\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", code, address]
        # One try of Ray's client itself, which a signal does not break off.
        env = {**os.environ, "RAY_py_gcs_connect_timeout_s": "3"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert f"cluster.address='{address}': no Ray cluster answered there within 2 s" in done.stdout, done


def test_a_wait_ends_with_what_was_waited_for():
    with (
        pytest.raises(ClusterFailed, match="too late"),
        ray_session._at_most(0.05, ClusterFailed("too late")),
    ):
        try:
            time.sleep(10)
        except Exception:  # as Ray does, which then tries again
            time.sleep(10)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    with ray_session._at_most(10, ValueError("never")):
        pass


def test_rays_way_of_ending_becomes_ours(monkeypatch):
    """Ray sets a handler of its own while it starts; a signal may come just then, or later."""
    arrived = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: arrived.append(number))

    def end_at_once(**settings):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ray_session.ray, "init", end_at_once)
    monkeypatch.setattr(ray_session.ray, "is_initialized", lambda: False)
    try:
        with pytest.raises(Terminated) as end, connect(ClusterConfig(executor="ray", num_cpus=5)):
            pass
        assert end.value.exit_code == 143
        os.kill(os.getpid(), signal.SIGTERM)
        assert arrived == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("failures", "message"), [(2, None), (3, "Ray did not start on this machine")])
def test_a_start_that_ray_gives_up_is_tried_again(monkeypatch, failures, message):
    gave_up = Exception("The current node timed out during startup. This could happen because")
    tries = iter([gave_up] * failures + [None] * 3)

    def start(**settings):
        if error := next(tries):
            raise error

    monkeypatch.setattr(ray_session.ray, "init", start)
    with pytest.raises(ClusterFailed, match=message) if message else nullcontext():
        ray_session._start(ClusterConfig(num_cpus=5), 5)
    assert len(list(tries)) == 2 + (message is not None)


def raising(error: Exception) -> Callable[..., None]:
    def init(**settings: Any) -> None:
        raise error

    return init


def test_a_ray_that_does_not_start_or_cannot_be_joined_is_the_clusters_failure(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    here, there = ClusterConfig(num_cpus=5), ClusterConfig(address="a:1")
    for config, error, raised, message in [
        (here, RuntimeError("Failed to start\nGCS."), ClusterFailed, "RuntimeError: Failed to start GCS"),
        (here, ConnectionError("no"), ClusterFailed, "ConnectionError: .* its logs are in .*/ray$"),
        (here, RaySystemError("the raylet\nwas killed"), ClusterFailed, "^Ray did not start on this mach"),
        (there, RuntimeError("2.60\nand 2.59"), ClusterFailed, "'a:1': cannot be joined: 2.60 and 2.59$"),
        (there, ConnectionError("no"), ValueError, "no Ray cluster answered there within 60 s"),
    ]:  # fmt: skip
        monkeypatch.setattr(ray_session.ray, "init", raising(error))
        with pytest.raises(raised, match=message):
            ray_session._start(config, 5)


# What ray.init raises of a cluster with a token, where RAY_AUTH_MODE is unset or the token is another one.
REFUSED = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
REFUSED.__cause__ = RuntimeError(
    "Failed to connect to GCS. Last connection error: Traceback (most recent call last):\n"
    "ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing"
)


def test_a_cluster_with_a_token_says_so_and_what_to_set(monkeypatch):
    monkeypatch.setattr(ray_session.ray, "is_initialized", lambda: False)
    for mode, error, message in [
        ("", REFUSED, "RAY_AUTH_MODE is not token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to"),
        ("token", REFUSED, "the token is missing or wrong; set RAY_AUTH_TOKEN_PATH to"),
        ("token", AuthenticationError("no token was found"), "the token is missing or wrong; set"),
    ]:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
        monkeypatch.setattr(ray_session.ray, "init", raising(error))
        with pytest.raises(ValueError) as refused, connect(ClusterConfig(address="10.0.0.1:6379")):
            pass
        said = "cluster.address='10.0.0.1:6379': authentication failed: the cluster requires a token, "
        assert type(refused.value) is ValueError and str(refused.value).startswith(f"{said}{message}")


# Ray's agent on a machine so busy that its first start takes longer than the raylet waits.
SLOW_AGENT = """
import os, sys, time
if any(word.endswith("dashboard/agent.py") for word in sys.argv + sys.orig_argv):
    try:
        os.close(os.open(os.environ["SLEPT"], os.O_CREAT | os.O_EXCL))
        time.sleep(25)
    except FileExistsError:
        pass
"""


@pytest.mark.slow
def test_ray_starts_where_its_agent_is_late(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SLOW_AGENT)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    code = (
        "from raycomp.run.executor import connect\n"
        "from raycomp.config import ClusterConfig\n"
        "with connect(ClusterConfig(executor='ray', num_cpus=5)) as session:\n"
        "    print(session.num_cpus)\n"
    )
    env = {**os.environ, "PYTHONPATH": path, "SLEPT": str(tmp_path / "slept")}
    env.pop("RAY_ADDRESS", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env=env)
    assert (tmp_path / "slept").exists() and done.stdout == "5\n", done


# What Ray Train's cleaner asks of a stopped training, in a worker of its own.
ASK_STATE = """
import os, ray
from ray.util.state import list_actors
from raycomp.run.executor import connect
from raycomp.config import ClusterConfig
with connect(ClusterConfig(executor="ray", num_cpus=5), dashboard=True):
    print(os.environ["RAY_ADDRESS"] == ray.get_runtime_context().gcs_address)
    print(ray.get_runtime_context().worker.node.webui_url.partition(":")[0])
    env = {"env_vars": {"RAY_ADDRESS": os.environ["RAY_ADDRESS"]}}
    print(ray.get(ray.remote(lambda: len(list_actors())).options(runtime_env=env).remote()) >= 0)
print("RAY_ADDRESS" in os.environ)
"""


@pytest.mark.slow
def test_a_dashboard_on_localhost_answers_what_rays_cleaners_ask():
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    line = [sys.executable, "-c", ASK_STATE]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, env=env)
    assert done.stdout.split() == ["True", "127.0.0.1", "True", "False"], done


@pytest.mark.parametrize("place", ["disk", pytest.param("s3", marks=pytest.mark.stores)])
def test_rays_warnings_and_what_its_nodes_report_reach_a_file_and_not_the_terminal(
    tmp_path, capsys, request, place
):
    out = Folder(f"{request.getfixturevalue('bucket')}/run" if place == "s3" else str(tmp_path))
    with keep_log(out):
        pass
    assert out.list_names() == []  # nothing said, nothing written
    message = {"lines": ["8 PYTHON worker processes have been started"], "pid": "raylet", "is_err": False}
    printed = worker.print_to_stdstream
    for _ in range(2):
        with pytest.raises(KeyError), keep_log(out):
            logging.getLogger("ray.serve").info("nothing of note")
            logging.getLogger("ray.serve").warning("no worker left")
            worker.print_to_stdstream(message, ignore_prefix=False)
            raise KeyError
    logging.getLogger("ray.serve").warning("after the end")
    assert worker.print_to_stdstream is printed
    lines = out.read_bytes(*LOG).decode().splitlines()
    assert len(lines) == 4 and lines[0].endswith(" WARNING ray.serve: no worker left")
    assert lines[1].endswith("8 PYTHON worker processes have been started")
    assert capsys.readouterr() == ("", "")


def test_a_run_counts_its_silence_from_its_own_beginning(monkeypatch):
    monkeypatch.setattr(Progress, "_reported_at", time.monotonic() - 3600)  # by an earlier run here
    monkeypatch.setattr(ray_session.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_session, "_describe", lambda *_: None)
    with connect(ClusterConfig(executor="ray")), Progress("choose", 1) as progress:
        assert progress._name_pause() > 1


L4 = {"name": "NVIDIA L4", "capability": "8.9", "multiprocessors": 58, "cuda": "13.0", "cudnn": 92000}


@pytest.fixture
def offer(monkeypatch):
    """A cluster of one node of 8 CPUs with so many GPUs, and an autoscaler that offers more.

    Returns how long the first GPU was awaited.
    """

    def make(gpus: int, offered: dict[str, float] | None = None) -> list[float | None]:
        awaited: list[float | None] = []
        resources = {"CPU": 8.0, "GPU": float(gpus)}
        node = {"Resources": resources, "Alive": True, "NodeManagerHostname": "here", "Labels": {"zone": "a"}}
        monkeypatch.setattr(ray_session.ray, "cluster_resources", lambda: resources)
        monkeypatch.setattr(ray_session.ray, "nodes", lambda: [node])
        monkeypatch.setattr(ray_cluster, "count_offered", lambda name: (offered or {}).get(name, 0))
        monkeypatch.setattr(
            ray_cluster, "await_gpu", lambda limit_s, where, share: awaited.append(limit_s) or L4
        )
        return awaited

    return make


def test_more_workers_than_gpus_are_refused_unless_they_are_waited_for(offer):
    offer(1)
    with pytest.raises(ValueError, match=r"train\.workers=2: must be at most 1, the GPUs of the cluster"):
        ray_session._describe(ClusterConfig(scorers=2))
    assert ray_session._describe(ClusterConfig(scorers=2, gpu=True)).device == "gpu"
    assert ray_session._describe(ClusterConfig(scorers="1..2")).num_scorers == 2
    offer(1, {"GPU": 4})
    assert ray_session._describe(ClusterConfig(scorers=2)).least_scorers == 2


def test_the_first_gpu_is_awaited_where_one_may_come(offer):
    for gpu, there, offered, scores, awaited in [
        (None, 0, 0, True, []),
        (None, 2, 0, True, [60]),
        (None, 0, 8, True, [60]),
        (None, 0, 8, False, []),
        (True, 0, 0, True, [None]),
        (True, 2, 8, True, [None]),
        (False, 2, 8, True, []),
    ]:
        waits = offer(there, {"GPU": offered})
        found = ray_session._describe(ClusterConfig(gpu=gpu, wait_s=60), scores)
        assert waits == awaited, (gpu, there, offered)
        assert (found.device, found.gpu) == (("gpu", L4) if awaited else ("cpu", None))


def test_a_pool_grows_to_what_the_autoscaler_may_start(offer):
    for scorers, there, offered, span in [
        (None, 2, 0, (2, 2)),
        (None, 2, 8, (1, 8)),
        (None, 8, 8, (8, 8)),
        ("2..5", 2, 8, (2, 5)),
        (3, 3, 8, (3, 3)),
        ("1..64", 1, inf, (1, 64)),
    ]:
        offer(there, {"GPU": offered, "CPU": 100})
        found = ray_session._describe(ClusterConfig(scorers=scorers))
        assert (found.least_scorers, found.num_scorers) == span
        with use(OnRay(60)):
            assert found.count_first() == (max(span[0], min(there, span[1])) if found.is_elastic else span[0])
        assert found.num_cpus == found.most_cpus == 100
    waits = offer(1, {"GPU": inf})
    for gpu in (None, True):
        with pytest.raises(ValueError, match=r"^cluster\.scorers=none: must be MIN\.\.MAX where the .*; set"):
            ray_session._describe(ClusterConfig(gpu=gpu))
    assert not waits and ray_session._describe(ClusterConfig(gpu=False)).device == "cpu"


def test_without_gpus_scorers_and_tasks_share_the_cpus(offer):
    offer(0, {"CPU": inf})  # as many as work needs
    found = ray_session._describe(ClusterConfig())
    assert (found.num_cpus, found.most_cpus) == (8, inf)
    offer(0)  # scorers that come and go compute in the CPUs that they ask for
    spans = [ray_session._describe(ClusterConfig(scorers=span)).num_threads for span in (1, "1..4")]
    assert spans == [min(8, os.cpu_count()), 2]


def test_scorers_are_asked_for_on_the_nodes_that_labels_name(offer, monkeypatch):
    monkeypatch.setattr(
        ray_session.ray_cluster, "ask_labels", lambda config: {"label_selector": config.selector}
    )
    config = ClusterConfig(labels=("zone=a",))
    for gpus in (0, 2):
        offer(gpus)
        assert ray_session._describe(config).scorer_resources["label_selector"] == {"zone": "a"}
        assert "label_selector" not in ray_session._describe(config, scores=False).scorer_resources


def test_a_cluster_that_is_joined_gets_the_keys_of_this_process(monkeypatch):
    asked: dict[str, object] = {}
    monkeypatch.setattr(ray_session.ray, "init", lambda **options: asked.update(options))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    ray_session._join("head:6379")
    assert asked["address"] == "head:6379"
    assert asked["runtime_env"]["env_vars"]["AWS_ACCESS_KEY_ID"] == "mine"


def test_what_ray_data_may_do_by_itself_is_bounded(monkeypatch):
    """Nothing is dropped, storage errors are tried again a few times, blocks stay small."""
    context = SimpleNamespace()
    monkeypatch.setattr(ray_session.DataContext, "get_current", lambda: context)
    ray_session.settle_data_context(7)
    assert context.max_errored_blocks == 0 and context.target_max_block_size <= 64 * 2**20
    assert set(STORAGE_ERRORS) <= set(context.retried_map_errors) and 0 < context.max_map_retries <= 10
    assert context.execution_no_progress_timeout_s == 7
