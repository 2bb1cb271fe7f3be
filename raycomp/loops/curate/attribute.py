"""Parse captions into phrases with counterfactuals, then measure what each counterfactual costs.

Go et al. (arXiv 2605.22651), Eqs. 2 to 5. The text tower alone runs: the image embedding is stored.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from raycomp.config import AttributeConfig, NonceConfig, ParserConfig, ScorerConfig
from raycomp.core.alignment import pair_cosine
from raycomp.core.attribution import aggregate_drops, pair_drop
from raycomp.loops.tables import (
    COUNTERFACTUALS,
    FAULTS,
    TOKENS,
    add_columns,
    nest,
    readable,
    to_fixed_lists,
    to_matrix,
)
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.nonces import NonceMaker
from raycomp.models.parser import MAX_CHARACTERS, Parser, load_parser
from raycomp.schema import PHRASE_TYPE
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_EMBEDDING,
    MEAN_PAS,
    NO_PHRASE,
    NO_SEEN_PHRASE,
    NO_VALID_NONCE,
    OK,
    PHRASES,
    STATUS,
    UID,
    UNSEEN,
)


@lru_cache(maxsize=1)
def _tools(parser: ParserConfig, nonce: NonceConfig, scorer: ScorerConfig) -> tuple[Parser, NonceMaker, Any]:
    """Load once in a process what parsing needs."""
    tokenizer = load_tokenizer(scorer)
    return load_parser(parser.name), NonceMaker(tokenizer, nonce.seed, scorer.model), tokenizer


def parse(
    table: pa.Table,
    parser: ParserConfig,
    nonce: NonceConfig,
    attribute: AttributeConfig,
    scorer: ScorerConfig,
) -> pa.Table:
    """Add phrases with their nonces, and the tokens of caption and counterfactuals.

    The counterfactual tokens of a row stand phrase by phrase, nonce by nonce. A phrase without a valid nonce
    stays, with none; why is in ``faults``.
    """
    find, maker, tokenize = _tools(parser, nonce, scorer)
    captions = table[CAPTION].to_pylist()
    keys = table[UID].to_pylist() if nonce.key == "sample" else [""] * len(captions)
    rows, texts, faults = [], [], []
    for caption, key, phrases in zip(captions, keys, find.parse(captions), strict=True):
        spans = [(phrase.target_start, phrase.target_end) for phrase in phrases]
        made = maker.make(caption[:MAX_CHARACTERS], spans, attribute.nonces, key)
        nonces = [[] if isinstance(nonce, str) else nonce for nonce in made]
        faults.append([nonce for nonce in made if isinstance(nonce, str)])
        rows.append([_phrase_row(caption, p, n) for p, n in zip(phrases, nonces, strict=True)])
        edits = [
            (phrase, drawn) for phrase, several in zip(phrases, nonces, strict=True) for drawn in several
        ]
        texts.append([readable(_replace(caption, phrase, drawn)) for phrase, drawn in edits])
    tokens_TL = tokenize([text for group in texts for text in group] or [""]).numpy().astype(np.int32)
    counts = [len(group) for group in texts]
    columns = {
        STATUS: pa.array([_status(row) for row in rows], pa.string()),
        PHRASES: pa.array(rows, pa.list_(PHRASE_TYPE)),
        FAULTS: pa.array(faults, pa.list_(pa.string())),
        TOKENS: to_fixed_lists(tokenize(list(map(readable, captions))).numpy().astype(np.int32)),
        COUNTERFACTUALS: nest(tokens_TL, counts),
    }
    return add_columns(table, columns)


def _phrase_row(caption: str, phrase: Any, nonces: list[str]) -> dict[str, Any]:
    words = {
        "text": caption[phrase.start : phrase.end],
        "target": caption[phrase.target_start : phrase.target_end],
    }
    return {**phrase._asdict(), **words, "nonces": nonces, "drops": [], "drop": None, "displacement": None}


def _replace(caption: str, phrase: Any, nonce: str) -> str:
    return caption[: phrase.target_start] + nonce + caption[phrase.target_end :]


def _status(phrases: list[dict[str, Any]]) -> str:
    if not phrases:
        return NO_PHRASE
    classes = {phrase["target_class"] for phrase in phrases if phrase["nonces"]}
    return NO_VALID_NONCE if not classes else NO_SEEN_PHRASE if classes == {UNSEEN} else OK


class Attribute:
    """One actor: load the text tower once, then fill in drops, displacements and mean PAS."""

    def __init__(self, config: ScorerConfig, num_threads: int | None = None):
        self.clip = Clip(config, num_threads=num_threads)
        self.device = self.clip.device

    def __call__(self, table: pa.Table) -> pa.Table:
        """Take parsed rows. ``drop`` = s(I, T) - s(I, T~), s(I, T) being the stored alignment (Eq. 3).

        Letters: N rows, P phrases and T counterfactuals of all of them, one row's after the other's.
        """
        others = table[COUNTERFACTUALS].combine_chunks()
        count_N = others.value_lengths().to_numpy(zero_copy_only=False)
        caption_ND, text_TD = self.clip.text.embed(
            to_matrix(table[TOKENS]), to_matrix(others.flatten()), count_N
        )
        image_ND = torch.from_numpy(to_matrix(table[IMAGE_EMBEDDING]).astype(np.float32))
        row_T = np.repeat(np.arange(len(table)), count_N)
        alignment_N = table[ALIGNMENT].to_numpy()
        drop_T = pair_drop(alignment_N[row_T], pair_cosine(image_ND[row_T], text_TD).numpy())
        displacement_T = 1 - pair_cosine(caption_ND[row_T], text_TD).numpy()
        columns = _fill(table[PHRASES].combine_chunks(), drop_T, displacement_T)
        return add_columns(table.drop_columns([TOKENS, COUNTERFACTUALS]), columns)


def _fill(phrases: pa.ListArray, drop_T: np.ndarray, displacement_T: np.ndarray) -> dict[str, pa.Array]:
    """Return the phrases with drops and displacements written in, and mean PAS (Eq. 5, mu).

    The mean is over the phrases whose target a picture can show, whatever ``attribute.unseen`` says, which
    acts at selection.
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
    unseen_P = pc.equal(flat["target_class"], UNSEEN).to_numpy(zero_copy_only=False)
    mean_N = aggregate_drops(np.where(unseen_P, np.float32(np.nan), drop_P), offset_P, "mean")
    return {
        PHRASES: pa.ListArray.from_arrays(pa.array(offset_P), filled),
        MEAN_PAS: pa.array(mean_N, mask=np.isnan(mean_N)),
    }


def _offsets(lists: pa.ListArray) -> np.ndarray:
    sizes = lists.value_lengths().to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
