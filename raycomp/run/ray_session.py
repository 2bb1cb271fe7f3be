"""Connect to Ray: its options, the driver's variables for workers, its log messages.

Variables that name a file or a role of this machine (AWS_PROFILE, AWS_WEB_IDENTITY_TOKEN_FILE) are not
forwarded: each node has its own.
"""

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import inf, isfinite
from typing import Any, NoReturn

import ray
from ray.data import DataContext
from ray.exceptions import RayError

from raycomp.config import ClusterConfig, ClusterFailed, LeaseLost, Terminated, TooMuchBadData
from raycomp.config.options import say_if_slow
from raycomp.data.files import Folder
from raycomp.data.stores import MAP_RETRIES, STORAGE_ERRORS
from raycomp.models.deferred import IN_WORKER
from raycomp.run import ray_cluster
from raycomp.run.executor import Session, use
from raycomp.run.progress import open_log

LOG = ("logs", "ray.log")
# Ray Data's logger does not propagate to Ray's.
_LOGGERS = tuple(map(logging.getLogger, ("ray", "ray.data")))


@contextmanager
def keep_log(out: Folder | None, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Append Ray's messages at WARNING and above to ``logs/ray.log`` in a folder, not to the terminal.

    In a store the file is written each minute and at the end, also after a failure, unless ``check`` raises
    LeaseLost: the folder then belongs to another run. Without a folder the messages are discarded.
    """
    # Send warnings to files, and only errors to a terminal.
    for logger in _LOGGERS:
        logger.setLevel(logging.WARNING)
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                handler.setLevel(logging.ERROR)
    opened = nullcontext(logging.NullHandler()) if out is None else open_log(out, LOG, check)
    with opened as log, ray_cluster.catch_notes(_LOGGERS[0].warning):
        log.setLevel(logging.WARNING)
        log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        for logger in _LOGGERS:
            logger.addHandler(log)
        try:
            yield
        finally:
            for logger in _LOGGERS:
                logger.removeHandler(log)


_NAMES = frozenset(
    """AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_REGION AWS_DEFAULT_REGION
    AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 HF_TOKEN HF_ENDPOINT HF_HUB_OFFLINE WANDB_API_KEY
    WANDB_BASE_URL WANDB_ENTITY WANDB_MODE WANDB_PROJECT MLFLOW_EXPERIMENT_NAME MLFLOW_TRACKING_PASSWORD
    MLFLOW_TRACKING_TOKEN MLFLOW_TRACKING_URI MLFLOW_TRACKING_USERNAME""".split()
)
_PREFIXES = ("AZURE_STORAGE_", "RAY_DATA_")


def forward_environment() -> dict[str, Any]:
    """Return the runtime environment that forwards them to every worker, and marks it as raycomp's.

    The ``env_vars`` of a submitted job are left out: Ray forwards those itself, and rejects a duplicate name.
    """
    job = json.loads(os.environ.get(ray_cluster.JOB_VARIABLE, "{}"))
    already = (job.get("runtime_env") or {}).get("env_vars") or {}
    names = [name for name in os.environ if name in _NAMES or name.startswith(_PREFIXES)]
    found = {name: os.environ[name] for name in sorted(names)} | {IN_WORKER: "1"}
    return {"env_vars": {name: value for name, value in found.items() if name not in already}}


# A scorer without a GPU requests other resources than the tasks before it. With the same ones, Ray would fuse
# decoding into the scoring actor.
_CPUS_PER_CPU_SCORER = 2
_CPUS_FOR_TASKS = 3
# Ray's message when its raylet gave up on its agent: a busy machine may need more than the 15 s that Ray
# allows (ray-project/ray issue 65983), and a second attempt finds its files cached. The remains of a failed
# start end with this process.
_GAVE_UP = "The current node timed out during startup"
_STARTS = 3
# A running cluster answers within seconds; a busy machine starts its own within half a minute.
_JOIN_S = 60.0
_START_S = 180.0
_LONGEST = 500
_LONGEST_SOCKET = 107
# What Ray appends to its temporary folder, without the process number.
_SOCKET = "/ray/session_0000-00-00_00-00-00_000000_/sockets/plasma_store"
_LEAST_TMPDIR_BYTES = 100_000_000
# For work that is not a phase and cannot restart: a training waits long for its own steps and for spot GPUs.
_PATIENCE_S = 4 * 3600.0


@contextmanager
def connect(
    config: ClusterConfig,
    out: Folder | None,
    check: Callable[[], None],
    needed: int | None,
    scores: bool,
    dashboard: bool,
    gpus_per_scorer: float,
) -> Iterator[Session]:
    """Join or start a cluster, as ``executor.connect`` says, which calls it."""
    if ray.is_initialized():
        with keep_log(out, check), ray_cluster.as_failed_cluster(), use(ray_cluster.OnRay(config.stall_s)):
            settle_data_context(config.stall_s)
            yield _describe(config, scores, gpus_per_scorer)
        return
    with keep_log(out, check), _hush_native_code(), ray_cluster.as_failed_cluster():
        _, most = config.span or (1, 1)
        _start(config, needed or _CPUS_PER_CPU_SCORER * most + _CPUS_FOR_TASKS, dashboard)
        try:
            settle_data_context(config.stall_s)
            here = ray.get_runtime_context().gcs_address
            named = _environment("RAY_ADDRESS", here) if dashboard else nullcontext()
            with ray_cluster.watch_head(here), named, use(ray_cluster.OnRay(config.stall_s)):
                yield _describe(config, scores, gpus_per_scorer)
        finally:
            ray.shutdown()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of this process while the block runs; processes that it starts meanwhile keep it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextmanager
def _hush_native_code() -> Iterator[None]:
    """Write the output of Ray's native code on descriptor 2 to a file; show it only if the block fails.

    Python's own ``sys.stderr`` is not redirected.
    """
    try:
        is_plain = sys.stderr.fileno() == 2
    except (AttributeError, OSError):  # replaced by an object without a descriptor
        is_plain = False
    if not is_plain:
        yield
        return
    before = sys.stderr
    with tempfile.TemporaryFile() as log, os.fdopen(os.dup(2), "w", buffering=1) as shown:
        os.dup2(log.fileno(), 2)
        sys.stderr = shown
        try:
            yield
        except (ValueError, OSError, KeyboardInterrupt, TooMuchBadData, LeaseLost, ClusterFailed):
            # Reported in one line.
            raise
        except BaseException:
            log.seek(0)
            shown.write(log.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(shown.fileno(), 2)
            sys.stderr = before


_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}


def _start(config: ClusterConfig, needed: int, dashboard: bool = False) -> None:
    """Join the existing cluster, or start one here.

    Raises ValueError where none answers or it rejects this driver, ClusterFailed where none starts here.
    """
    if address := config.address or os.environ.get("RAY_ADDRESS"):
        _join(address)
        return
    num_cpus = config.num_cpus or max(os.cpu_count() or 1, needed)
    folder = check_temporary_folder()
    late = ClusterFailed(
        f"Ray did not start on this machine within {_START_S:.0f} s; its logs are in {folder}/ray"
    )
    slow = say_if_slow("starting Ray on this machine")
    with slow, _at_most(_START_S, late), _keep_signals(), _environment(IN_WORKER, "1"):
        for _ in range(_STARTS):
            try:
                ray.init(address="local", num_cpus=num_cpus, include_dashboard=dashboard, **_QUIET)
                return
            except ValueError:  # of an option that was passed to it
                raise
            except Exception as error:  # Ray has no exception type for it
                if _GAVE_UP not in str(error):
                    said = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"
                    raise ClusterFailed(
                        f"Ray did not start on this machine: {said}; its logs are in {folder}/ray"
                    ) from error
        raise late


def _join(address: str) -> None:
    refused = ValueError(f"cluster.address={address!r}: no Ray cluster answered there within {_JOIN_S:.0f} s")
    with say_if_slow(f"joining the Ray cluster at {address}"), _at_most(_JOIN_S, refused), _keep_signals():
        try:
            ray.init(address=address, runtime_env=forward_environment(), **_QUIET)
        except (ConnectionError, RuntimeError, RayError) as error:
            if ray_cluster.is_refused(error):
                raise ValueError(ray_cluster.say_refused(address)) from error
            if isinstance(error, ConnectionError):
                raise refused from error
            said = " ".join(str(error).split())[:_LONGEST]
            raise ClusterFailed(f"cluster.address={address!r}: cannot be joined: {said}") from error


def check_temporary_folder() -> str:
    """Return the folder of Ray's sockets, logs and spilled objects.

    Raises ValueError where its name is too long or its space too small: Ray would fail, or wait forever.
    """
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    named = f"RAY_TMPDIR={folder!r}" if os.environ.get("RAY_TMPDIR") else f"TMPDIR={folder!r}"
    longest = _LONGEST_SOCKET - len(f"{_SOCKET}{os.getpid()}")
    if len(os.fsencode(folder)) > longest:
        raise ValueError(
            f"{named}: must have at most {longest} characters, as Ray limits the length of socket paths; "
            f"set RAY_TMPDIR to a shorter folder"
        )
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ValueError(f"{named}: cannot be used: {error}") from error
    if free < _LEAST_TMPDIR_BYTES:
        raise ValueError(
            f"{named}: has {free / 1e6:,.0f} MB free, must have at least {_LEAST_TMPDIR_BYTES / 1e6:,.0f} MB "
            f"for Ray's files; set RAY_TMPDIR to a folder with free space"
        )
    return folder


class _Late(BaseException):
    """The time limit passed. Not an ``Exception``: Ray takes those for one more failed attempt."""


@contextmanager
def _at_most(seconds: float, late: Exception) -> Iterator[None]:
    """Raise ``late`` once the block exceeds the time limit; works in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> NoReturn:
        raise _Late

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Late as error:
        raise late from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _keep_signals() -> Iterator[None]:
    """Keep this program's SIGTERM handler: Ray sets another one, which crashes in native code later."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as stop:
        if stop.code == signal.SIGTERM:
            raise Terminated(signal.SIGTERM) from stop
        raise
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def settle_data_context(stall_s: float = _PATIENCE_S) -> None:
    """Set every Ray Data option that raycomp changes, each with its reason."""
    context = DataContext.get_current()
    # Our own progress lines say more, and are silent without a reader.
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A pass without a moving block for this long is ended, and restarted from its commits (work.py).
    context.execution_no_progress_timeout_s = stall_s
    # Ray Data keeps a kilobyte of every block of every stage until a pass ends, 8 GB for a billion rows.
    context.custom_execution_callback_classes = [ray_cluster.ForgetBlocks]
    # Ray repeats a lost worker's tasks by itself; a stage that fails on storage needs both options.
    context.retried_map_errors = list(STORAGE_ERRORS)
    context.max_map_retries = MAP_RETRIES
    # A scorer that dies while it loads its model (a full disk, a hub that is down) is restarted.
    context.actor_init_retry_on_errors = True
    context.max_consecutive_actor_init_deaths = 5
    # A bad sample is a row with a status; a block is never dropped whole.
    context.max_errored_blocks = 0
    # Images make rows large: small blocks keep scorers busy and the object store small.
    context.target_max_block_size = 32 * 2**20


def _describe(config: ClusterConfig, scores: bool = True, gpus_per_scorer: float = 1.0) -> Session:
    alive = [node for node in ray.nodes() if node["Alive"]]
    nodes = [int(node["Resources"].get("CPU", 0)) for node in alive]
    offered = ray_cluster.count_offered("CPU")
    num_cpus = max(_count("CPU", 1), int(offered) if isfinite(offered) else 0)
    where = ray_cluster.ask_labels(config) if scores else {}
    is_bounded = isfinite(offered)
    if (
        scores
        and config.gpu is not False
        and (config.gpu or _count("GPU") or ray_cluster.count_offered("GPU"))
    ):
        found = _describe_gpus(config, num_cpus, len(nodes), where, gpus_per_scorer)
        first = max(found.least_scorers or 1, min(_count("GPU"), found.num_scorers))
        share = ray_cluster.share_cpus(first, 1, config.selector)
        if share < 1:  # else the CPU that Ray Data requests for each
            found = replace(found, scorer_resources={**found.scorer_resources, "num_cpus": share})
        return replace(found, is_bounded=is_bounded, cpus_per_task=share)
    least, most = config.span or (1, 1)
    if scores and is_bounded and least > num_cpus:
        raise ValueError(
            f"cluster.scorers or train.workers={least}: must be at most {num_cpus}, the CPUs of the cluster; "
            f"set fewer, or start nodes with more"
        )
    share = ray_cluster.share_cpus(
        least if scores else 0, _CPUS_PER_CPU_SCORER, config.selector if scores else {}
    )
    # A single-machine cluster may report more CPUs than there are cores.
    hosts = {node["NodeManagerHostname"] for node in alive}
    cores = min(num_cpus, os.cpu_count() or 1) if len(hosts) == 1 else num_cpus
    threads = max(1, min(cores // most, *(cpus for cpus in nodes if cpus), cores))
    if least < most:
        threads = _CPUS_PER_CPU_SCORER  # later nodes may have any number
    scorer: dict[str, Any] = {"num_cpus": _CPUS_PER_CPU_SCORER * share, **where}
    found = Session(most, scorer, threads, num_cpus, len(nodes), config.block_rows, least)
    return replace(found, is_bounded=is_bounded, cpus_per_task=share)


def _describe_gpus(
    config: ClusterConfig, num_cpus: int, num_nodes: int, where: Mapping[str, Any], gpus_per_scorer: float
) -> Session:
    """Return the session with scorers on GPUs, once the first GPU is there."""
    offered = ray_cluster.count_offered("GPU")
    least, most = config.span or (1, None)
    if config.gpu is None and least > max(_count("GPU"), offered):
        raise ValueError(
            f"cluster.scorers or train.workers={least}: must be at most {max(_count('GPU'), offered)}, the "
            f"GPUs of the cluster or its autoscaler; set cluster.gpu=true to wait for more"
        )
    if most is None and offered == inf:
        raise ValueError(
            "cluster.scorers=none: must be MIN..MAX where the autoscaler reports no limit of GPUs; set "
            "cluster.scorers=1..N for up to N GPUs, or cluster.gpu=false for CPUs"
        )
    gpu = ray_cluster.await_gpu(None if config.gpu else config.wait_s, where, share=gpus_per_scorer)
    gpu = dict(ray_cluster.MIXED) if config.mixed_gpus else gpu
    if most is None:
        there = _count("GPU")
        least, most = (1, int(offered)) if offered > there else (there, there)
    resources: dict[str, Any] = {"num_gpus": gpus_per_scorer, **where}
    return Session(most, resources, None, num_cpus, num_nodes, config.block_rows, least, gpu)


def _count(resource: str, otherwise: int = 0) -> int:
    return int(ray.cluster_resources().get(resource, otherwise))
