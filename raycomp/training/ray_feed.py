"""Ranks' batches by Ray Data: each shard is read once, cut by rank, and made into batches in the plan's
order.

Without torch: neither the cache nor the tasks that read shards need it.

Ray's own iterators cannot resume and divide rows as they arrive. So every rank has its own dataset over its
remaining steps; the plan alone determines each rank's rows of a step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.data import DataContext, ExecutionResources

from raycomp.core.batches import EpochPlan, locate_rows, slice_of
from raycomp.data.inputs import count_bytes
from raycomp.data.parquet import to_fixed_lists, to_matrix
from raycomp.data.stores import TASK_RETRIES
from raycomp.run.ray_cluster import ItemSource
from raycomp.run.ray_session import settle_data_context
from raycomp.training.journal import Course
from raycomp.training.pairs import Pairs, load_shard, make_batch
from raycomp.words import FIRST_ROW

_LOADER: dict[str, Any] = {"scheduling_strategy": "SPREAD", **TASK_RETRIES}
# Tasks of one rank run in parallel, so their steps arrive out of order, rarely further apart than this.
# The shards of a step that arrives even later are read again.
_APART = 16
# Share of the cluster's object store for pairs that are loaded in advance.
_SHARE = 0.3
# Files whose size is asked for to estimate the size of all.
_SIZED = 64
# Steps that one dataset spans: each has a task made for it in advance.
_STEPS = 1000
# Bytes of batches that wait for a rank: enough for one to be made while another is trained on.
_WAITING_BYTES = 256 << 20
_BATCHES = 4
# Windows that are loaded ahead at most: of small data thousands would fit.
_AHEAD = 32


class ShardCache:
    """An actor of the first rank. Holds the pairs of windows in Ray's object store, cut by rank: those of the
    windows that a rank may still need, of the next one, and of more while they fit into ``most_bytes``.

    If all shards fit into half of that, they are read once for all epochs.
    """

    def __init__(
        self,
        source: list[Any],
        plan: EpochPlan,
        num_steps: int,
        num_ranks: int = 1,
        bytes_per_row: float = 0,
        most_bytes: float = 0,
        cpus: float = 1.0,
    ):
        """``source`` holds a reference to the pairs, in a list so that Ray does not fetch it here.
        ``bytes_per_row``: the size of a pair, about. Loading a shard takes half of ``cpus``."""
        (self.source,) = source
        self.plan, self.end, self.num_ranks = plan, plan.windows_of(num_steps - 1).stop, num_ranks
        self.bytes_per_row, self.most_bytes = bytes_per_row, most_bytes
        self.steps: dict[int, int] = {}
        self.held: dict[int, dict[int, Sequence[Any]]] = {}
        """The references to a shard's pairs, one for each rank, by window and shard."""
        is_small = 0 < 2 * bytes_per_row * sum(plan.rows_S) <= most_bytes
        self.whole: dict[int, Any] | None = {} if is_small else None
        """All shards that were read, if they are kept."""
        self.load = ray.remote(num_cpus=cpus / 2, **_LOADER)(load_shard)
        self.cut = ray.remote(num_cpus=cpus / 2)(cut_shard)
        self.load_and_cut = ray.remote(num_cpus=cpus / 2, **_LOADER)(_load_and_cut)

    def take(self, step: int, rank: int) -> dict[int, Any]:
        """Return references to the rank's pairs that a step may need, by number of their shard."""
        windows = self.plan.windows_of(step)
        for window in range(windows.start, min(self.end, windows.stop + _AHEAD)):
            if window not in self.held:
                shards = (shard for one in {*self.held, window} for shard in self.plan.shards_of(one))
                num_bytes = self.bytes_per_row * sum(self.plan.rows_S[shard] for shard in shards)
                if window > windows.stop and num_bytes > self.most_bytes:
                    break
                self.held[window] = self._hold(window)
        taken = {shard: parts[rank] for window in windows for shard, parts in self.held[window].items()}
        self.steps[rank] = max(step, self.steps.get(rank, 0))
        first = self.plan.windows_of(max(0, min(self.steps.values()) - _APART)).start
        self.held = {window: tables for window, tables in self.held.items() if window >= first}
        return taken

    def _hold(self, window: int) -> dict[int, Sequence[Any]]:
        """Start to load a window; return the references to come."""
        shard_n, row_n, rank_n = self.plan.rows_of(window, self.num_ranks)
        found: dict[int, Sequence[Any]] = {}
        for shard in self.plan.shards_of(window):
            is_own = shard_n == shard
            rows = [row_n[is_own & (rank_n == rank)] for rank in range(self.num_ranks)]
            if self.whole is None:
                load = self.load_and_cut.options(num_returns=self.num_ranks)
                parts: Any = load.remote(self.source, shard, rows)
            else:
                if shard not in self.whole:
                    self.whole[shard] = self.load.remote(self.source, shard)
                parts = self.cut.options(num_returns=self.num_ranks).remote(self.whole[shard], rows)
            found[shard] = [parts] if self.num_ranks == 1 else parts
        return found


def start_cache(source: Any, plan: EpochPlan, num_steps: int, num_ranks: int, cpus: float) -> Any:
    """Start the actor that holds the loaded pairs for the ranks; ``source``: a reference to the pairs."""
    most_bytes = _SHARE * ray.cluster_resources().get("object_store_memory", 0.0)
    # The bytes of a pair, from the sizes of some shards: at most those that a pair has there.
    shards = ray.get(source).shards
    chosen = range(0, len(shards), -(-len(shards) // _SIZED))
    num_rows = sum(plan.rows_S[shard] for shard in chosen)
    bytes_per_row = count_bytes(shards[shard] for shard in chosen) / max(1, num_rows)
    cache = ray.remote(num_cpus=0)(ShardCache)
    return cache.remote([source], plan, num_steps, num_ranks, bytes_per_row, most_bytes, cpus)


def cut_shard(table: pa.Table, rows: Sequence[np.ndarray]) -> list[pa.Table] | pa.Table:
    """Return, for each rank's rows of a loaded shard, the samples that have them; of one rank the table
    itself, as Ray wants it."""
    first_N = table[FIRST_ROW].to_numpy()
    samples = [np.unique(locate_rows(first_N, row_R)[0]) for row_R in rows]
    parts = [table.take(pa.array(sample_M)).combine_chunks() for sample_M in samples]
    return parts[0] if len(parts) == 1 else parts


def _load_and_cut(pairs: Pairs, shard: int, rows: Sequence[np.ndarray]) -> list[pa.Table] | pa.Table:
    return cut_shard(load_shard(pairs, shard), rows)


@lru_cache(maxsize=1)
def get_course(course: Any) -> Course:
    """Return the course behind a reference, the same each time in one process."""
    return ray.get(course)


@dataclass(frozen=True)
class Feed:
    """The source of a rank's batches."""

    course: Any
    """A reference to the course."""
    cache: Any
    rank: int
    num_ranks: int
    cpus: float = 1.0
    """CPUs of a task that makes a batch."""

    def batches(self, first_step: int, num_steps: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the rank's part of every batch from ``first_step`` on, up to ``num_steps``."""
        course = get_course(self.course)
        num_rows = -(-course.plan.batch_size // self.num_ranks)
        num_images = 2 if course.draw.loss.negative_images else 1
        batch_bytes = num_rows * num_images * course.draw.image.num_values
        # Ray Data makes whole batches in order, and few in advance.
        settle_data_context()
        context = DataContext.get_current()
        context.target_max_block_size = None
        options = context.execution_options
        options.preserve_order = True
        waiting = max(_WAITING_BYTES, _BATCHES * batch_bytes)
        options.resource_limits = ExecutionResources.for_limits(object_store_memory=waiting)
        step = first_step
        for start in range(first_step, num_steps, _STEPS):
            steps = list(range(start, min(start + _STEPS, num_steps)))
            dataset = ray.data.read_datasource(
                ItemSource(steps, partial(_make, self)), override_num_blocks=len(steps), num_cpus=self.cpus
            )
            for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
                # Ray Data must not join, split or reorder the tasks' tables.
                found = table.schema.metadata
                assert found == _mark(step), f"of {step} came {found}"
                yield from_table(table)
                step += 1


def _make(feed: Feed, step: int) -> Iterator[pa.Table]:
    """Yield one table: a rank's part of a step's batch."""
    course = get_course(feed.course)
    own = slice_of(feed.rank, feed.num_ranks, course.plan.batch_size)
    shard_R, row_R = (number_B[own] for number_B in course.plan.batch(step))
    refs = ray.get(feed.cache.take.remote(step, feed.rank))
    shards = sorted(set(shard_R.tolist()))
    tables = dict(zip(shards, ray.get([refs[shard] for shard in shards]), strict=True))
    epoch = step // course.plan.steps_per_epoch
    table = to_table(make_batch(tables, shard_R, row_R, epoch, course.draw))
    yield table.replace_schema_metadata(_mark(step))


def _mark(step: int) -> dict[bytes, bytes]:
    return {b"step": str(step).encode()}


def to_table(batch: dict[str, np.ndarray]) -> pa.Table:
    """Return arrays whose first axis is rows as a table: each row's values in a list, with their shape as
    metadata."""
    fields, columns = [], []
    for name, value in batch.items():
        columns.append(to_fixed_lists(value.reshape(len(value), -1)))
        shape = ",".join(map(str, value.shape[1:]))
        fields.append(pa.field(name, columns[-1].type, metadata={"shape": shape}))
    return pa.table(columns, schema=pa.schema(fields))


def from_table(table: pa.Table) -> dict[str, np.ndarray]:
    """Return the arrays that ``to_table`` was given; read-only where they need no copy."""
    batch = {}
    for field in table.schema:
        shape = map(int, field.metadata[b"shape"].decode().split(","))
        batch[field.name] = to_matrix(table[field.name]).reshape(len(table), *shape)
    return batch
