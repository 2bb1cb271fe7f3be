"""What every rank gets. Light: Ray Train's controller reads it, too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from raycomp.core.epochs import EpochPlan
from raycomp.models.images import ImageSpec
from raycomp.train.config import TrainConfig

if TYPE_CHECKING:
    from raycomp.train.feed import Drawing
    from raycomp.train.pairs import Pairs

STEP = "step"
Evaluate = Callable[[Any, int], Mapping[str, Any]]
"""Takes the model, in evaluation mode, and how many steps it took; returns numbers by name."""


class StepReport(NamedTuple):
    """What a step tells."""

    step: int
    """Of this step, from 0."""
    loss: float
    """Of the global batch, before the step."""
    learning_rate: float
    parts: Mapping[str, float] = {}
    """What the loss is the sum of, by name, where it is one."""


OWN_COLUMNS = (STEP, "loss", "learning_rate", "samples_per_s")
"""The columns of metrics.jsonl that every step has. An evaluation must choose other names."""


@dataclass(frozen=True)
class ShardSource:
    """What shards are read from."""

    pairs: "Pairs"
    index: tuple[str, ...]
    """Where the table of each shard's pairs lies."""


@dataclass(frozen=True)
class Course:
    """What every batch of a run follows from, beside the shards."""

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
    """What every rank gets. On Ray ``source`` and ``course`` are references, and ``tracker`` is an actor."""

    config: TrainConfig
    out: str
    source: Any
    course: Any
    num_steps: int
    steps_per_epoch: int
    num_kinds: int
    image: ImageSpec
    threads: int | None
    """Torch threads of a rank on CPUs; none on GPUs."""
    evaluate: Evaluate | None
    tracker: Any = None
    held_out: HeldOutTables | None = None
    run_id: str = ""
    """That of run.json."""
