"""Items made in a thread before they are asked for."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yield the items; a thread makes up to ``count`` of them ahead.

    An error of making one comes in its place. Closing the generator ends the thread.
    """
    made, end, waiting = iter(items), object(), deque[Future[Any]]()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        try:
            while True:
                while len(waiting) <= count:
                    waiting.append(pool.submit(next, made, end))
                item = waiting.popleft().result()
                if item is end:
                    return
                yield item
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
