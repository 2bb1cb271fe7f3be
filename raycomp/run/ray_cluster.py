"""The cluster: its CPUs, GPUs and labels, its failures in one line, and Ray's private interfaces."""

import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray import exceptions as rays
from ray._private import worker
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray._private.state import actors, state
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators.map_operator import MapOperator

from raycomp.config import ClusterConfig, ClusterFailed, UserError
from raycomp.run.progress import Progress
from raycomp.run.run import say_gpu

JOB_VARIABLE = RAY_JOB_CONFIG_JSON_ENV_VAR
"""The environment variable that holds the config of a submitted job, as json."""
# Ray Data's name of a pool's actors.
_POOL_CLASS = "MapWorker("


def count_restarts() -> int:
    """Return how often this actor was restarted."""
    return actors(ray.get_runtime_context().get_actor_id())["NumRestarts"]


def count_pool() -> int:
    """Return how many actors of Ray Data's pools this driver has, with their models loaded."""
    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    alive = actors(job_id=job, actor_state_name="ALIVE")
    return sum(one["ActorClassName"].startswith(_POOL_CLASS) for one in alive.values())


def read_limits() -> dict[str, int] | None:
    """Return the maximum of each resource that the autoscaler reports; None where it reports none."""
    return state.get_max_resources_from_cluster_config()


@contextmanager
def catch_notes(log: Callable[[str], None]) -> Iterator[None]:
    """Send what Ray's nodes report to ``log``: Ray prints it on stdout, and has no option for that."""
    before = worker.print_to_stdstream

    def catch(data: dict[str, Any], ignore_prefix: bool) -> None:
        for line in data["lines"]:
            log(line)

    worker.print_to_stdstream = catch
    try:
        yield
    finally:
        worker.print_to_stdstream = before


class ForgetBlocks(ExecutionCallback):
    """Drops Ray Data's records of finished blocks, which are unused."""

    def on_execution_step(self, executor: Any) -> None:
        """Drop them after every step."""
        for operator in executor._topology:
            if isinstance(operator, MapOperator):
                operator._output_blocks_stats.clear()


def drain_node(head: str, instance: str, deadline_ms: int) -> str:
    """Report to the cluster at ``head`` that a machine ends then; return why that was refused, else ""."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]

    gcs = GcsClient(address=head)
    nodes = [node for node in gcs.get_all_node_info().values() if node.instance_id == instance]
    if not nodes:
        return f"no node of the cluster at {head}"
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why_not = gcs.drain_node(nodes[0].node_id.hex(), reason, "spot interruption", deadline_ms)
    return "" if accepted else why_not


# The other kinds are exceptions that a task raised, cancelled tasks, and our own misuse of Ray.
_LOST = (
    rays.LocalRayletDiedError,
    rays.WorkerCrashedError,
    rays.RayActorError,
    rays.RaySystemError,
    rays.OutOfMemoryError,
    rays.OutOfDiskError,
    rays.ObjectStoreFullError,
    rays.NodeDiedError,
    rays.ObjectLostError,
    rays.RpcError,
    rays.RuntimeEnvSetupError,
    rays.TaskUnschedulableError,
    rays.ActorUnschedulableError,
    rays.TaskPlacementGroupRemoved,
    rays.ActorPlacementGroupRemoved,
)
_LONGEST = 500
# A share of Ray's timeout for an unresponsive head, set by this variable: reported before Ray exits.
_PATIENCE = 2 / 3
_RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"


@contextmanager
def as_failed_cluster() -> Iterator[None]:
    """Raise ClusterFailed for an exception of the block by which Ray itself failed."""
    try:
        yield
    except Exception as error:
        cause = unwrap(error)
        # An actor whose constructor raised, and an object that cannot be unpickled, are errors in raycomp.
        is_ours = getattr(cause, "actor_init_failed", False) or getattr(cause, "traceback_str", None)
        if is_ours or not isinstance(cause, _LOST):
            raise
        said = " ".join(str(cause).split())[:_LONGEST]
        failed = ClusterFailed(f"Ray failed: {type(cause).__name__}: {said}")
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        raise failed from error


@contextmanager
def watch_head(address: str) -> Iterator[None]:
    """End this process with one line while the block runs, once the head at ``address`` is unreachable.

    Ray's native code would end it without a message after its own timeout, 60 s; Python code is not notified.
    """
    patience_s = _PATIENCE * float(os.environ.get(_RAYS_PATIENCE) or 60)
    stop = threading.Event()

    def watch() -> None:
        host, _, port = address.rpartition(":")
        answered = time.monotonic()
        while not stop.wait(patience_s / 8):
            try:
                socket.create_connection((host.strip("[]"), int(port)), patience_s / 8).close()
                answered = time.monotonic()
            except OSError as error:
                if time.monotonic() - answered > patience_s:
                    said = f"Ray's head at {address} has not answered for {patience_s:.0f} s ({error})"
                    rest = "the same command resumes the run"
                    print(f"raycomp: {said}; once that is fixed: {rest}", file=sys.stderr, flush=True)
                    os._exit(ClusterFailed.exit_code)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def unwrap(error: Exception) -> Exception:
    """Return an error without the wrappers of tasks and actors."""
    while isinstance(getattr(error, "cause", None), Exception):
        error = error.cause  # type: ignore[attr-defined]
    return error


def is_refused(error: BaseException | None) -> bool:
    """Whether a cluster required a token and got none, or a wrong one.

    Ray raises its own error where it reads the token itself. Elsewhere it raises a ConnectionError whose
    cause has the traceback of that error in its message.
    """
    while error is not None:
        if isinstance(error, rays.AuthenticationError) or "AuthenticationError" in str(error):
            return True
        error = error.__cause__
    return False


def say_refused(address: str) -> str:
    """Return the settings by which a cluster with a token accepts this driver."""
    where = "RAY_AUTH_TOKEN_PATH to the file of the cluster's token (or RAY_AUTH_TOKEN to the token)"
    if os.environ.get("RAY_AUTH_MODE") != "token":
        lack, wanted = "RAY_AUTH_MODE is not token", f"RAY_AUTH_MODE=token, and {where}"
    else:
        lack, wanted = "the token is missing or wrong", where
    failed = "authentication failed: the cluster requires a token"
    return f"cluster.address={address!r}: {failed}, {lack}; set {wanted}"


# `ray up` writes the cluster's config here on the head, in json; a submitted job's driver runs there, too.
_CLUSTER_CONFIG = Path("~/ray_bootstrap_config.yaml")
# A label that Ray gives to a node whose starter names its group in RAY_NODE_TYPE_NAME.
_GROUP = "ray.io/node-group"
MIXED: Mapping[str, Any] = {"name": "GPUs of several kinds"}
"""In place of a kind of GPU: any, each recorded with the rows that it computed."""


def count_offered(resource: str) -> float:
    """Return how much of a resource ("GPU", "CPU") the cluster has once its autoscaler is at its maximum.

    inf where the autoscaler has no limit, or where nodes are started in groups of unknown limits, as KubeRay
    does; 0 where nothing starts nodes.
    """
    reported = read_limits()
    if reported is not None:
        most = reported.get(resource, 0)
        return math.inf if most >= 2**31 else most
    path = _CLUSTER_CONFIG.expanduser()
    if not path.is_file():
        has_groups = any(node["Alive"] and _GROUP in node["Labels"] for node in ray.nodes())
        return math.inf if has_groups else 0
    config = json.loads(path.read_text())
    types: Mapping[str, Any] = config.get("available_node_types", {})
    head, left = config.get("head_node_type", ""), config.get("max_workers", math.inf)
    has = {name: one.get("resources", {}).get(resource, 0) for name, one in types.items()}
    most = has.get(head, 0)
    for name in sorted(set(types) - {head}, key=has.__getitem__, reverse=True):
        taken = min(left, types[name].get("max_workers", left))
        most += taken * has[name] if has[name] else 0
        left -= taken
    return most


def describe_gpu() -> dict[str, Any] | None:
    """Return the GPU of this process. Only processes that call this load torch, which takes 2 s."""
    from raycomp.models import device

    return device.describe_gpu()


def _probe_gpu() -> tuple[str, dict[str, Any] | None]:
    return ray.util.get_node_ip_address(), describe_gpu()


def await_gpu(
    limit_s: float | None,
    where: Mapping[str, Any] | None = None,
    probe: Callable[[], Any] = _probe_gpu,
    share: float = 1.0,
) -> dict[str, Any]:
    """Return the description of the first GPU once there is one; report the wait meanwhile.

    ``where`` are the options of tasks that require nodes with labels; ``share`` of a GPU is enough.

    Raises ValueError where no GPU came within ``limit_s``, or where torch finds none on a node with a GPU.
    """
    asked_at = time.strftime("%H:%M:%S")
    asked = ray.remote(num_cpus=0, num_gpus=share, **(where or {}))(probe).remote()
    try:
        with Progress("start", 1, unit="GPU"):
            ready, _ = ray.wait([asked], timeout=limit_s)
    except BaseException:
        ray.cancel(asked)
        raise
    if not ready:
        ray.cancel(asked)
        there = ray.cluster_resources().get("GPU", 0)
        raise ValueError(
            f"cluster.gpu: no GPU was free within cluster.wait_s={limit_s:g} s, requested at {asked_at} "
            f"({there:.0f} available); set cluster.gpu=true to keep waiting, cluster.gpu=false for CPUs"
        )
    node, found = ray.get(asked)
    if found is None:
        raise ValueError(_say_none(node))
    return found


def _say_none(node: str) -> str:
    return (
        f"cluster.gpu: node {node} reports a GPU, but torch finds none there; fix its driver, or set "
        f"cluster.gpu=false to score on CPUs"
    )


def check_gpu(wanted: Mapping[str, Any]) -> str:
    """Return this process's kind of GPU. Raises UserError unless it is the wanted one, or any will do."""
    found = describe_gpu()
    if found is None:
        raise UserError(_say_none(ray.util.get_node_ip_address()))
    if wanted not in (MIXED, found):
        raise UserError(
            f"cluster: a scorer has {say_gpu(found)}, the run was started on {say_gpu(wanted)}, and their "
            f"scores differ in the last bits; give all scorers GPUs of one kind by cluster.labels, or set "
            f"cluster.mixed_gpus=true in another folder"
        )
    return say_gpu(found)


# Tasks for which there is room next to the workers: one that reads and one that processes what was read.
_TASKS = 2
# Ray rounds amounts to this precision; a share that is rounded up would not fit.
_UNITS = 10_000


def share_cpus(workers: int, tasks_each: int, selector: Mapping[str, str]) -> float:
    """Return the CPUs that a task requests, 1 or a fraction, so that all workers and two tasks run together.

    A worker requests ``tasks_each`` times as much, on a node with the labels ``selector``. Where an unknown
    number of nodes may be added, the present ones count. Raises ValueError where there are no CPUs and none
    can be added.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    cpus = [int(node["Resources"].get("CPU", 0)) for node in alive]
    own = [n for n, node in zip(cpus, alive, strict=True) if selector.items() <= node["Labels"].items()]
    offered = count_offered("CPU")
    if sum(cpus) < offered and not math.isinf(offered):
        cpus = own = [int(offered)]
    if not sum(own):
        if offered:
            return 1.0
        where = "nodes with cluster.labels" if selector else "its nodes"
        raise ValueError(
            f"cluster: {where} have no CPUs and no autoscaler can add any; start a node with CPUs"
        )
    return _UNITS // split_cpu(cpus, own, workers, tasks_each) / _UNITS


def split_cpu(cpus: Sequence[int], own: Sequence[int], workers: int, tasks_each: int) -> int:
    """Return the least number of equal parts of a CPU with which everything fits, one part for each task.

    ``cpus`` are those of all nodes, ``own`` those of nodes where workers may run, at least 1 in all. A worker
    takes its ``tasks_each`` parts on one node.
    """
    return next(
        parts
        for parts in count(1)
        if sum(num * parts // tasks_each for num in own) >= workers
        and sum(cpus) * parts >= workers * tasks_each + _TASKS
    )


# A resource that Ray gives to the head alone, and a label that it gives to every node.
_HEAD = "node:__internal_head__"
_NODE_ID = "ray.io/node-id"


def ask_labels(config: ClusterConfig) -> dict[str, Any]:
    """Return the option by which tasks and actors require ``cluster.labels``, empty for any node.

    Raises ValueError where no node has the labels and no autoscaler can add one: Ray would wait forever.
    """
    wanted = config.selector
    if not wanted:
        return {}
    nodes = [node["Labels"] for node in ray.nodes() if node["Alive"]]
    has_autoscaler = count_offered("CPU") or count_offered("GPU")
    if not has_autoscaler and not any(wanted.items() <= labels.items() for labels in nodes):
        said = ",".join(config.labels)
        raise ValueError(
            f"cluster.labels={said!r}: no node has these labels and no autoscaler can add one; label a node"
        )
    return {"label_selector": wanted}


def leave_head_alone() -> dict[str, Any]:
    """Return the option that keeps tasks without CPUs off a head without any: such a head does no work.

    Empty elsewhere: a laptop's only node is its head.
    """
    nodes = [node for node in ray.nodes() if node["Alive"] and _HEAD in node["Resources"]]
    idle = [node["NodeID"] for node in nodes if not node["Resources"].get("CPU")]
    return {"label_selector": {_NODE_ID: f"!{idle[0]}"}} if idle else {}
