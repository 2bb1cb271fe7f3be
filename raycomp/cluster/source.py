"""A Ray Data source with one read task per item (a shard): bad data are rows, failed reads are repeated.

``ray.data.read_webdataset`` reopens a half-read stream after a storage error and can lose samples. Here a
read that fails opens the item anew and skips the tables that it has already yielded.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pyarrow as pa
from ray.data import Datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask

from raycomp.shards.retries import READ_ATTEMPTS, READ_PAUSE_S

Item = TypeVar("Item")

# These do not pass by waiting.
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)


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


def read_again(
    read: Callable[[Item], Iterator[pa.Table]], item: Item, first_pause_s: float = READ_PAUSE_S
) -> Iterator[pa.Table]:
    """Yield the tables of ``read(item)``; after an OSError read anew, skipping what was yielded."""
    num_yielded = 0
    for attempt in range(READ_ATTEMPTS):
        try:
            for i, table in enumerate(read(item)):
                if i >= num_yielded:
                    num_yielded += 1
                    yield table
            return
        except _FINAL:
            raise
        except OSError:
            if attempt == READ_ATTEMPTS - 1:
                raise
            time.sleep(first_pause_s * 2**attempt)
