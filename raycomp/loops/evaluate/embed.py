"""Pictures and texts to embeddings: the scorers of the pass that an evaluation makes, and its stages.

M pictures, T texts, N tokens of context, D embedding dims.
"""

from functools import partial

import numpy as np
import pyarrow as pa

from raycomp.config import ModelConfig
from raycomp.loops.evaluate.read import TEXT_EMBEDDING, prepare_pixels, tokenize
from raycomp.loops.model import fetch_model
from raycomp.loops.stage import CPUS, SCORERS, Stage
from raycomp.loops.tables import TOKENS, add_columns, to_fixed_lists, to_matrix
from raycomp.models.clip import Clip
from raycomp.models.spec import ScorerSpec
from raycomp.words import IMAGE_EMBEDDING, OK, PIXELS, STATUS


class EmbedPictures:
    """One actor: load CLIP once, then give every picture whose status is ok its embedding."""

    def __init__(self, config: ModelConfig, spec: ScorerSpec, num_threads: int | None = None):
        self.clip = Clip(fetch_model(config), num_threads=num_threads)
        self.device = self.clip.device
        self.spec = spec

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows with ``image_embedding``, fp32 of length 1, 0 where the status is not ok."""
        is_ok_M = np.array([status == OK for status in table[STATUS].to_pylist()], bool)
        image_MD = np.zeros((len(table), self.spec.embedding_dim), np.float32)
        if is_ok_M.any():
            pixels_MV = to_matrix(table[PIXELS])[is_ok_M]
            shape = (-1, self.spec.image.height, self.spec.image.width, 3)
            image_MD[is_ok_M] = self.clip.embed_pixels(pixels_MV.reshape(shape)).numpy()
        return add_columns(table.drop_columns([PIXELS]), {IMAGE_EMBEDDING: to_fixed_lists(image_MD)})


class EmbedTexts:
    """One actor: load CLIP once, then embed every text."""

    def __init__(self, config: ModelConfig, num_threads: int | None = None):
        self.clip = Clip(fetch_model(config), num_threads=num_threads)
        self.device = self.clip.device

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows with ``text_embedding``, fp32 of length 1."""
        text_TD = self.clip.text.embed(to_matrix(table[TOKENS]))[0].numpy()
        return add_columns(table.drop_columns([TOKENS]), {TEXT_EMBEDDING: to_fixed_lists(text_TD)})


def picture_stages(config: ModelConfig, spec: ScorerSpec, max_pixels: int) -> tuple[Stage, Stage]:
    """Return what every picture goes through."""
    decode = partial(prepare_pixels, spec=spec, max_pixels=max_pixels)
    embed = partial(EmbedPictures, config, spec)
    return (
        Stage("decode", "makes pixels", CPUS, decode),
        Stage("embed_pictures", "embeds pictures, on the scorers", SCORERS, embed),
    )


def text_stages(config: ModelConfig) -> tuple[Stage, Stage]:
    """Return what every text goes through."""
    return (
        Stage("tokenize", "makes tokens", CPUS, partial(tokenize, config=config)),
        Stage("embed_texts", "embeds texts, on the scorers", SCORERS, partial(EmbedTexts, config)),
    )
