"""The executor on Ray: passes over Ray Data, tasks and actors on every node of the cluster.

The driver counts, as it receives every finished block. Names here lack what Ray adds: the prefix ``ray_``,
and the suffix ``_total`` of counters.

Reading and the next stage are separate: Ray Data fuses two steps on CPUs that request the same resources. The
one task that reads a large shard would then decode it, too. Where there are fewer shards than workers, the
rows that were read are split into more pieces.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset, Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import ActorDiedError, RayError, UserCodeException
from ray.util.metrics import Counter, Gauge, Metric

from raycomp.config import ClusterFailed
from raycomp.data.reader import Item, read_again
from raycomp.data.stores import TASK_RETRIES
from raycomp.models.architecture import one_line
from raycomp.run.executor import CPUS, DEVICE, GPU_KIND, Scorer, Silent, Stage
from raycomp.run.progress import Growth, name_run
from raycomp.run.ray_cluster import MIXED, check_gpu, count_pool, count_restarts, leave_head_alone
from raycomp.run.work import CPUS_PER_READER, Pass, Stalled, add_seconds, read_timed, run_timed, stage_part


class Kind(NamedTuple):
    """A metric's type, its description, and its labels in addition to the common ones."""

    make: type[Metric]
    says: str
    labels: tuple[str, ...] = ()


LABELS = ("run", "out", "phase")
"""Labels of every metric: the run's id in run.json, its folder, and the phase."""
METRICS = {
    "raycomp_rows": Kind(Counter, "finished rows, by status", ("status",)),
    "raycomp_busy_seconds": Kind(
        Counter, "busy seconds, summed over the workers of a stage", ("stage", "where")
    ),
    "raycomp_workers": Kind(Gauge, "maximum number of workers of a stage", ("stage", "where")),
    "raycomp_done": Kind(Gauge, "finished shards (or another unit)", ("unit",)),
    "raycomp_planned": Kind(Gauge, "planned shards (or another unit)", ("unit",)),
    "raycomp_waiting_seconds": Kind(Gauge, "seconds without progress, by cause", ("what",)),
    "raycomp_waves": Kind(Counter, "committed waves"),
}


@cache
def _make(name: str) -> Metric:
    kind = METRICS[name]
    return kind.make(name, kind.says, (*LABELS, *kind.labels))


class RayMeter(Silent):
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

    def add_rows(self, statuses: Mapping[str, int]) -> None:
        """Count rows by their status."""
        for status, count in statuses.items():
            self.add("raycomp_rows", count, status=status)


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
    source = ItemSource(shares, partial(read_timed, steps.read))
    wanted = _PIECES_PER_WORKER * steps.free_cpus if steps.is_cut else 0
    pieces = min(max(len(shares), wanted), _PIECES_AT_MOST * len(shares))
    each = steps.session.cpus_per_task
    dataset = ray.data.read_datasource(source, override_num_blocks=pieces, num_cpus=CPUS_PER_READER * each)
    for stage in steps.stages:
        if stage.where == CPUS:
            run = _in_slices(stage, steps.rows)
            dataset = dataset.map_batches(run, batch_size=None, batch_format="pyarrow", num_cpus=each)
        else:
            dataset = _on_scorers(dataset, stage, steps)
    write = partial(stage_part, parts_uri=parts_uri, part=steps.part)
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
        return table if seconds is None else add_seconds(table, DEVICE, seconds)


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
        return [
            ReadTask(partial(read_again, read, item), unknown, per_task_row_limit=per_task_row_limit)
            for item in self._items
        ]


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
        raise Stalled("no block came") from error
    except (UserCodeException, ActorDiedError) as error:  # the second, where a model is loaded
        if said := _OWN_FAILED.search(str(error)):
            raise _RAISED[said[1]](said[2]) from error
        if said := _STORAGE_FAILED.search(str(error)):
            raise OSError(said[1]) from error
        raise


# Number of functions whose remote tasks are cached.
_TASKS = 8
# A task over a file takes seconds; requests to an unresponsive store fail in less than this.
_SETTLE_S = 600.0


class OnRay:
    """Runs the work on the connected cluster."""

    def __init__(self, stall_s: float):
        self.stall_s: float | None = stall_s
        self.tasks: dict[Callable[..., Any], tuple[dict[str, Any], Any]] = {}

    def run(self, steps: Pass, ordinals: list[int], parts_uri: str) -> Iterator[list[dict[str, Any]]]:
        return read_metadata(build(steps, ordinals, parts_uri))

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return a reference to the result of a task, which takes a CPU unless ``options`` say otherwise."""
        known, task = self.tasks.get(function, ({}, None))
        if task is None or known != options:
            # Ray sends every new function to all workers, so the last few are kept.
            task = ray.remote(**{"num_cpus": 1, **TASK_RETRIES, **options})(function)
            self.tasks = dict([*self.tasks.items()][-_TASKS:]) | {function: (options, task)}
        return task.remote(*args)

    def wait(self, handles: Sequence[Any], count: int, timeout_s: float | None = None) -> list[Any]:
        return ray.wait(list(handles), num_returns=count, timeout=timeout_s)[0]

    def get(self, handle: Any) -> Any:
        return ray.get(handle)

    def stop(self, handles: Sequence[Any]) -> None:
        """End the processes of tasks."""
        with suppress(RayError, ConnectionError):  # a cluster that is down runs none
            for handle in handles:
                ray.cancel(handle, force=True)
            if handles:
                ray.wait(list(handles), num_returns=len(handles), timeout=_SETTLE_S)

    def put(self, value: Any) -> Any:
        return ray.put(value)

    def count(self, resource: str) -> float:
        """Return the cluster's current amount, inf where the cluster does not answer."""
        with suppress(RayError, ConnectionError):  # a cluster that is down is reported where work is awaited
            return ray.cluster_resources().get(resource, 0)
        return float("inf")

    def merge_options(self) -> dict[str, Any]:
        """Return the options of a task that starts at once, on any node except an idle head."""
        return {"scheduling_strategy": "SPREAD", "num_cpus": 0, **leave_head_alone()}

    def watch_growth(self) -> Growth:
        return Growth(count_there)

    def open_meter(self, phase: str) -> RayMeter:
        return RayMeter(phase)


def count_there() -> tuple[int, int]:
    """Return the number of this driver's scorers with a loaded model, and of the cluster's CPUs."""
    try:
        return count_pool(), int(ray.cluster_resources().get("CPU", 0))
    except RayError as error:
        raise ConnectionError(str(error)) from error
