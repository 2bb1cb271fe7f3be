"""The options of the screen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.words import NOUN, PARTICIPLE
from raycomp.config import as_setting
from raycomp.config.options import (
    FREE,
    ClusterConfig,
    OptionGroup,
    ScorerConfig,
    check,
    count_from,
    one_of,
    within,
)
from raycomp.evaluation.config import BenchmarkConfig

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
class ScreenConfig(OptionGroup):
    """Drawn worlds: their number and sizes; or, with ``sugarcrepe.annotations``, real photos."""

    sugarcrepe: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    """Real photos: captions of COCO val2017, a third of them replaced by SugarCrepe's negatives."""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """The CLIP model that scores real photos; a drawn world trains its own."""
    worlds: int = field(default=4, metadata=count_from(1, 100))
    """Number of worlds, each with its own scorer and pairs for every cue: the unit of all intervals."""
    first_world: int = field(default=0, metadata=count_from(0, 10_000))
    """The number of the first world; exploration and confirmation use different worlds."""
    cues: tuple[str, ...] = field(default=(), metadata=one_of(tuple(CUES)))
    """Names of cues; none = all."""
    sound: int = field(default=800, metadata=count_from(1))
    """Correct pairs of a world; as many more have a stamp."""
    faulty: int = field(default=400, metadata=count_from(1))
    """Faulty pairs of each kind: a third of a corpus of correct pairs and those of one kind."""
    scorer_pairs: int = 6000
    """Training pairs of a scorer, a third of them faulty, half of the captions with junk words."""
    scorer_steps: int = field(default=300, metadata=count_from(1))
    """Steps of the scorer's training."""
    batch_size: int = field(default=64, metadata=count_from(2))
    captions: int = field(default=20_000, metadata=count_from(100))
    """Training captions of a text-only classifier, with as many others for its test; the rule that adds one
    to alignment is fitted to a tenth as many, in each world."""
    side_by_side: int | None = field(default=None, metadata=FREE | count_from(1))
    """Number of concurrent runs, each on one CPU; none = the number of cores. No result depends on it."""
    seed: int = field(default=0, metadata=within("from 0 to 9999"))
    """Draws the worlds; of real photos, the captions that are replaced."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.batch_size
        check(self.scorer_pairs >= least, "scorer_pairs", self.scorer_pairs, f"at least {least}, a batch")

    def check_typed(self, options: Mapping[str, Any]) -> Any:
        is_real = self.sugarcrepe.annotations is not None
        for path, value in options.items():
            group = path.partition(".")[0]
            if group not in ("cluster", "seed") and (group in ("sugarcrepe", "scorer")) != is_real:
                said = "drawn worlds; leave it out, or leave out" if is_real else "real photos; also set"
                raise ValueError(f"{path}={as_setting(value)}: is for {said} sugarcrepe.annotations")
        return self
