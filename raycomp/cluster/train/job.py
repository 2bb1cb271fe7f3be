"""What every rank is told. Light, for Ray Train's controller has to read it, too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raycomp.config import TrainConfig
from raycomp.models.images import ImageSpec


@dataclass(frozen=True)
class Job:
    """What every rank is told."""

    config: TrainConfig
    out: str
    stock: Any
    """A reference to what shards are read from."""
    course: Any
    """A reference to the course of all batches."""
    board: Any
    num_steps: int
    steps_per_epoch: int
    num_kinds: int
    image: ImageSpec
    threads: int | None
    """Torch threads of a rank on CPUs; none on GPUs."""
    evaluate: Callable[[Any, int], Mapping[str, Any]] | None


def work(told: dict[str, Job]) -> None:
    """Train as one rank of Ray Train's."""
    from raycomp.cluster.train.work import train_as_rank  # seconds, which the ranks alone need

    train_as_rank(told["job"])
