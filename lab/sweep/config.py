"""The options of a sweep's little worlds."""

from dataclasses import dataclass, field

from raycomp.config.options import MOST, OptionGroup, check, count_from


@dataclass(frozen=True)
class WorldsConfig(OptionGroup):
    """The number of worlds and their sizes."""

    count: int = field(default=4, metadata=count_from(1, 100))
    """Number of worlds: the seeds and report_seeds of the sweep."""
    seed: int = field(default=0, metadata=count_from(0, 9999))
    """Draws the worlds."""
    pairs: int = 4000
    """Pairs to select from, a third of them with a planted fault."""
    scorer_pairs: int = 10_000
    """Clean training pairs of a world's scorer."""
    scorer_steps: int = field(default=500, metadata=count_from(1))
    """Steps of the scorer's training."""
    batch_size: int = field(default=64, metadata=count_from(2))
    """Pairs per step of the scorer's training."""
    scenes: int = field(default=800, metadata=count_from(2))
    """Scenes of a world's test set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("pairs", 2 * self.batch_size), ("scorer_pairs", self.batch_size)):
            value = getattr(self, name)
            check(least <= value <= MOST, name, value, f"between {least:,} and {MOST:,}")
