"""The options of the study on the little world."""

from dataclasses import dataclass, field

from raycomp.config.check import check, check_count
from raycomp.config.options import FREE
from raycomp.config.shared import ClusterConfig
from raycomp.continual.config import MOST_SEEDS
from raycomp.sweep.config import WorldsConfig


@dataclass(frozen=True)
class StudyConfig:
    """The runs of the study, the number of worlds and seeds, and the sizes."""

    worlds: int = 4
    """Number of worlds, each with its own scorer, pairs and test scenes; seed s belongs to world s modulo
    worlds. A selection rule makes one choice per world, so results generalize to other worlds only with many
    worlds."""
    seeds: int = 16
    """Trainings of each selection rule in the primary contrasts (CLIP on the five subsets)."""
    other_seeds: int = 3
    """Trainings of every other kind of run."""
    steps: int = 300
    """Steps of every training, whatever its subset."""
    batch_size: int = 64
    pairs: int = 4000
    """Pairs of a world to select from, a third of them with a planted fault."""
    scorer_pairs: int = 10_000
    """Clean training pairs of a world's scorer."""
    scorer_steps: int = 500
    """Steps of the scorer's training."""
    scenes: int = 800
    """Test scenes of colours and shapes that were seen together in training."""
    unseen_scenes: int = 400
    """Test scenes with a colour and a shape that were not seen together."""
    runs: tuple[str, ...] = ()
    """Runs to train, as METHOD-SUBSET or METHOD-SUBSET-OPERATION (clip-cpi50, negclip-full-swap); none =
    all."""
    side_by_side: int | None = field(default=None, metadata=FREE)
    """Number of concurrent trainings, each on one CPU; none = the number of cores. No result depends on
    it."""
    seed: int = 0
    """Draws the worlds; with a run's own seed it draws the run's weights, order and negatives."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        check_count("worlds", self.worlds, 1, 100)
        for name in ("seeds", "other_seeds"):
            check_count(name, getattr(self, name), 1, MOST_SEEDS)
        for name in ("steps", "scorer_steps", "unseen_scenes"):
            check_count(name, getattr(self, name), 1)
        check_count("scenes", self.scenes, 2)
        check_count("batch_size", self.batch_size, 2)
        least = 2 * self.batch_size
        check(
            self.pairs >= least,
            "pairs",
            self.pairs,
            f"at least {least}, two batches, as each subset is half of the pairs",
        )
        least = self.batch_size
        check(self.scorer_pairs >= least, "scorer_pairs", self.scorer_pairs, f"at least {least}, a batch")
        for name in ("pairs", "scorer_pairs"):
            check_count(name, getattr(self, name), 2)
        check(0 <= self.seed < 10_000, "seed", self.seed, "from 0 to 9999")
        if self.side_by_side is not None:
            check_count("side_by_side", self.side_by_side, 1)

    @property
    def sizes(self) -> WorldsConfig:
        """Return the sizes of each world."""
        return WorldsConfig(self.pairs, self.scorer_pairs, self.scorer_steps, self.batch_size, self.scenes)
