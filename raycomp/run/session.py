"""The executor of a run: this process, or the Ray cluster that it connects to."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raycomp.config import ClusterConfig
from raycomp.data.files import Folder
from raycomp.data.parquet import let_pandas_in
from raycomp.run.executor import Session, find_current, use
from raycomp.run.local import Local
from raycomp.run.progress import Progress

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
