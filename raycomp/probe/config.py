"""The options of probes."""

from dataclasses import dataclass, field

from raycomp.config.options import PLACE, OptionGroup, ParserConfig, ScorerConfig, within


@dataclass(frozen=True)
class ProbeConfig(OptionGroup):
    """The input and settings of ``raycomp probe``."""

    input: str = field(default="", metadata=PLACE)
    """overlap: a folder with a folder for each benchmark; composition: what ``raycomp negatives`` wrote, or
    such a folder with benchmarks=sugarcrepe_pp; pas: what ``raycomp curate`` or ``select`` wrote."""
    benchmarks: tuple[str, ...] = ("sugarcrepe", "sugarcrepe_pp", "valse")
    """overlap: folders of ``input``: these, vl_checklist or aro. composition: sugarcrepe_pp alone uses its
    captions, paraphrases and negatives, without images; any other value uses the negatives in ``input``."""
    sample: int | None = field(default=None, metadata=within("at least 1"))
    """Maximum rows of each split, captions, or samples; none = all."""
    scorer: ScorerConfig | None = None
    """composition: the scoring model whose text encoder is probed; none = the one that scored ``images``,
    else the one that ranked the negatives. pas: the place of the one that scored the curation, if it was
    moved. Setting one of its options sets all of it: the other options then have the defaults below."""
    images: str | None = field(default=None, metadata=PLACE)
    """composition: a curation of the same images and captions by ``scorer``, which supplies the image
    embeddings; none = the one behind the negatives, if ``scorer`` scored it. So a model can be compared
    before and after training: same negatives, same seed, one probe each."""
    pairs: int | None = field(default=None, metadata=within("at least 10"))
    """composition: N, the number of pairs in every A-distance of the table, one for each of N captions, no
    caption and no edit twice; lines with fewer pairs have no A-distance. none = the size of the smallest line
    of one call with at least 100 pairs, at most 2,000; without such a line, of the smallest line of all."""
    parser: ParserConfig = field(default_factory=ParserConfig)
    seed: int = field(default=0, metadata=within("at least 0"))
    """Seed of samples, pairs, folds, resamples and, for pas, words; the same draws for every scorer."""
