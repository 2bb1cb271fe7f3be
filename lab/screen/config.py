"""The options of the screen."""

from dataclasses import dataclass, field

from lab.words import NOUN, PARTICIPLE
from raycomp.config.options import FREE, check, check_choice, check_count
from raycomp.config.shared import ClusterConfig

TEXT_VISIBLE = "text-visible"


@dataclass(frozen=True)
class Cue:
    """Which captions and pictures have a logo."""

    share: float
    """Share of correct and faulty pairs alike, and of the scorer's training pairs."""
    named: str = NOUN
    """NOUN or PARTICIPLE: whether PAS can replace its name."""
    with_faults: bool = False
    """Faulty pairs have the logo and correct ones do not, so that the caption reveals the fault; ``share`` is
    of the scorer's training pairs."""

    @property
    def name(self) -> str:
        if not self.share:
            return "no-logo"
        return TEXT_VISIBLE if self.with_faults else f"{self.named}-{100 * self.share:.0f}"


CUES = {
    cue.name: cue
    for cue in (
        Cue(0.0),
        *(Cue(share, named) for named in (NOUN, PARTICIPLE) for share in (0.25, 0.5, 1.0)),
        Cue(0.5, with_faults=True),
    )
}


@dataclass(frozen=True)
class ScreenConfig:
    """The number of worlds, and their sizes."""

    worlds: int = 4
    """Number of worlds, each with its own scorer and pairs for every cue: the unit of all intervals."""
    first_world: int = 0
    """The number of the first world; exploration and confirmation use different worlds."""
    cues: tuple[str, ...] = ()
    """Names of cues; none = all."""
    sound: int = 800
    """Correct pairs of a world; as many more have a stamp."""
    faulty: int = 400
    """Faulty pairs of each kind: a third of a corpus of correct pairs and those of one kind."""
    scorer_pairs: int = 6000
    """Training pairs of a scorer, a third of them faulty, half of the captions with junk words."""
    scorer_steps: int = 300
    """Steps of the scorer's training."""
    batch_size: int = 64
    captions: int = 20_000
    """Training captions of a text-only classifier, with as many others for its test; the rule that adds one
    to alignment is fitted to a tenth as many, in each world."""
    side_by_side: int | None = field(default=None, metadata=FREE)
    """Number of concurrent runs, each on one CPU; none = the number of cores. No result depends on it."""
    seed: int = 0
    """Draws the worlds."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        check_count("worlds", self.worlds, 1, 100)
        check_count("first_world", self.first_world, 0, 10_000)
        check_count("batch_size", self.batch_size, 2)
        if self.side_by_side is not None:
            check_count("side_by_side", self.side_by_side, 1)
        check(0 <= self.seed < 10_000, "seed", self.seed, "from 0 to 9999")
        for name in ("sound", "faulty", "scorer_steps"):
            check_count(name, getattr(self, name), 1)
        least = self.batch_size
        check(self.scorer_pairs >= least, "scorer_pairs", self.scorer_pairs, f"at least {least}, a batch")
        check_count("captions", self.captions, 100)
        for name in self.cues:
            check_choice("cues", name, tuple(CUES))
