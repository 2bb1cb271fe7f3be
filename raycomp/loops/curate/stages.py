"""The stages of a curation's two phases, named once for the run, its plan and its report."""

from functools import partial

from raycomp.config import CurateConfig
from raycomp.loops.curate.align import Align
from raycomp.loops.curate.attribute import Attribute
from raycomp.loops.curate.parse import parse
from raycomp.loops.curate.prepare import prepare
from raycomp.loops.stage import CPUS, SCORERS, Stage
from raycomp.models.spec import ScorerSpec


def align_stages(config: CurateConfig, spec: ScorerSpec) -> tuple[Stage, Stage]:
    """Return what every sample goes through."""
    decode = partial(
        prepare,
        scorer=config.scorer,
        spec=spec,
        max_pixels=config.prepare.max_pixels,
        extra_columns=config.extra_columns,
        fast_decode=config.prepare.fast_decode,
    )
    align = partial(Align, config.scorer, spec)
    return (
        Stage("decode", "makes pixels and tokens", CPUS, decode),
        Stage("align", "embeds images and captions, on the scorers", SCORERS, align),
    )


def attribute_stages(config: CurateConfig) -> tuple[Stage, Stage]:
    """Return what the pool's rows go through."""
    find = partial(
        parse,
        parser=config.parser,
        nonce=config.nonce,
        attribute=config.attribute,
        scorer=config.scorer,
    )
    attribute = partial(Attribute, config.scorer)
    return (
        Stage("parse", "finds phrases and edits captions", CPUS, find),
        Stage("attribute", "embeds edited captions, on the scorers", SCORERS, attribute),
    )
