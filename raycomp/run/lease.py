"""One run at a time in a folder: a lease file that its owner renews; it expires when the owner dies."""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from raycomp.config import LeaseLost, UserError
from raycomp.data.files import LEASE, Folder

LEASE_S = 60.0
WAITING = "waiting:"
"""The start of the line that reports a wait for another run."""
_POLL_S = 0.5


class HeldError(UserError):
    """Another run holds the folder."""


class Lease:
    """A run's lease of its folder. Call ``check`` before every commit."""

    def __init__(self, folder: Folder, seconds: float):
        self.folder = folder
        self.seconds = seconds
        self.holder = uuid.uuid4().hex
        self.started = _now()
        self.stop = threading.Event()

    def content(self) -> dict[str, Any]:
        """Return the content of the lease file as of now."""
        return {
            "holder": self.holder,
            "host": socket.gethostname(),
            "place": read_pid_namespace(),
            "process": os.getpid(),
            "started": self.started.isoformat(timespec="seconds"),
            "expires": (_now() + timedelta(seconds=self.seconds)).isoformat(timespec="seconds"),
        }

    def check(self) -> None:
        """Raise LeaseLost unless the file still names this run."""
        try:
            found = read_lease(self.folder)
        except ValueError as error:
            raise LeaseLost(f"{error}; nothing more was committed") from error
        if found is None or found["holder"] != self.holder:
            who = (
                f"process {found['process']} on {found['host']} took" if found else "another process removed"
            )
            raise LeaseLost(f"{who} the lease of {self.folder.uri}; nothing more was committed")

    def renew(self) -> None:
        """Renew three times per lease period until stopped or lost. A failing storage is asked again."""
        while not self.stop.wait(self.seconds / 3):
            try:
                self.check()
                self.folder.write_json(self.content(), LEASE)
            except LeaseLost:
                return
            except OSError:
                continue


@contextmanager
def hold_lease(folder: Folder, seconds: float = LEASE_S) -> Iterator[Lease]:
    """Hold the folder while the block runs.

    Raises ValueError naming the owner where another run holds the folder. An expired lease is taken over. A
    lease whose process ran on this machine and is gone is taken over at once.
    """
    lease = Lease(folder, seconds)
    renewing = threading.Thread(target=lease.renew, daemon=True)
    try:  # from here on, for a signal may arrive as soon as the lease exists
        _take(folder, lease)
        renewing.start()
        lease.check()
        yield lease
    finally:
        lease.stop.set()
        if renewing.ident is not None:
            renewing.join()
        # A foreign file stays. A storage error must hide no other error; the lease expires.
        with suppress(ValueError, OSError):
            found = read_lease(folder)
            if found and found["holder"] == lease.holder:
                folder.remove(LEASE)


def await_lease(folder: Folder, seconds: float = 2 * LEASE_S) -> None:
    """Wait until the folder is free, up to ``seconds``: its owner may just have been killed elsewhere."""
    until = time.monotonic() + seconds
    while (found := read_lease(folder)) and not _is_over(found) and time.monotonic() < until:
        time.sleep(_POLL_S)


@contextmanager
def queue_lease(folder: Folder, say: Callable[[str], None], check: Callable[[], None]) -> Iterator[Lease]:
    """Hold the folder while the block runs, after any other owner: one process does the work for all.

    ``say`` reports once which run it waits for. ``check`` is called during the wait and raises to end it.
    """
    lease, has_said = None, False
    with ExitStack() as stack:
        while lease is None:
            try:
                lease = stack.enter_context(hold_lease(folder))
            except HeldError as error:
                if not has_said:
                    say(f"{WAITING} {error}")
                has_said = True
                check()
                time.sleep(_POLL_S)
        yield lease


def _take(folder: Folder, lease: Lease) -> None:
    """Create the lease, replacing an expired one; raises ValueError where another run holds one."""
    if folder.create_json(lease.content(), LEASE):
        return
    found = check_free(folder, lease.holder)
    if found and found["holder"] == lease.holder:
        return  # a client that lost the answer to its PUT asks again, and finds its own lease
    if found:  # else it was released in between
        folder.remove(LEASE)
    if not folder.create_json(lease.content(), LEASE):
        raise HeldError(f"out={folder.uri!r}: another run has just started there; wait for it")


def check_free(folder: Folder, own: str | None = None) -> dict[str, Any] | None:
    """Return the lease in the folder, expired or that of the holder ``own``; None where there is none.

    Raises ValueError naming the owner where another run holds the folder.
    """
    found = read_lease(folder)
    if found and found["holder"] != own and not _is_over(found):
        raise HeldError(
            f"out={folder.uri!r}: process {found['process']} on {found['host']} has been writing it "
            f"since {found['started']}; wait for it, or until {found['expires']} if it is dead"
        )
    return found


def read_pid_namespace() -> str:
    """Return an id of this process's PID namespace: containers may share a host name.

    Without ``/proc`` it is the host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def read_lease(folder: Folder) -> dict[str, Any] | None:
    """Return the lease in the folder, None where there is none.

    Raises ValueError where the file is not a raycomp lease file.
    """
    try:
        found = folder.read_json(LEASE)
        texts = [found[name] for name in ("holder", "host", "place", "started", "expires")]
        is_lease = all(isinstance(text, str) for text in texts) and isinstance(found["process"], int)
        is_lease = is_lease and datetime.fromisoformat(found["expires"]).tzinfo is not None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, LookupError, RecursionError):
        is_lease = False
    if not is_lease:
        raise ValueError(
            f"{folder.at(LEASE)}: not a raycomp lease file; remove it if no run writes to that folder"
        )
    return found


def _is_over(found: dict[str, Any]) -> bool:
    if datetime.fromisoformat(found["expires"]) < _now():
        return True
    if found["place"] == read_pid_namespace():
        try:
            os.kill(found["process"], 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
    return False


def _now() -> datetime:
    return datetime.now(UTC)
