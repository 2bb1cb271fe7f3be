"""One run at a time in a folder: a lease that its holder renews and that expires with a dead holder."""

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from raycomp.config import LeaseLost
from raycomp.shards.folder import Folder

LEASE = "lease.json"
LEASE_S = 60.0


class Lease:
    """What a run holds of its folder. ``check`` before every commit."""

    def __init__(self, folder: Folder, seconds: float):
        self.folder = folder
        self.seconds = seconds
        self.holder = uuid.uuid4().hex
        self.started = _now()
        self.stop = threading.Event()

    def content(self) -> dict[str, Any]:
        """Return what the file says, for this moment."""
        return {
            "holder": self.holder,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "started": self.started.isoformat(timespec="seconds"),
            "expires": (_now() + timedelta(seconds=self.seconds)).isoformat(timespec="seconds"),
        }

    def check(self) -> None:
        """Raise LeaseLost unless the file still names this run."""
        found = read_lease(self.folder)
        if found is None or found["holder"] != self.holder:
            now = f"process {found['process']} on {found['host']}" if found else "nobody"
            raise LeaseLost(f"the lease of {self.folder.uri} went to {now}, so nothing more was committed")

    def renew(self) -> None:
        """Renew until stopped or lost, three times in the lease's time. A failing storage is asked again."""
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

    Raises ValueError naming the holder where another run holds it. A lease that has expired is taken over,
    and at once one whose process on this machine is gone.
    """
    lease = Lease(folder, seconds)
    found = None if folder.create_json(lease.content(), LEASE) else read_lease(folder)
    # A client that lost the answer to its PUT asks again, and finds its own lease.
    if found and found["holder"] != lease.holder:
        if not _is_over(found):
            raise ValueError(
                f"out={folder.uri!r}: process {found['process']} on {found['host']} has been writing it "
                f"since {found['started']}; wait for it, or until {found['expires']} if it is dead"
            )
        folder.remove(LEASE)
        if not folder.create_json(lease.content(), LEASE):
            raise ValueError(f"out={folder.uri!r}: another run has just begun there; wait for it")
    renewing = threading.Thread(target=lease.renew, daemon=True)
    renewing.start()
    try:
        lease.check()
        yield lease
    finally:
        lease.stop.set()
        renewing.join()
        found = read_lease(folder)
        if found and found["holder"] == lease.holder:
            folder.remove(LEASE)


def read_lease(folder: Folder) -> dict[str, Any] | None:
    """Return the lease in the folder, None where there is none."""
    try:
        return folder.read_json(LEASE)
    except FileNotFoundError:
        return None


def _is_over(found: dict[str, Any]) -> bool:
    if datetime.fromisoformat(found["expires"]) < _now():
        return True
    if found["host"] != socket.gethostname():
        return False
    try:
        os.kill(found["process"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _now() -> datetime:
    return datetime.now(UTC)
