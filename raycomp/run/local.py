"""The executor of one machine without Ray: passes and tasks as plain loops in this process.

Stages on CPUs that allow it run in threads, a few blocks ahead of the model. Commits, files and bytes equal
those of Ray: each executor can resume a run that the other one started.
"""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from raycomp.config import UserError
from raycomp.core.ahead import ahead
from raycomp.data.stores import MAP_RETRIES, STORAGE_ERRORS, read_again
from raycomp.run.executor import CPUS, Silent, Stage
from raycomp.run.passes import Pass, read_timed, run_timed, stage_part

# Blocks that each thread makes ahead.
_AHEAD = 2
# Rows of a part in passes without a scorer.
_PART_ROWS = 1024
_PAUSE_S = 1.0


class Later:
    """A task that runs when its result is requested."""

    def __init__(self, call: Callable[[], Any]):
        self.call: Callable[[], Any] | None = call
        self.result: Any = None
        self.error: BaseException | None = None

    def end(self) -> None:
        """Run the task unless it has run."""
        if self.call is not None:
            call, self.call = self.call, None
            try:
                self.result = again(call)
            except Exception as error:
                self.error = error


class Local:
    """Runs everything in this process. ``num_threads``: of the stages, and of the model."""

    stall_s: float | None = None

    def __init__(self, num_threads: int):
        self.num_threads = num_threads
        self.kept: tuple[Hashable, Any] = (None, None)

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return ``make()`` for the key; the last result is reused while the key stays the same."""
        if self.kept[0] != key:
            self.kept = (None, None)  # memory must hold only one at a time
            self.kept = (key, make())
        return self.kept[1]

    def run(self, steps: Pass, ordinals: list[int], parts_uri: str) -> Iterator[list[dict[str, Any]]]:
        """Run the pass shard by shard, in the order of the stages."""
        read = partial(read_timed, steps.read)
        shards = (read_again(read, [steps.items[ordinal]]) for ordinal in ordinals)
        tables = ahead(_read(chain.from_iterable(shards)), _AHEAD)
        rows = _PART_ROWS
        for stage in steps.stages:
            if stage.where == CPUS:
                tables = self._on_cpus(stage, cut(tables, steps.rows))
            else:
                rows = steps.scorer_rows
                scorer = partial(run_stage, stage.name, again(partial(stage.start, self.num_threads)))
                tables = map(scorer, regroup(tables, rows))
        for table in regroup(tables, rows):
            yield again(partial(stage_part, table, parts_uri, steps.part)).to_pylist()

    def _on_cpus(self, stage: Stage, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        work = partial(run_stage, stage.name, stage.work)
        if not stage.in_threads:
            yield from map(work, tables)
            return
        waiting: deque[Future[pa.Table]] = deque()
        with ThreadPoolExecutor(self.num_threads, thread_name_prefix=stage.name) as pool:
            try:
                for table in tables:
                    waiting.append(pool.submit(work, table))
                    if len(waiting) > _AHEAD * self.num_threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Later:
        """Return the task, which runs when its result is requested."""
        return Later(partial(function, *args))

    def wait(self, handles: Sequence[Later], count: int, timeout_s: float | None = None) -> list[Later]:
        """Run the first ``count`` tasks."""
        for handle in handles[:count]:
            handle.end()
        return list(handles[:count])

    def get(self, handle: Later) -> Any:
        handle.end()
        if handle.error is not None:
            raise handle.error
        return handle.result

    def stop(self, handles: Sequence[Later]) -> None:
        """Return at once: tasks that were not requested never run."""

    def put(self, value: Any) -> Any:
        return value

    def count(self, resource: str) -> float:
        """Return the number of threads for CPUs, and 0 for GPUs."""
        return self.num_threads if resource == "CPU" else 0

    def merge_options(self) -> dict[str, Any]:
        return {}

    def watch_growth(self) -> AbstractContextManager[None]:
        """Return a context that records nothing: the resources are constant."""
        return nullcontext()

    def open_meter(self, phase: str) -> Silent:
        """Return metrics that discard all values."""
        return Silent()


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """Raise RuntimeError for a plain ValueError of the block, which would be reported as a user mistake."""
    try:
        yield
    except (UserError, OSError):
        raise
    except ValueError as error:
        raise RuntimeError(f"stage {name} failed: {error}") from error


def run_stage(name: str, work: Callable[[pa.Table], pa.Table], table: pa.Table) -> pa.Table:
    """Return the result of a stage on the rows; repeat it after a storage error that may be temporary."""
    with _blamed(name):
        return again(partial(run_timed, name, work, table))


def _read(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    with _blamed("read"):
        yield from tables


def again(call: Callable[[], Any]) -> Any:
    """Return the result of the call; repeat it after a storage error that may be temporary."""
    for _ in range(MAP_RETRIES):
        try:
            return call()
        except OSError as error:
            if not any(said in str(error) for said in STORAGE_ERRORS):
                raise
            time.sleep(_PAUSE_S)
    return call()


def cut(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the tables in pieces of at most ``rows`` rows."""
    for table in tables:
        for start in range(0, len(table), rows):
            yield table.slice(start, rows)


def regroup(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield tables of ``rows`` rows; fewer in the last one, and before rows of other columns."""
    held: list[pa.Table] = []
    for table in tables:
        if held and table.schema != held[0].schema:
            yield pa.concat_tables(held).combine_chunks()
            held = []
        held.append(table)
        while sum(map(len, held)) >= rows:
            whole = pa.concat_tables(held)
            yield whole.slice(0, rows).combine_chunks()
            held = [whole.slice(rows)]
    if sum(map(len, held)):
        yield pa.concat_tables(held).combine_chunks()
