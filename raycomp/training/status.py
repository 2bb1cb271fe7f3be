"""What the driver gives every rank, the training status that ranks report to it, and the states in a
folder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raycomp.config import ClusterFailed
from raycomp.core.epochs import EpochPlan
from raycomp.data.files import Folder
from raycomp.models.images import ImageSpec
from raycomp.training.config import TrainConfig

if TYPE_CHECKING:
    from raycomp.training.feed import Drawing
    from raycomp.training.pairs import Pairs

STEP = "step"
OWN_COLUMNS = (STEP, "loss", "learning_rate", "samples_per_s")
"""The columns of metrics.jsonl that every step has. An evaluation must choose other names."""
Evaluate = Callable[[Any, int], Mapping[str, Any]]
"""Takes the model, in evaluation mode, and its number of steps; returns numbers by name."""
CHECKPOINTS, STATE = "checkpoints", "state.json"
# Failed starts from the same step after which the training ends.
_MOST_STARTS = 4
_LOST = "a worker was lost"


def list_states(out: Folder) -> list[int]:
    """Return the steps that have a state, in order."""
    return sorted(int(name) for name in _list_names(out) if out.exists(CHECKPOINTS, name, STATE))


def _list_names(out: Folder) -> list[str]:
    """Return the names of states, incomplete ones too."""
    return [name for name in out.list_names(CHECKPOINTS) if name.isdecimal()]


def keep_states(out: Folder, count: int) -> None:
    """Remove all states but the last ``count``, and incomplete ones of any step."""
    steps = list_states(out)[-count:]
    for name in _list_names(out):
        if int(name) not in steps:
            out.remove(CHECKPOINTS, name)


@dataclass
class TrainingStatus:
    """All reports so far."""

    step: int = 0
    """Number of steps taken."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """The ``step`` at which training started or resumed, and ``why`` it resumed, empty for the first
    start."""
    error: Exception | None = None
    """An error that a restart cannot fix."""

    @property
    def resumed(self) -> list[dict[str, Any]]:
        """The starts that resumed from a checkpoint."""
        return [start for start in self.starts if start["why"]]


class StatusTracker:
    """An actor of the driver that keeps the status across restarts of the ranks."""

    def __init__(self) -> None:
        self.known = TrainingStatus()
        self.why = ""
        self.is_storage = False
        self.tries = 0

    def arrive(self) -> bool:
        """Return whether ranks that have just started may load the model."""
        self.tries += 1
        # One more start is allowed here: only ``start`` knows its step and can refuse it.
        self._end_after(_MOST_STARTS + 1)
        return self.known.error is None

    def start(self, step: int) -> bool:
        """Return whether training may start, or resume, at a step."""
        known = self.known
        if known.starts and step > known.starts[-1]["step"]:
            self.tries = 1
        self._end_after(_MOST_STARTS)
        if known.error is None:
            lost = f"{_LOST} ({self.why})" if self.why else _LOST
            why = lost if known.starts else "started earlier" * (step > 0)
            known.starts.append({"step": step, "why": why})
            known.step, self.why, self.is_storage = step, "", False
        return known.error is None

    def _end_after(self, starts: int) -> None:
        """End the training after that many starts without a new checkpoint."""
        known = self.known
        if known.error is None and self.tries >= starts:
            where = f"step {known.starts[-1]['step']:,}" if known.starts else "its start"
            said = f"training failed {starts - 1} times between {where} and the next checkpoint"
            kind = OSError if self.is_storage else ClusterFailed
            known.error = kind(f"{said}: {self.why or _LOST}")

    def report(self, reported: dict[str, Any]) -> bool:
        """Record a step; return whether training continues."""
        self.known.step = reported["step"] + 1
        return self.known.error is None

    def fail(self, why: str, error: Exception | None = None, is_storage: bool = False) -> None:
        """Record why a rank ended; an ``error`` ends the training. ``is_storage``: whether a storage
        failed."""
        if not self.why:
            self.why, self.is_storage = why, is_storage
        self.known.error = self.known.error or error

    def status(self) -> TrainingStatus:
        """Return the whole status."""
        return self.known


def say_start(start: Mapping[str, Any], say: Callable[[str], None], label: str = "train") -> None:
    """Report the step at which training resumed, and the reason; nothing for the first start."""
    if start["why"]:
        say(f"{label}: {start['why']}; resumed from step {start['step']:,}")


@dataclass(frozen=True)
class ShardSource:
    """The files that shards are read from."""

    pairs: "Pairs"
    index: tuple[str, ...]
    """The uri of each shard's table of pairs."""


@dataclass(frozen=True)
class Course:
    """What determines every batch of a run, in addition to the shards."""

    plan: EpochPlan
    draw: "Drawing"


@dataclass(frozen=True)
class HeldOutTables:
    """The stored pairs that ``train.held_out`` evaluates."""

    uris: tuple[str, ...]
    """Tables of uid, image and caption."""
    max_pixels: int
    """Images with more are not decoded."""


@dataclass(frozen=True)
class Training:
    """The inputs of every rank. On Ray ``source`` and ``course`` are references, and ``tracker`` is an
    actor."""

    config: TrainConfig
    out: str
    source: Any
    course: Any
    num_steps: int
    num_kinds: int
    image: ImageSpec
    threads: int | None
    """Torch threads of a rank on CPUs; none on GPUs."""
    evaluate: Evaluate | None
    tracker: Any = None
    held_out: HeldOutTables | None = None
    run_id: str = ""
    """That of run.json."""
