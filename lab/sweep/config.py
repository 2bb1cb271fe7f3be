"""The options of a sweep's little worlds."""

from dataclasses import dataclass

from raycomp.config.options import check_count


@dataclass(frozen=True)
class WorldsConfig:
    """The number of worlds and their sizes."""

    count: int = 4
    """Number of worlds: the seeds and report_seeds of the sweep."""
    seed: int = 0
    """Draws the worlds."""
    pairs: int = 4000
    """Pairs to select from, a third of them with a planted fault."""
    scorer_pairs: int = 10_000
    """Clean training pairs of a world's scorer."""
    scorer_steps: int = 500
    """Steps of the scorer's training."""
    batch_size: int = 64
    """Pairs per step of the scorer's training."""
    scenes: int = 800
    """Scenes of a world's test set."""

    def __post_init__(self) -> None:
        check_count("count", self.count, 1, 100)
        check_count("seed", self.seed, 0, 9999)
        check_count("batch_size", self.batch_size, 2)
        batch = self.batch_size
        for name, least in {
            "pairs": 2 * batch,
            "scorer_pairs": batch,
            "scorer_steps": 1,
            "scenes": 2,
        }.items():
            check_count(name, getattr(self, name), least)
