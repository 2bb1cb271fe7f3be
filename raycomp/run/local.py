"""The executor of one machine without Ray: passes and tasks as plain loops in this process.

Stages on CPUs that allow it run in threads, a few blocks ahead of the model. Commits, files and bytes equal
those of Ray: each executor can resume a run that the other one started.

The executor of a run: this process, or the Ray cluster that it connects to.
Work on values in memory, without a run's folder; the last model loaded is kept."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raycomp.config import ClusterConfig, ModelConfig, ScorerConfig, UserError
from raycomp.core.epochs import ahead
from raycomp.data.files import ARCHITECTURE, RUN, Folder
from raycomp.data.parquet import let_pandas_in
from raycomp.data.reader import read_again
from raycomp.data.runs import fetch_model, find_model
from raycomp.data.stores import MAP_RETRIES, STORAGE_ERRORS
from raycomp.models.architecture import ClipConfig
from raycomp.run.executor import (
    CPUS,
    Pass,
    Session,
    Silent,
    Stage,
    find_current,
    read_timed,
    run_timed,
    stage_part,
    use,
)
from raycomp.run.progress import Progress

if TYPE_CHECKING:
    from raycomp.models.clip import Clip


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


# Ray takes half a minute to start, and prepares a model's input in more than one process. This is an estimate
# of the size at which that pays.
MOST_LOCAL_BYTES = 2_000_000_000
# Number of trainings that one process runs in sequence before Ray is started for them.
MOST_ONE_BY_ONE = 4
_DRIVER = "/dev/nvidiactl"


@contextmanager
def connect(
    config: ClusterConfig,
    out: Folder | None = None,
    check: Callable[[], None] = lambda: None,
    needed: int | None = None,
    scores: bool = True,
    dashboard: bool = False,
    say: Callable[[str], None] = lambda line: None,
    num_bytes: Callable[[], int] = lambda: 0,
    better: str | None = None,
    ray_for: str | None = None,
    gpus_per_scorer: float = 1.0,
) -> Iterator[Session]:
    """Give the block an executor by ``cluster.executor``; report which one and why.

    ``auto`` is this process where no cluster is named or connected, no GPU is there, one scorer is enough and
    the input, ``num_bytes()``, is small; else Ray. ``better`` is a reason for ``auto`` to use Ray anyway,
    ``ray_for`` names what only Ray does. See ``ray_session.connect`` for the other arguments. Raises
    ValueError where ``local`` is set for work that only Ray does.
    """
    Progress.forget()
    is_local, why = choose_executor(config, num_bytes, better, ray_for)
    if find_current() is None:
        say(f"executor: {'local, in this process' if is_local else 'ray'} ({why})")
    if is_local:
        cores, outer = config.num_cpus or len(os.sched_getaffinity(0)), find_current()
        executor = outer if isinstance(outer, Local) and outer.num_threads == cores else Local(cores)
        with use(executor):
            yield Session(1, {}, cores, cores, 1, config.block_rows, is_local=True)
        return
    from raycomp.run import ray_session  # a second of imports

    let_pandas_in()  # Ray Data uses it
    with ray_session.connect(config, out, check, needed, scores, dashboard, gpus_per_scorer) as session:
        yield session


def choose_executor(
    config: ClusterConfig, num_bytes: Callable[[], int], better: str | None, ray_for: str | None
) -> tuple[bool, str]:
    """Return whether the work is done in this process, and why."""
    if config.executor == "ray":
        return False, "cluster.executor=ray"
    is_within = isinstance(find_current(), Local)  # the outer run has checked whether a cluster is named
    reason = ray_for or _find_need(config, is_within)
    if config.executor == "local":
        if reason:
            raise ValueError(f"cluster.executor=local: {reason}; set cluster.executor=ray")
        return True, "cluster.executor=local"
    if reason is None and is_within:
        return True, "same as the outer run"
    if reason or better:
        return False, reason or better or ""
    if is_connected():
        return False, "this process is connected to a cluster"
    if config.gpu is not False and os.path.exists(_DRIVER):
        return False, "this machine has a GPU"
    size, most = num_bytes() / 1e9, MOST_LOCAL_BYTES / 1e9
    if size > most:
        return False, f"the input has {size:,.1f} GB, more than {most:g}"
    return True, "no cluster named, no GPU found, small input; set cluster.executor=ray for Ray"


def _find_need(config: ClusterConfig, is_within: bool) -> str | None:
    """Return what names a cluster (not ``is_within`` another run), or needs more than one process on CPUs."""
    if not is_within:
        if config.address:
            return f"cluster.address={config.address!r} names a cluster"
        if config.labels:
            return f"cluster.labels={','.join(config.labels)!r} asks for nodes of a cluster"
        if named := os.environ.get("RAY_ADDRESS"):
            return f"RAY_ADDRESS={named!r} names a cluster"
    _, most = config.span or (1, 1)
    if most > 1:
        return f"cluster.scorers or train.workers={most} needs several processes"
    return "cluster.gpu=true asks for a GPU" if config.gpu else None


def is_connected() -> bool:
    """Whether this process is connected to a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def say_many(count: int) -> str | None:
    """Return why so many trainings run in parallel on Ray, one process each; None for few."""
    is_many = count > MOST_ONE_BY_ONE and len(os.sched_getaffinity(0)) > 1
    return f"{count} trainings run in parallel on Ray" if is_many else None


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
    found = fetch_model(find_model(ModelConfig(name or own, path or scorer.weights)))
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
    with use(_make_executor(num_threads, files)):
        yield num_threads


@lru_cache(maxsize=1)
def _make_executor(num_threads: int, files: tuple[object, ...]) -> Local:
    return Local(num_threads)


def load_clip(config: ClipConfig, num_threads: int | None) -> "Clip":
    """Load a CLIP. On the local executor a later phase reuses the model of the phase before it."""
    from raycomp.models.clip import Clip

    load = partial(Clip, config, num_threads=num_threads)
    executor = find_current()
    return executor.keep((config, num_threads), load) if isinstance(executor, Local) else load()
