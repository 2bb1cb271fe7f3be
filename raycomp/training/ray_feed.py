"""Makes the ranks' batches with Ray Data, in the order of the plan.

Ray's own iterators cannot resume and divide rows as they arrive. So every rank has its own dataset over its
remaining steps; the plan alone determines each rank's rows of a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.data import DataContext, ExecutionResources

from raycomp.core.epochs import slice_of
from raycomp.data.arrow import to_fixed_lists, to_matrix
from raycomp.run.ray_passes import ItemSource
from raycomp.run.ray_session import settle_data_context
from raycomp.training.feed import make_batch
from raycomp.training.training import Course

# Steps that one dataset spans: each has a task made for it in advance.
_STEPS = 1000
# Bytes of batches that wait for a rank: enough for one to be made while another is trained on.
_WAITING_BYTES = 256 << 20
_BATCHES = 4


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
        _settle(self._count_bytes())
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

    def _count_bytes(self) -> int:
        course = get_course(self.course)
        num_rows = -(-course.plan.batch_size // self.num_ranks)
        num_images = 2 if course.draw.loss.negative_images else 1
        return num_rows * num_images * course.draw.image.num_values


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


def _settle(batch_bytes: int) -> None:
    """Configure Ray Data to make whole batches in order, and few in advance."""
    settle_data_context()
    context = DataContext.get_current()
    context.target_max_block_size = None
    context.execution_options.preserve_order = True
    waiting = max(_WAITING_BYTES, _BATCHES * batch_bytes)
    context.execution_options.resource_limits = ExecutionResources.for_limits(object_store_memory=waiting)


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
