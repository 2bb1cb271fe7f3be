"""The options of the demo."""

from dataclasses import dataclass, field

from raycomp.config.options import FREE, MOST_WHOLE, ClusterConfig, OptionGroup, count_from


@dataclass(frozen=True)
class DemoConfig(OptionGroup):
    """Which world is drawn, and where it is curated."""

    seed: int = field(default=0, metadata=count_from(0, MOST_WHOLE))
    """Draws the world and what is learned of it."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)
    """Where the world is curated; all else is done in processes of this machine."""
