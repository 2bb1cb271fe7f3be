"""The stages of an evaluation's two phases."""

from functools import partial
from typing import TYPE_CHECKING

from raycomp.config import ModelConfig
from raycomp.evaluate.read import prepare_pixels, tokenize
from raycomp.models.spec import ScorerSpec
from raycomp.run.stage import CPUS, SCORERS, Stage

if TYPE_CHECKING:
    from raycomp.evaluate.embed import EmbedPictures, EmbedTexts


def picture_stages(config: ModelConfig, spec: ScorerSpec, max_pixels: int) -> tuple[Stage, Stage]:
    """Return what every picture goes through."""
    decode = partial(prepare_pixels, spec=spec, max_pixels=max_pixels)
    embed = partial(_load_picture_scorer, config, spec)
    return (
        Stage("decode", "makes pixels", CPUS, decode),
        Stage("embed_pictures", "embeds pictures, on the scorers", SCORERS, embed),
    )


def text_stages(config: ModelConfig) -> tuple[Stage, Stage]:
    """Return what every text goes through."""
    return (
        Stage("tokenize", "makes tokens", CPUS, partial(tokenize, config=config)),
        Stage("embed_texts", "embeds texts, on the scorers", SCORERS, partial(_load_text_scorer, config)),
    )


# Only a process that scores imports torch.
def _load_picture_scorer(
    config: ModelConfig, spec: ScorerSpec, num_threads: int | None = None
) -> "EmbedPictures":
    from raycomp.evaluate.embed import EmbedPictures

    return EmbedPictures(config, spec, num_threads)


def _load_text_scorer(config: ModelConfig, num_threads: int | None = None) -> "EmbedTexts":
    from raycomp.evaluate.embed import EmbedTexts

    return EmbedTexts(config, num_threads)
