"""A pass over Ray Data: tasks that read and prepare, a pool of actors that score, tasks that write parts.

Reading and the next stage are separate: Ray Data fuses two steps on CPUs that request the same resources. The
one task that reads a large shard would then decode it, too. Where there are fewer shards than workers, the
rows that were read are split into more pieces.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset, Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import ActorDiedError, UserCodeException

from raycomp.config import ClusterFailed
from raycomp.data.retries import Item, read_again
from raycomp.models.faults import one_line
from raycomp.run.parts import Stalled, stage_part
from raycomp.run.passes import CPUS_PER_READER, Pass, add_seconds, read_timed, run_timed
from raycomp.run.ray_gpus import MIXED, check_gpu
from raycomp.run.ray_private import count_restarts
from raycomp.run.stage import CPUS, DEVICE, GPU_KIND, Scorer, Stage

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
        on_cpus = stage.where == CPUS
        dataset = _on_cpus(dataset, stage, steps) if on_cpus else _on_scorers(dataset, stage, steps)
    write = partial(stage_part, parts_uri=parts_uri, part=steps.part)
    return dataset.map_batches(write, batch_size=None, batch_format="pyarrow", num_cpus=each)


def _on_cpus(dataset: Dataset, stage: Stage, steps: Pass) -> Dataset:
    run = _in_slices(stage, steps.rows)
    each = steps.session.cpus_per_task
    return dataset.map_batches(run, batch_size=None, batch_format="pyarrow", num_cpus=each)


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
                _start_again(error)
            raise
        if self.kind is not None:
            table = table.append_column(GPU_KIND, pa.repeat(self.kind, len(table)))
        seconds = self.work.device.take_busy_seconds() if self.is_on_gpu else None
        return table if seconds is None else add_seconds(table, DEVICE, seconds)


def _start_again(error: Exception) -> NoReturn:
    """End this process, whose GPU context is broken: Ray restarts the actor and repeats its rows.

    Raises ClusterFailed after too many restarts.
    """
    restarts = count_restarts()
    if restarts >= _RESTARTS:
        node = ray.util.get_node_ip_address()
        said = f"a scorer was restarted {restarts} times and its GPU on node {node} failed again"
        raise ClusterFailed(
            f"{said} ({one_line(error)}); remove the node; the same command resumes the run"
        ) from error
    print(f"GPU failed, restarting this scorer: {one_line(error)}", file=sys.stderr, flush=True)
    os._exit(1)


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
_OWN_FAILED = re.compile(r"^raycomp\.config\.check\.(UserError|ClusterFailed): (.+)$", re.MULTILINE)
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
