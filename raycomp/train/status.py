"""What ranks tell the driver while they train: how far they are, what befell them, what was wrong."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raycomp.config import ClusterFailed

# Starts from one and the same step: what ends them all will end the next.
_MOST_STARTS = 4
_LOST = "a worker was lost"
_STARTED_BEFORE = "begun before"


@dataclass
class TrainingStatus:
    """What has been told so far."""

    step: int = 0
    """The steps taken."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """The ``step`` at which training began or went on, and ``why`` it had to, nothing where it began."""
    error: Exception | None = None
    """What no start will mend."""

    @property
    def resumed(self) -> list[dict[str, Any]]:
        """The starts that went on from a checkpoint."""
        return [start for start in self.starts if start["why"]]


class StatusTracker:
    """An actor of the driver's: ranks that start anew find what those before them told."""

    def __init__(self) -> None:
        self.known = TrainingStatus()
        self.why = ""
        self.is_storage = False
        self.tries = 0

    def arrive(self) -> bool:
        """Return whether ranks that have just started are to resume: nothing has been loaded yet."""
        self.tries += 1
        # The last one that may begin is refused at its step, which this start does not know yet.
        self._end_after(_MOST_STARTS + 1)
        return self.known.error is None

    def start(self, step: int) -> bool:
        """Return whether training may begin, or go on, at a step."""
        known = self.known
        if known.starts and step > known.starts[-1]["step"]:
            self.tries = 1
        self._end_after(_MOST_STARTS)
        if known.error is None:
            lost = f"{_LOST} ({self.why})" if self.why else _LOST
            why = lost if known.starts else _STARTED_BEFORE * (step > 0)
            known.starts.append({"step": step, "why": why})
            known.step, self.why, self.is_storage = step, "", False
        return known.error is None

    def _end_after(self, starts: int) -> None:
        """Let so many starts without a checkpoint in between be the last."""
        known = self.known
        if known.error is None and self.tries >= starts:
            where = f"step {known.starts[-1]['step']:,}" if known.starts else "its start"
            said = f"training ended {starts - 1} times between {where} and a checkpoint"
            kind = OSError if self.is_storage else ClusterFailed
            known.error = kind(f"{said}: {self.why or _LOST}")

    def report(self, reported: dict[str, Any]) -> bool:
        """Take down a step; return whether there is to be another."""
        self.known.step = reported["step"] + 1
        return self.known.error is None

    def fail(self, why: str, error: Exception | None = None, is_storage: bool = False) -> None:
        """Take down why a rank ended: until the next start, or for good where there is an ``error``.

        ``is_storage``: what it ended of is a storage that fails.
        """
        if not self.why:
            self.why, self.is_storage = why, is_storage
        self.known.error = self.known.error or error

    def status(self) -> TrainingStatus:
        """Return all of it."""
        return self.known


def say_start(start: Mapping[str, Any], say: Callable[[str], None], label: str = "train") -> None:
    """Say at which step training resumed, and why it had to; nothing where it starts."""
    if start["why"]:
        say(f"{label}: {start['why']}; on from step {start['step']:,}")
