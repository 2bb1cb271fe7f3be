"""Measure the drop of each counterfactual of a caption.

Go et al. (arXiv 2605.22651), Eqs. 3 to 5. Only the text tower runs: the image embedding is stored.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from raycomp.config import ScorerConfig
from raycomp.core.alignment import has_unit_length, pair_cosine
from raycomp.core.attribution import aggregate_drops, pair_drop
from raycomp.curation.parse import find_status
from raycomp.data.arrow import (
    COUNTERFACTUALS,
    FAULTS,
    TOKENS,
    add_columns,
    to_matrix,
)
from raycomp.run.scorer import load_clip
from raycomp.schema import PHRASE_TYPE
from raycomp.words import (
    ALIGNMENT,
    BAD_EMBEDDING,
    CONTENT,
    CONTENT_WORDS,
    HEAD,
    IMAGE_EMBEDDING,
    MEAN_PAS,
    PHRASES,
    STATUS,
)


class Attribute:
    """One actor: load the text tower once, then fill in drops, displacements and mean PAS."""

    def __init__(self, config: ScorerConfig, num_threads: int | None = None):
        self.clip = load_clip(config, num_threads)
        self.device = self.clip.device

    def __call__(self, table: pa.Table) -> pa.Table:
        """Take parsed rows. ``drop`` = s(I, T) - s(I, T~), where s(I, T) is the stored alignment (Eq. 3).

        A nonce is invalid if its counterfactual's embedding is not finite or not of length 1. Raises
        UserError, naming the weights, if all of the first embeddings are invalid.
        Letters: N rows; P phrases and T counterfactuals of all rows, concatenated row by row.
        """
        others = table[COUNTERFACTUALS].combine_chunks()
        count_N = others.value_lengths().to_numpy(zero_copy_only=False)
        caption_ND, text_TD = self.clip.text.embed(
            to_matrix(table[TOKENS]), to_matrix(others.flatten()), count_N
        )
        image_ND = torch.from_numpy(to_matrix(table[IMAGE_EMBEDDING]).astype(np.float32))
        row_T = np.repeat(np.arange(len(table)), count_N)
        is_good_T = has_unit_length(text_TD) & has_unit_length(caption_ND)[row_T]
        if not is_good_T.all():
            table = _drop_nonces(table, is_good_T.tolist())
            text_TD, row_T = text_TD[is_good_T], row_T[is_good_T.numpy()]
        alignment_N = table[ALIGNMENT].to_numpy()
        drop_T = pair_drop(alignment_N[row_T], pair_cosine(image_ND[row_T], text_TD).numpy())
        displacement_T = 1 - pair_cosine(caption_ND[row_T], text_TD).numpy()
        columns = _fill(table[PHRASES].combine_chunks(), drop_T, displacement_T)
        return add_columns(table.drop_columns([TOKENS, COUNTERFACTUALS]), columns)


def _drop_nonces(table: pa.Table, is_good_T: list[bool]) -> pa.Table:
    """Return the rows without the nonces of bad counterfactuals, as ``parse`` leaves invalid ones."""
    rows, faults = table[PHRASES].to_pylist(), table[FAULTS].to_pylist()
    is_good = iter(is_good_T)
    for phrases, reasons in zip(rows, faults, strict=True):
        for phrase in phrases:
            made = phrase["nonces"]
            phrase["nonces"] = [nonce for nonce in made if next(is_good)]
            lost = bool(made) and not phrase["nonces"] and phrase["target_class"] != CONTENT
            reasons += [BAD_EMBEDDING] * lost
    columns = {
        STATUS: pa.array(map(find_status, rows), pa.string()),
        PHRASES: pa.array(rows, pa.list_(PHRASE_TYPE)),
        FAULTS: pa.array(faults, pa.list_(pa.string())),
    }
    return add_columns(table, columns)


def _fill(phrases: pa.ListArray, drop_T: np.ndarray, displacement_T: np.ndarray) -> dict[str, pa.Array]:
    """Return the phrases with drops and displacements, those of class CONTENT separately, and mean PAS.

    The mean (Eq. 5, mu) is over the phrases whose target a picture can show. It does not depend on
    ``attribute.targets``, which takes effect at selection.
    """
    flat = dict(zip(PHRASE_TYPE.names, phrases.flatten().flatten(), strict=True))
    offset_T = _offsets(flat["nonces"])
    drop_P = aggregate_drops(drop_T, offset_T, "mean")
    displacement_P = aggregate_drops(displacement_T, offset_T, "mean")
    flat["drops"] = pa.ListArray.from_arrays(pa.array(offset_T), pa.array(drop_T))
    flat["drop"] = pa.array(drop_P, mask=np.isnan(drop_P))
    flat["displacement"] = pa.array(displacement_P, mask=np.isnan(displacement_P))
    filled = pa.StructArray.from_arrays(list(flat.values()), fields=list(PHRASE_TYPE))
    offset_P = _offsets(phrases)
    shown_P = pc.equal(flat["target_class"], HEAD).to_numpy(zero_copy_only=False)
    mean_N = aggregate_drops(np.where(shown_P, drop_P, np.float32(np.nan)), offset_P, "mean")
    content_P = pc.equal(flat["target_class"], CONTENT).to_numpy(zero_copy_only=False)
    return {
        PHRASES: _keep(filled, offset_P, ~content_P),
        CONTENT_WORDS: _keep(filled, offset_P, content_P),
        MEAN_PAS: pa.array(mean_N, mask=np.isnan(mean_N)),
    }


def _keep(filled: pa.StructArray, offset_E: np.ndarray, keep_P: np.ndarray) -> pa.ListArray:
    """Return the lists that the offsets mark, reduced to the selected phrases."""
    before_P = np.concatenate([[0], np.cumsum(keep_P)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(before_P[offset_E]), filled.filter(pa.array(keep_P)))


def _offsets(lists: pa.ListArray) -> np.ndarray:
    sizes = lists.value_lengths().to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
