"""The stages of a curation's two phases; the run, its plan and its report use the same names."""

from functools import partial
from typing import TYPE_CHECKING

from raycomp.config import ScorerConfig
from raycomp.curation.config import CurateConfig
from raycomp.curation.parse import parse
from raycomp.curation.prepare import prepare
from raycomp.models.spec import ScorerSpec
from raycomp.run.stage import CPUS, SCORERS, Stage

if TYPE_CHECKING:
    from raycomp.curation.align import Align
    from raycomp.curation.attribute import Attribute


def align_stages(config: CurateConfig, spec: ScorerSpec) -> tuple[Stage, Stage]:
    """Return the stages that every sample passes through."""
    decode = partial(
        prepare,
        scorer=config.scorer,
        spec=spec,
        max_pixels=config.prepare.max_pixels,
        extra_columns=config.extra_columns,
        fast_decode=config.prepare.fast_decode,
        removed=config.removed,
    )
    align = partial(_load_align, config.scorer, spec, config.scorers)
    return (
        Stage("decode", "makes pixels and tokens", CPUS, decode, in_threads=True),
        Stage("align", "embeds images and captions, on the scorers", SCORERS, align, _overlaps(config)),
    )


def attribute_stages(config: CurateConfig) -> tuple[Stage, Stage]:
    """Return the stages that the pool's rows pass through."""
    find = partial(
        parse,
        parser=config.parser,
        nonce=config.nonce,
        attribute=config.attribute,
        scorer=config.scorer,
    )
    attribute = partial(_load_attribute, config.scorer)
    return (
        Stage("parse", "finds phrases and edits captions", CPUS, find),
        Stage("attribute", "embeds edited captions, on the scorers", SCORERS, attribute, _overlaps(config)),
    )


def _overlaps(config: CurateConfig) -> bool:
    """Whether two calls of a scorer may run at a time; the user's scorers are called one at a time."""
    return config.scorer.overlap and not config.scorers


# Only a process that scores imports torch.
def _load_align(
    config: ScorerConfig, spec: ScorerSpec, scorers: tuple[str, ...], num_threads: int | None = None
) -> "Align":
    from raycomp.curation.align import Align

    return Align(config, spec, num_threads, scorers)


def _load_attribute(config: ScorerConfig, num_threads: int | None = None) -> "Attribute":
    from raycomp.curation.attribute import Attribute

    return Attribute(config, num_threads)
