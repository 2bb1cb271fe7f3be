"""The options of the demo."""

from dataclasses import dataclass, field

from raycomp.config.options import FREE, MOST_WHOLE, check_count
from raycomp.config.shared import ClusterConfig


@dataclass(frozen=True)
class DemoConfig:
    """Which world is drawn, and where it is curated."""

    seed: int = 0
    """Draws the world and what is learned of it."""
    cluster: ClusterConfig = field(default_factory=lambda: ClusterConfig(executor="ray"), metadata=FREE)
    """Where the world is curated; all else is done in processes of this machine."""

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0, MOST_WHOLE)
