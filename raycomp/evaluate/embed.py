"""Pictures and texts to embeddings: the scorers of the pass that an evaluation makes.

M pictures, T texts, N tokens of context, D embedding dims.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from raycomp.config import ModelConfig
from raycomp.core.alignment import has_unit_length
from raycomp.data.arrow import TOKENS, add_columns, to_fixed_lists, to_matrix
from raycomp.data.model import fetch_model
from raycomp.evaluate.read import TEXT_EMBEDDING
from raycomp.models.spec import ScorerSpec
from raycomp.run.scorer import load_clip
from raycomp.words import BAD_EMBEDDING, IMAGE_EMBEDDING, OK, PIXELS, STATUS


class EmbedPictures:
    """One actor: load CLIP once, then give every picture whose status is ok its embedding."""

    def __init__(self, config: ModelConfig, spec: ScorerSpec, num_threads: int | None = None):
        self.clip = load_clip(fetch_model(config), num_threads)
        self.device = self.clip.device
        self.spec = spec

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows with ``image_embedding``, fp32 of length 1, 0 where the status is not ok.

        A picture whose embedding is not so gets the status bad_embedding. Raises UserError, naming the
        weights, where those of all of the first pictures are not.
        """
        is_ok_M = np.array([status == OK for status in table[STATUS].to_pylist()], bool)
        image_MD = np.zeros((len(table), self.spec.embedding_dim), np.float32)
        is_bad_M = np.zeros(len(table), bool)
        if is_ok_M.any():
            pixels_MV = to_matrix(table[PIXELS])[is_ok_M]
            shape = (-1, self.spec.image.height, self.spec.image.width, 3)
            image_MD[is_ok_M], is_bad_M[is_ok_M] = clear_bad(self.clip.embed_pixels(pixels_MV.reshape(shape)))
        columns = {
            STATUS: pc.if_else(pa.array(is_bad_M), BAD_EMBEDDING, table[STATUS]),
            IMAGE_EMBEDDING: to_fixed_lists(image_MD),
        }
        return add_columns(table.drop_columns([PIXELS]), columns)


class EmbedTexts:
    """One actor: load CLIP once, then embed every text."""

    def __init__(self, config: ModelConfig, num_threads: int | None = None):
        self.clip = load_clip(fetch_model(config), num_threads)
        self.device = self.clip.device

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows with ``text_embedding``, fp32 of length 1, and their status: ok, or bad_embedding
        where that is 0 because it was not so. Raises UserError as ``EmbedPictures``.
        """
        text_TD, is_bad_T = clear_bad(self.clip.text.embed(to_matrix(table[TOKENS]))[0])
        statuses = pc.if_else(pa.array(is_bad_T), BAD_EMBEDDING, OK)
        columns = {STATUS: statuses, TEXT_EMBEDDING: to_fixed_lists(text_TD)}
        return add_columns(table.drop_columns([TOKENS]), columns)


def clear_bad(x_MD: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings with 0 for rows that are not finite or not of length 1, and which these are."""
    is_bad_M, found_MD = ~has_unit_length(x_MD).numpy(), x_MD.numpy()
    found_MD[is_bad_M] = 0
    return found_MD, is_bad_M
