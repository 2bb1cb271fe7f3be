"""What ranks tell the driver while they train: how far they are, what befell them, what was wrong."""

from dataclasses import dataclass, field
from typing import Any

# Starts from one and the same step: what ends them all will end the next.
_MOST_STARTS = 4
_LOST = "a worker was lost"
_BEGUN_BEFORE = "begun before"


@dataclass
class News:
    """What has been told so far."""

    step: int = 0
    """The steps taken."""
    told: dict[str, Any] | None = None
    """Of the last one."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """The ``step`` at which training began or went on, and ``why`` it had to, nothing where it began."""
    error: Exception | None = None
    """What no start will mend."""

    @property
    def resumed(self) -> list[dict[str, Any]]:
        """The starts that went on from a checkpoint."""
        return [start for start in self.starts if start["why"]]


class Board:
    """An actor of the driver's: ranks that start anew find what those before them told."""

    def __init__(self) -> None:
        self.known = News()
        self.why = ""

    def begin(self, step: int) -> bool:
        """Return whether training may begin, or go on, at a step."""
        known = self.known
        why = (self.why or _LOST) if known.starts else _BEGUN_BEFORE * (step > 0)
        known.starts.append({"step": step, "why": why})
        known.step, self.why = step, ""
        last = [start["step"] for start in known.starts[-_MOST_STARTS:]]
        if known.error is None and last == [step] * _MOST_STARTS:
            known.error = RuntimeError(
                f"training ended {_MOST_STARTS - 1} times between step {step:,} and a checkpoint: {why}"
            )
        return known.error is None

    def tell(self, told: dict[str, Any]) -> None:
        """Take down a step."""
        self.known.step, self.known.told = told["step"] + 1, told

    def fail(self, why: str, is_final: bool) -> None:
        """Take down why a rank ended: for good, or until the next start."""
        self.why = self.why or why
        if is_final and self.known.error is None:
            self.known.error = ValueError(why)

    def news(self) -> News:
        """Return all of it."""
        return self.known
