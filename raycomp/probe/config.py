"""The options of probes."""

from dataclasses import dataclass, field

from raycomp.config.check import check
from raycomp.config.options import PLACE
from raycomp.config.shared import ParserConfig, ScorerConfig


@dataclass(frozen=True)
class ProbeConfig:
    """What ``raycomp probe`` looks at."""

    input: str = field(default="", metadata=PLACE)
    """overlap: a folder with a folder for each benchmark; composition: what ``raycomp negatives`` wrote, or
    such a folder with benchmarks=sugarcrepe_pp; pas: what ``raycomp curate`` or ``select`` wrote."""
    benchmarks: tuple[str, ...] = ("sugarcrepe", "sugarcrepe_pp", "valse")
    """overlap: folders of ``input``: these, vl_checklist or aro. composition: sugarcrepe_pp alone probes with
    its captions, paraphrases and negatives, without images; anything else with the negatives in ``input``."""
    sample: int | None = None
    """Rows of each split, captions, or samples, at most; none = all."""
    seeds: int = 5
    """theory: worlds that are drawn."""
    scorer: ScorerConfig | None = None
    """composition: whose text encoder; none = that of the one that scored ``images``, else of the one that
    ranked the negatives. pas: where the one that scored the curation lies, if it was moved. Who sets one of
    its options chooses all of it: the others are then those below."""
    images: str | None = field(default=None, metadata=PLACE)
    """composition: a curation of the same images and captions by ``scorer``, which its image embeddings are
    taken from; none = the one behind the negatives, if ``scorer`` scored it. So a model can be compared
    before and after training: same negatives, same seed, one probe each."""
    pairs: int | None = None
    """composition: N, the pairs that every A-distance of the table is of, one of each of N captions, no
    caption and no edit twice; lines with fewer have none. none = as many as the smallest line of one call
    that has at least 100, at most 2,000; with no such line the smallest of all counts."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    seed: int = 0
    """Draws samples, pairs, folds, resamples and, of pas, words, the same for every scorer."""

    def __post_init__(self) -> None:
        check(self.sample is None or self.sample >= 1, "sample", self.sample, "at least 1")
        check(self.pairs is None or self.pairs >= 10, "pairs", self.pairs, "at least 10")
        check(1 <= self.seeds <= 100, "seeds", self.seeds, "between 1 and 100")
        check(self.seed >= 0, "seed", self.seed, "at least 0")
