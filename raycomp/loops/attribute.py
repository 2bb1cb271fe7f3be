"""Parse captions into phrases with counterfactuals, then measure what each counterfactual costs.

Go et al. (arXiv 2605.22651), Eqs. 2 to 5. The text tower alone runs: the image embedding is stored.
"""

import time
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raycomp.config import AttributeConfig, NonceConfig, ParserConfig, ScorerConfig
from raycomp.core.alignment import pair_cosine
from raycomp.core.attribution import aggregate_drops, pair_drop
from raycomp.loops.tables import (
    COUNTERFACTUALS,
    NONCE_FAULTS,
    TOKENS,
    add_columns,
    add_seconds,
    readable,
    to_fixed_lists,
    to_matrix,
)
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.nonces import NonceMaker
from raycomp.models.parser import MAX_CHARACTERS, Parser, load_parser
from raycomp.models.text import TextGroup
from raycomp.schema import (
    ALIGNMENT,
    CAPTION,
    IMAGE_EMBEDDING,
    MEAN_PAS,
    NO_PHRASE,
    NO_VALID_NONCE,
    OK,
    PHRASE_TYPE,
    PHRASES,
    STATUS,
    UID,
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
    stays, with none; why is in ``nonce_faults``.
    """
    started = time.perf_counter()
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
        NONCE_FAULTS: pa.array(faults, pa.list_(pa.string())),
        TOKENS: to_fixed_lists(tokenize(list(map(readable, captions))).numpy().astype(np.int32)),
        COUNTERFACTUALS: _nest(tokens_TL, counts),
    }
    return add_seconds(add_columns(table, columns), "parse", time.perf_counter() - started)


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
    return OK if any(phrase["nonces"] for phrase in phrases) else NO_VALID_NONCE


def _nest(tokens_TL: np.ndarray, counts: list[int]) -> pa.ListArray:
    """Return a list per row of lists of token ids."""
    length = tokens_TL.shape[1]
    num_texts = sum(counts)
    values = pa.array(tokens_TL[:num_texts].reshape(-1))
    inner = pa.ListArray.from_arrays(pa.array(np.arange(num_texts + 1, dtype=np.int32) * length), values)
    return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *counts]).astype(np.int32)), inner)


class Attribute:
    """One actor: load the text tower once, then fill in drops, displacements and mean PAS."""

    def __init__(self, config: ScorerConfig, num_threads: int | None = None):
        if num_threads:
            torch.set_num_threads(num_threads)
        self.clip = Clip(config)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Take parsed rows. ``drop`` = s(I, T) - s(I, T~), s(I, T) being the stored alignment (Eq. 3).

        Letters: N rows, P phrases and T counterfactuals of all of them, one row's after the other's.
        """
        started = time.perf_counter()
        rows = table[PHRASES].to_pylist()
        groups = [
            TextGroup(np.asarray(caption, np.int64), tuple(np.asarray(text, np.int64) for text in others))
            for caption, others in zip(
                table[TOKENS].to_pylist(), table[COUNTERFACTUALS].to_pylist(), strict=True
            )
        ]
        embedded = [torch.empty(1, to_matrix(table[IMAGE_EMBEDDING]).shape[1]), *self.clip.text.embed(groups)]
        row_T = np.repeat(np.arange(len(groups)), [len(group.counterfactuals_N) for group in groups])
        caption_ND = torch.stack([text_TD[0] for text_TD in embedded])[1:]
        text_TD = torch.cat([text_TD[1:] for text_TD in embedded])
        image_ND = torch.from_numpy(to_matrix(table[IMAGE_EMBEDDING]).astype(np.float32))
        alignment_N = table[ALIGNMENT].to_numpy()
        drop_T = pair_drop(alignment_N[row_T], pair_cosine(image_ND[row_T], text_TD).numpy())
        displacement_T = 1 - pair_cosine(caption_ND[row_T], text_TD).numpy()
        columns = _fill(rows, drop_T, displacement_T)
        table = add_columns(table.drop_columns([TOKENS, COUNTERFACTUALS]), columns)
        return add_seconds(table, "attribute", time.perf_counter() - started)


def _fill(rows: list[list[dict]], drop_T: np.ndarray, displacement_T: np.ndarray) -> dict[str, pa.Array]:
    """Return the phrases with drops and displacements written in, and mean PAS (Eq. 5, mu)."""
    phrases = [phrase for row in rows for phrase in row]
    offset_T = np.cumsum([0, *(len(phrase["nonces"]) for phrase in phrases)])
    drop_P = aggregate_drops(drop_T, offset_T, "mean")
    displacement_P = aggregate_drops(displacement_T, offset_T, "mean")
    for p, phrase in enumerate(phrases):
        if phrase["nonces"]:
            phrase["drops"] = drop_T[offset_T[p] : offset_T[p + 1]].tolist()
            phrase["drop"], phrase["displacement"] = float(drop_P[p]), float(displacement_P[p])
    mean_N = aggregate_drops(drop_P, np.cumsum([0, *map(len, rows)]), "mean")
    return {
        PHRASES: pa.array(rows, pa.list_(PHRASE_TYPE)),
        MEAN_PAS: pa.array(mean_N, mask=np.isnan(mean_N)),
    }
