"""A Ray Data source with one read task per item (a shard): bad data are rows, failed reads are repeated.

``ray.data.read_webdataset`` reopens a half-read stream after a storage error and can lose samples; see
``read_again``.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
from ray.data import Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask

from raycomp.data.retries import Item, read_again


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
        """Return one task per item, whatever parallelism Ray would like."""
        read = self._read
        unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [
            ReadTask(partial(read_again, read, item), unknown, per_task_row_limit=per_task_row_limit)
            for item in self._items
        ]
