"""The executor on Ray, and the cluster: its CPUs, GPUs and labels, its failures in one line.

Passes run on Ray Data, tasks and actors on every node. The driver counts, as it receives every finished
block. Names of metrics lack what Ray adds: the prefix ``ray_``, and the suffix ``_total`` of counters.

Reading and the next stage are separate: Ray Data fuses two steps on CPUs that request the same resources. The
one task that reads a large shard would then decode it, too. Where there are fewer shards than workers, the
rows that were read are split into more pieces.
"""

import json
import math
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial, update_wrapper
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import ray
from ray import exceptions as rays
from ray._private import worker
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray._private.state import actors, state
from ray.data import ActorPoolStrategy, Dataset, Datasource
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators.map_operator import MapOperator
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask
from ray.data.exceptions import ExecutionTimeoutError
from ray.util.metrics import Counter, Gauge, Metric

from raycomp.config import ClusterConfig, ClusterFailed, UserError
from raycomp.data.reader import Item, read_again
from raycomp.data.stores import TASK_RETRIES
from raycomp.models.architecture import one_line
from raycomp.run import executor
from raycomp.run.executor import GPU_KIND, Pass, Scorer, Stage, run_timed
from raycomp.run.progress import Growth, Progress, name_run
from raycomp.run.run import say_gpu

JOB_VARIABLE = RAY_JOB_CONFIG_JSON_ENV_VAR
"""The environment variable that holds the config of a submitted job, as json."""
# Ray Data's name of a pool's actors.
_POOL_CLASS = "MapWorker("


def count_restarts() -> int:
    """Return how often this actor was restarted."""
    return actors(ray.get_runtime_context().get_actor_id())["NumRestarts"]


def count_there() -> tuple[int, int]:
    """Return the number of this driver's scorers with a loaded model, and of the cluster's CPUs."""
    try:
        job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
        alive = actors(job_id=job, actor_state_name="ALIVE").values()
        num_scorers = sum(one["ActorClassName"].startswith(_POOL_CLASS) for one in alive)
        return num_scorers, int(ray.cluster_resources().get("CPU", 0))
    except rays.RayError as error:
        raise ConnectionError(str(error)) from error


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
_NAMES = """LocalRayletDiedError WorkerCrashedError RayActorError RaySystemError OutOfMemoryError
    OutOfDiskError ObjectStoreFullError NodeDiedError ObjectLostError RpcError RuntimeEnvSetupError
    TaskUnschedulableError ActorUnschedulableError TaskPlacementGroupRemoved ActorPlacementGroupRemoved"""
_LOST = tuple(getattr(rays, name) for name in _NAMES.split())
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
    reported = state.get_max_resources_from_cluster_config()
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
    return _demand_gpu(*ray.get(asked))


def _demand_gpu(node: str, found: dict[str, Any] | None) -> dict[str, Any]:
    if found is None:
        raise UserError(
            f"cluster.gpu: node {node} reports a GPU, but torch finds none there; fix its driver, or set "
            f"cluster.gpu=false to score on CPUs"
        )
    return found


def check_gpu(wanted: Mapping[str, Any]) -> str:
    """Return this process's kind of GPU. Raises UserError unless it is the wanted one, or any will do."""
    found = _demand_gpu(*_probe_gpu())
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


class Kind(NamedTuple):
    """A metric's type, its description, and its labels in addition to the common ones."""

    make: type[Metric]
    says: str
    labels: tuple[str, ...] = ()


LABELS = ("run", "out", "phase")
"""Labels of every metric: the run's id in run.json, its folder, and the phase."""
_STAGE = ("stage", "where")
METRICS = {
    "raycomp_rows": Kind(Counter, "finished rows, by status", ("status",)),
    "raycomp_busy_seconds": Kind(Counter, "busy seconds, summed over the workers of a stage", _STAGE),
    "raycomp_workers": Kind(Gauge, "maximum number of workers of a stage", _STAGE),
    "raycomp_done": Kind(Gauge, "finished shards (or another unit)", ("unit",)),
    "raycomp_planned": Kind(Gauge, "planned shards (or another unit)", ("unit",)),
    "raycomp_waiting_seconds": Kind(Gauge, "seconds without progress, by cause", ("what",)),
    "raycomp_waves": Kind(Counter, "committed waves"),
}


@cache
def _make(name: str) -> Metric:
    kind = METRICS[name]
    return kind.make(name, kind.says, (*LABELS, *kind.labels))


class RayMeter(executor.Silent):
    """Metrics that Ray collects. Without a cluster the values are discarded."""

    def __init__(self, phase: str):
        self.labels = {**name_run(), "phase": phase}

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter. Zero is ignored."""
        if value and ray.is_initialized():
            metric = _make(name)
            assert isinstance(metric, Counter), name
            metric.inc(value, self.labels | labels)

    def put(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge, which its node reports for 20 s."""
        if ray.is_initialized():
            metric = _make(name)
            assert isinstance(metric, Gauge), name
            metric.set(value, self.labels | labels)


# Pieces into which each block of 32 MiB that was read is split: small enough for every worker to get some,
# large enough to be worth a task.
_PIECES_PER_WORKER = 2
_PIECES_AT_MOST = 16
# The driver needs 5 kB and a millisecond for each read task, before the first row arrives.
_READ_TASKS_AT_MOST = 20_000
# Calls that a scorer is handed at a time, two of which run: the pool grows only with at least 1.75 calls per
# running one.
_CALLS_AHEAD = 4
# How often a scorer restarts, after a broken GPU or a lost node, before a broken GPU ends the run.
_RESTARTS = 5


def build(steps: Pass, ordinals: list[int], parts_uri: str) -> Dataset:
    """Return the dataset of the part metadata of these shards."""
    size = -(-len(ordinals) // _READ_TASKS_AT_MOST)
    items = [steps.items[ordinal] for ordinal in ordinals]
    shares = [items[start : start + size] for start in range(0, len(items), size)]
    source = ItemSource(shares, partial(executor.read_timed, steps.read))
    wanted = _PIECES_PER_WORKER * steps.free_cpus if steps.is_cut else 0
    pieces = min(max(len(shares), wanted), _PIECES_AT_MOST * len(shares))
    each = steps.session.cpus_per_task
    dataset = ray.data.read_datasource(
        source, override_num_blocks=pieces, num_cpus=executor.CPUS_PER_READER * each
    )
    for stage in steps.stages:
        if stage.where == executor.CPUS:
            run = _in_slices(stage, steps.rows)
            dataset = dataset.map_batches(run, batch_size=None, batch_format="pyarrow", num_cpus=each)
        else:
            dataset = _on_scorers(dataset, stage, steps)
    write = partial(executor.stage_part, parts_uri=parts_uri, part=steps.part)
    return dataset.map_batches(write, batch_size=None, batch_format="pyarrow", num_cpus=each)


def _on_scorers(dataset: Dataset, stage: Stage, steps: Pass) -> Dataset:
    """Schedule a stage on a pool of scorers; the next call is assembled while one computes.

    Both compute at a time only where a stage says that several threads may run it.
    """
    session = steps.session
    pool = ActorPoolStrategy(
        min_size=session.least_scorers or session.num_scorers,
        max_size=session.num_scorers,
        initial_size=session.count_first(),
        max_tasks_in_flight_per_actor=_CALLS_AHEAD,
        max_concurrent_calls_per_actor=2,
        enable_true_multi_threading=stage.in_threads,
    )
    return dataset.map_batches(
        type(stage.name, (_Scorer,), {}),
        fn_constructor_args=(stage, session.num_threads, session.gpu),
        batch_size=steps.scorer_rows,
        batch_format="pyarrow",
        compute=pool,
        **session.scorer_resources,
    )


def _in_slices(stage: Stage, rows: int) -> Callable[[pa.Table], Iterator[pa.Table]]:
    """Return a stage on CPUs as Ray Data calls it, a few rows at a time; its tasks have the stage's name."""

    def run(table: pa.Table) -> Iterator[pa.Table]:
        for start in range(0, len(table), rows):
            yield run_timed(stage.name, stage.work, table.slice(start, rows))

    run.__name__ = stage.name
    return run


class _Scorer:
    """One actor: loads its model once. On a GPU, so without ``num_threads``, loading is timed, too.

    ``gpu`` is the required kind of GPU; None = no check. Where any will do, rows get the kind as a column.
    """

    def __init__(self, stage: Stage, num_threads: int | None, gpu: Mapping[str, Any] | None = None):
        kind = None if gpu is None else check_gpu(gpu)
        self.kind = kind if gpu == MIXED else None
        self.name = stage.name
        self.is_on_gpu = num_threads is None
        self.work = stage.start(num_threads)
        assert isinstance(self.work, Scorer), f"{stage.name}: reports no device"

    def __call__(self, table: pa.Table) -> pa.Table:
        try:
            table = run_timed(self.name, self.work, table)
        except Exception as error:
            if self.work.device.is_broken():
                # Its context is broken: Ray restarts this actor in another process and repeats its rows.
                restarts = count_restarts()
                if restarts >= _RESTARTS:
                    node = ray.util.get_node_ip_address()
                    raise ClusterFailed(
                        f"a scorer was restarted {restarts} times and its GPU on node {node} failed again "
                        f"({one_line(error)}); remove the node; the same command resumes the run"
                    ) from error
                print(f"GPU failed, restarting this scorer: {one_line(error)}", file=sys.stderr, flush=True)
                os._exit(1)
            raise
        if self.kind is not None:
            table = table.append_column(GPU_KIND, pa.repeat(self.kind, len(table)))
        seconds = self.work.device.take_busy_seconds() if self.is_on_gpu else None
        return table if seconds is None else executor.add_seconds(table, executor.DEVICE, seconds)


class ItemSource(Datasource):
    """Read every item by ``read(item)``, which yields the same tables each time it is called."""

    def __init__(self, items: list[Item], read: Callable[[Item], Iterator[pa.Table]]):
        super().__init__()
        self._items = items
        self._read = read

    def estimate_inmemory_data_size(self) -> int | None:
        """Unknown before reading."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None
    ) -> list[ReadTask]:
        """Return one task per item, whatever parallelism Ray requests."""
        read = self._read
        unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        # Ray names a task of some megabytes in a warning by its function's name, which partial has not.
        calls = (update_wrapper(partial(read_again, read, item), read_again) for item in self._items)
        return [ReadTask(call, unknown, per_task_row_limit=per_task_row_limit) for call in calls]


_STORAGE_FAILED = re.compile(
    r"^(?:OSError|PermissionError|TimeoutError|Connection\w*Error): (.+)\n\n"
    r"The above exception was the direct cause of the following exception:$",
    re.MULTILINE,
)
_OWN_FAILED = re.compile(r"^raycomp\.config\.\w+\.(UserError|ClusterFailed): (.+)$", re.MULTILINE)
_RAISED = {"UserError": ValueError, "ClusterFailed": ClusterFailed}


def read_metadata(dataset: Dataset) -> Iterator[list[dict[str, Any]]]:
    """Run a dataset; yield its part metadata block by block.

    Ray Data reports a stage's error by its traceback alone. Raises OSError where a stage's storage failed,
    ValueError for an error that the user can fix, ClusterFailed where a GPU failed, Stalled after too long
    without a block.
    """
    try:
        all_metadata: Any
        for all_metadata in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield all_metadata.to_pylist()
    except ExecutionTimeoutError as error:
        raise executor.Stalled("no block came") from error
    except (rays.UserCodeException, rays.ActorDiedError) as error:  # the second, where a model is loaded
        if said := _OWN_FAILED.search(str(error)):
            raise _RAISED[said[1]](said[2]) from error
        if said := _STORAGE_FAILED.search(str(error)):
            raise OSError(said[1]) from error
        raise


# Number of functions whose remote tasks are cached.
_KEPT_TASKS = 8
# A task over a file takes seconds; requests to an unresponsive store fail in less than this.
_SETTLE_S = 600.0


class OnRay(executor.Executor):
    """Runs the work on the connected cluster."""

    def __init__(self, stall_s: float):
        self.stall_s = stall_s
        self.tasks: dict[Callable[..., Any], tuple[dict[str, Any], Any]] = {}

    def run(self, steps: Pass, ordinals: list[int], parts_uri: str) -> Iterator[list[dict[str, Any]]]:
        return read_metadata(build(steps, ordinals, parts_uri))

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return a reference to the result of a task, which takes a CPU unless ``options`` say otherwise."""
        known, task = self.tasks.get(function, ({}, None))
        if task is None or known != options:
            # Ray sends every new function to all workers, so the last few are kept.
            task = ray.remote(**{"num_cpus": 1, **TASK_RETRIES, **options})(function)
            self.tasks = dict([*self.tasks.items()][-_KEPT_TASKS:]) | {function: (options, task)}
        return task.remote(*args)

    def wait(self, handles: Sequence[Any], count: int, timeout_s: float | None = None) -> list[Any]:
        return ray.wait(list(handles), num_returns=count, timeout=timeout_s)[0]

    def get(self, handle: Any) -> Any:
        return ray.get(handle)

    def stop(self, handles: Sequence[Any]) -> None:
        """End the processes of tasks."""
        with suppress(rays.RayError, ConnectionError):  # a cluster that is down runs none
            for handle in handles:
                ray.cancel(handle, force=True)
            if handles:
                ray.wait(list(handles), num_returns=len(handles), timeout=_SETTLE_S)

    def put(self, value: Any) -> Any:
        return ray.put(value)

    def count(self, resource: str) -> float:
        """Return the cluster's current amount, inf where the cluster does not answer."""
        with suppress(rays.RayError, ConnectionError):  # which is reported where work is awaited
            return ray.cluster_resources().get(resource, 0)
        return float("inf")

    def merge_options(self) -> dict[str, Any]:
        """Return the options of a task that starts at once, on any node except an idle head."""
        return {"scheduling_strategy": "SPREAD", "num_cpus": 0, **leave_head_alone()}

    def watch_growth(self) -> Growth:
        return Growth(count_there)

    def open_meter(self, phase: str) -> RayMeter:
        return RayMeter(phase)
