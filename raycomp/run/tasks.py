"""Small tasks over many files: one per file, or one for a few files where most time is storage latency.

On Ray they are distributed over the cluster; in this process they run one after the other.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import wraps
from typing import Any, TypeVar

from raycomp.config import UserError
from raycomp.data.written import Written, call_watched, note_written, watched_places
from raycomp.run.executor import current
from raycomp.run.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")

# Minimum number of waiting tasks, which an autoscaler sees; on a large cluster twice the number of its CPUs.
_LEAST_WAITING = 32
_WAITING_PER_CPU = 2
# Files of one task, and how many of them it reads at a time: a request to a store takes 30 ms of waiting.
_FILES_PER_TASK = 16
_FILES_AT_ONCE = 8
_TASKS_PER_CPU = 4


def map_tasks(
    function: Callable[..., Result], items: Sequence[Item], *args: Any, label: str = "choose"
) -> Iterator[Result]:
    """Yield ``function(item, *args)`` of every item, run as Ray tasks, in the order of the items.

    The number of waiting results is bounded, so the driver's memory does not grow with the number of items.
    An early end also ends the running tasks: nothing is written after the run has ended.
    """
    with Progress(label, len(items), unit="file") as progress:
        for result in _run(function, items, args):
            progress.finish_one()
            yield result


def map_files(
    function: Callable[..., Result],
    items: Sequence[Item],
    *args: Any,
    label: str = "choose",
    fold: Callable[[list[Any]], list[Any]] = list,
) -> Iterator[Result]:
    """Like ``map_tasks``, for little work on many files: each task does a few files, some at a time.

    ``fold`` combines the results of a task before they are returned. The number of files per task depends on
    the cluster, so ``fold`` must not depend on the order or the grouping.
    """
    size = -(-len(items) // (_TASKS_PER_CPU * _count_cpus()))
    size = min(max(size, 1), _FILES_PER_TASK)
    shares = [items[start : start + size] for start in range(0, len(items), size)]
    with Progress(label, len(items), unit="file") as progress:
        for share, results in zip(shares, _run(_do_each, shares, (function, fold, *args)), strict=True):
            for _ in share:
                progress.finish_one()
            yield from results


def _do_each(
    items: Sequence[Item], function: Callable[..., Result], fold: Callable[[list], list], *args: Any
) -> list[Result]:
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return fold(list(pool.map(lambda item: function(item, *args), items)))


def add_counts(counts: list[Any]) -> list[Any]:
    """Sum whole numbers, and arrays of them; keep values apart that a sum would round."""
    is_exact = all(isinstance(count, int) or getattr(count, "dtype", None) == "int64" for count in counts)
    return [sum(counts)] if counts and is_exact else counts


def _run(function: Callable[..., Result], items: Sequence[Item], args: Sequence[Any]) -> Iterator[Result]:
    """Yield the results in order; the number of waiting tasks follows the cluster's changing size."""
    executor, task = current(), _watched(function)
    shared = [executor.put(arg) for arg in args]
    waiting: deque[Any] = deque()
    most, left = 0, iter(items)
    try:
        for done in range(len(items)):
            if done % _LEAST_WAITING == 0:
                most = max(_LEAST_WAITING, _WAITING_PER_CPU * _count_cpus())
            while len(waiting) < min(most, len(items) - done):
                waiting.append(executor.submit(task, next(left), *shared))
            result, written = executor.get(waiting.popleft())
            note_written(written)
            yield result
    except UserError as error:
        raise getattr(error, "cause", error) from error
    finally:
        executor.stop(list(waiting))


def _watched(function: Callable[..., Result]) -> Callable[..., tuple[Result, list[Written]]]:
    """Return the body of a task: ``function``, plus a list of the run's results that it wrote."""
    places = watched_places()

    @wraps(function)
    def run(*args: Any) -> tuple[Result, list[Written]]:
        return call_watched(function, places, *args)

    return run


def map_some(
    function: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    num_tasks: int,
    check: Callable[[], None],
    label: str | None,
    unit: str,
    with_gpu: bool = False,
) -> Iterator[tuple[Any, ...]]:
    """Yield each job once ``function(*job)`` has ended: a limited number at a time, started in order.

    ``check`` is called after each job; it raises LeaseLost where this run must stop. ``label``: None = the
    caller reports progress. ``with_gpu``: each job has its own GPU; without it jobs see none. An early end
    also ends the running jobs: nothing is written after the run has ended.
    """
    executor, task = current(), _watched(function)
    waiting: dict[Any, tuple[Any, ...]] = {}
    queue = iter(jobs)
    try:
        with Progress(label, len(jobs), unit=unit) if label else nullcontext() as progress:
            while True:
                for job in queue:
                    waiting[executor.submit(task, *job, num_gpus=int(with_gpu))] = job
                    if len(waiting) == num_tasks:
                        break
                if not waiting:
                    return
                (ended,) = executor.wait(list(waiting), 1)
                note_written(executor.get(ended)[1])
                check()
                if progress is not None:
                    progress.finish_one()
                yield waiting.pop(ended)
    finally:
        executor.stop(list(waiting))


def _count_cpus() -> int:
    return max(1, int(current().count("CPU")))
