"""The executor of one machine without Ray: passes and tasks as plain loops in this process.

Stages on CPUs run a few blocks ahead of the model, those that allow it in several threads. Commits, files and
bytes equal those of Ray: each executor can resume a run that the other one started. ``executor.connect``
chooses.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raycomp.config import ClusterConfig, ModelConfig, ScorerConfig, UserError
from raycomp.core.batches import ahead
from raycomp.data.files import ARCHITECTURE, RUN, Folder
from raycomp.data.reader import read_again
from raycomp.data.runs import fetch_model, find_model
from raycomp.data.stores import MAP_RETRIES, may_succeed_later
from raycomp.models.stated import ClipConfig, follow
from raycomp.run import executor
from raycomp.run.executor import Pass, Stage

if TYPE_CHECKING:
    from raycomp.models.clip import Clip


# Blocks that each thread makes ahead.
_AHEAD = 2
# Rows of a part in passes without a scorer.
_PART_ROWS = 1024
_PAUSE_S = 1.0


class Later(Future[Any]):
    """A task that runs when its result is requested."""

    def __init__(self, call: Callable[[], Any]):
        super().__init__()
        self.call = call

    def end(self) -> None:
        """Run the task unless it has run."""
        if not self.done():
            try:
                self.set_result(again(self.call))
            except Exception as error:
                self.set_exception(error)


class Local(executor.Executor):
    """Runs everything in this process. ``num_threads``: of the stages, and of the model."""

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
        read = partial(executor.read_timed, steps.read)
        shards = (read_again(read, [steps.items[ordinal]]) for ordinal in ordinals)
        tables = ahead(_read(chain.from_iterable(shards)), _AHEAD)
        rows = _PART_ROWS
        for stage in steps.stages:
            if stage.where == executor.CPUS:
                tables = self._on_cpus(stage, cut(tables, steps.rows))
            else:
                rows = steps.scorer_rows
                tables = ahead(tables, _AHEAD)  # also while the model loads
                scorer = partial(_run_stage, stage.name, again(partial(stage.start, self.num_threads)))
                tables = map(scorer, regroup(tables, rows))
        for table in regroup(tables, rows):
            yield again(partial(executor.stage_part, table, parts_uri, steps.part)).to_pylist()

    def _on_cpus(self, stage: Stage, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        work = partial(_run_stage, stage.name, stage.work)
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
        return Later(partial(function, *args))

    def wait(self, handles: Sequence[Later], count: int, timeout_s: float | None = None) -> list[Later]:
        """Run the first ``count`` tasks."""
        for handle in handles[:count]:
            handle.end()
        return list(handles[:count])

    def get(self, handle: Later) -> Any:
        handle.end()
        return handle.result()

    def count(self, resource: str) -> float:
        """Return the number of threads for CPUs, and 0 for GPUs."""
        return self.num_threads if resource == "CPU" else 0


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """Raise RuntimeError for a plain ValueError of the block, which would be reported as a user mistake."""
    try:
        yield
    except (UserError, OSError):
        raise
    except ValueError as error:
        raise RuntimeError(f"stage {name} failed: {error}") from error


def _run_stage(name: str, work: Callable[[pa.Table], pa.Table], table: pa.Table) -> pa.Table:
    with _blamed(name):
        return again(partial(executor.run_timed, name, work, table))


def _read(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    with _blamed("read"):
        yield from tables


def again(call: Callable[[], Any]) -> Any:
    """Return the result of the call; repeat it after a storage error that may be temporary."""
    for _ in range(MAP_RETRIES):
        try:
            return call()
        except OSError as error:
            if not may_succeed_later(error):
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


Name = str | os.PathLike[str]


def find_scorer(scorer: ScorerConfig, model: Name | None, weights: Name | None) -> ScorerConfig:
    """Return ``scorer`` with another model or other weights; files of a store are copied to this machine.

    ``model`` is an architecture's name, a config file, or a folder that ``raycomp train`` wrote. Raises
    ValueError where the folder holds no complete model, or where another model than the folder's is named.
    """
    name, path = (None if value is None else os.fspath(value) for value in (model, weights))
    if name is not None and _holds_model(name):
        if path is not None:
            raise ValueError(f"weights={path!r}: {name} holds a model with its weights; leave weights out")
        name, path = None, name
    own = ModelConfig().name if path is not None and _holds_model(path) else scorer.model
    name, path = follow(name or own, ScorerConfig().model, path or scorer.weights)
    found = fetch_model(find_model(ModelConfig(name, path)))
    return replace(scorer, model=found.name, weights=found.weights)


def _holds_model(name: str) -> bool:
    folder = Folder(name)
    return folder.is_folder() and any(map(folder.exists, (RUN, ARCHITECTURE)))


@contextmanager
def keep_model(scorer: ScorerConfig | None, cluster: ClusterConfig) -> Iterator[int]:
    """Give the block an executor that keeps the last model loaded, and the number of threads.

    A model is loaded again after another one was used, or after its files on the disk changed.
    """
    num_threads = cluster.num_cpus or len(os.sched_getaffinity(0))
    names = () if scorer is None else (scorer.model, scorer.weights)
    stats = [os.stat(name) for name in names if os.path.isfile(name)]
    files = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)  # these change with the content
    with executor.use(_make_executor(num_threads, files)):
        yield num_threads


@lru_cache(maxsize=1)
def _make_executor(num_threads: int, files: tuple[object, ...]) -> Local:
    return Local(num_threads)


def load_clip(config: ClipConfig, num_threads: int | None) -> "Clip":
    """Load a CLIP. On the local executor a later phase reuses the model of the phase before it."""
    from raycomp.models.clip import Clip

    load = partial(Clip, config, num_threads=num_threads)
    found = executor.find_current()
    return found.keep((config, num_threads), load) if isinstance(found, Local) else load()
