"""Ray's own failures, in one line: not those of the user, the storage or raycomp."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ray import exceptions as rays

from raycomp.config import ClusterFailed

# The other kinds are exceptions that a task raised, cancelled tasks, and our own misuse of Ray.
_LOST = (
    rays.LocalRayletDiedError,
    rays.WorkerCrashedError,
    rays.RayActorError,
    rays.RaySystemError,
    rays.OutOfMemoryError,
    rays.OutOfDiskError,
    rays.ObjectStoreFullError,
    rays.NodeDiedError,
    rays.ObjectLostError,
    rays.RpcError,
    rays.RuntimeEnvSetupError,
    rays.TaskUnschedulableError,
    rays.ActorUnschedulableError,
    rays.TaskPlacementGroupRemoved,
    rays.ActorPlacementGroupRemoved,
)
_LONGEST = 500
# A share of Ray's timeout for an unresponsive head, set by this variable: reported before Ray exits.
_PATIENCE = 2 / 3
_RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"


@contextmanager
def as_failed_cluster() -> Iterator[None]:
    """Raise ClusterFailed for an exception of the block by which Ray itself failed."""
    try:
        yield
    except Exception as error:
        cause = find_lost(error)
        if cause is None:
            raise
        failed = ClusterFailed(say_lost(cause))
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        raise failed from error


@contextmanager
def watch_head(address: str) -> Iterator[None]:
    """End this process with one line while the block runs, once the head at ``address`` is unreachable.

    Ray's native code would end it without a message after its own timeout, 60 s; Python code is not notified.
    """
    patience_s = _PATIENCE * float(os.environ.get(_RAYS_PATIENCE) or 60)
    stop = threading.Event()
    watching = threading.Thread(target=_watch, args=(address, patience_s, stop), daemon=True)
    watching.start()
    try:
        yield
    finally:
        stop.set()


def _watch(address: str, patience_s: float, stop: threading.Event) -> None:
    host, _, port = address.rpartition(":")
    answered = time.monotonic()
    while not stop.wait(patience_s / 8):
        try:
            socket.create_connection((host.strip("[]"), int(port)), patience_s / 8).close()
            answered = time.monotonic()
        except OSError as error:
            if time.monotonic() - answered > patience_s:
                said = f"Ray's head at {address} has not answered for {patience_s:.0f} s ({error})"
                rest = "the same command resumes the run"
                print(f"raycomp: {said}; once that is fixed: {rest}", file=sys.stderr, flush=True)
                os._exit(ClusterFailed.exit_code)


def unwrap(error: Exception) -> Exception:
    """Return an error without the wrappers of tasks and actors."""
    while isinstance(getattr(error, "cause", None), Exception):
        error = error.cause  # type: ignore[attr-defined]
    return error


def find_lost(error: Exception) -> Exception | None:
    """Return Ray's own failure, without the wrappers of tasks; None where Ray did its work."""
    cause = unwrap(error)
    # An actor whose constructor raised, and an object that cannot be unpickled, are errors in raycomp.
    is_ours = getattr(cause, "actor_init_failed", False) or getattr(cause, "traceback_str", None)
    return cause if isinstance(cause, _LOST) and not is_ours else None


def say_lost(error: BaseException) -> str:
    """Return Ray's failure in one line."""
    said = " ".join(str(error).split())[:_LONGEST]
    return f"Ray failed: {type(error).__name__}: {said}"


def is_refused(error: BaseException | None) -> bool:
    """Whether a cluster required a token and got none, or a wrong one.

    Ray raises its own error where it reads the token itself. Elsewhere it raises a ConnectionError whose
    cause has the traceback of that error in its message.
    """
    while error is not None:
        if isinstance(error, rays.AuthenticationError) or "AuthenticationError" in str(error):
            return True
        error = error.__cause__
    return False


def say_refused(address: str) -> str:
    """Return the settings by which a cluster with a token accepts this driver."""
    where = "RAY_AUTH_TOKEN_PATH to the file of the cluster's token (or RAY_AUTH_TOKEN to the token)"
    if os.environ.get("RAY_AUTH_MODE") != "token":
        lack, wanted = "RAY_AUTH_MODE is not token", f"RAY_AUTH_MODE=token, and {where}"
    else:
        lack, wanted = "the token is missing or wrong", where
    failed = "authentication failed: the cluster requires a token"
    return f"cluster.address={address!r}: {failed}, {lack}; set {wanted}"
