"""The inputs of every rank. Imports nothing heavy: Ray Train's controller loads it, too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raycomp.core.epochs import EpochPlan
from raycomp.models.images import ImageSpec
from raycomp.training.config import TrainConfig

if TYPE_CHECKING:
    from raycomp.training.feed import Drawing
    from raycomp.training.pairs import Pairs

STEP = "step"
Evaluate = Callable[[Any, int], Mapping[str, Any]]
"""Takes the model, in evaluation mode, and its number of steps; returns numbers by name."""


OWN_COLUMNS = (STEP, "loss", "learning_rate", "samples_per_s")
"""The columns of metrics.jsonl that every step has. An evaluation must choose other names."""


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
