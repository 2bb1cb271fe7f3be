"""Parse captions into phrases with counterfactuals, then measure what each counterfactual costs.

Go et al. (arXiv 2605.22651), Eqs. 2 to 5. The text tower alone runs: the image embedding is stored.
"""

import time
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raycomp.config import AttributeConfig, NonceConfig, ParserConfig, ScorerConfig
from raycomp.core.alignment import pair_cosine
from raycomp.loops.tables import COUNTERFACTUALS, NONCE_FAULTS, TOKENS, add_columns, add_seconds, to_matrix
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.nonces import NonceMaker
from raycomp.models.parser import Parser, load_parser
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
    return load_parser(parser.name), NonceMaker(tokenizer, seed=nonce.seed), tokenizer


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
        made = maker.make(caption, spans, attribute.nonces, key)
        nonces = [[] if isinstance(nonce, str) else nonce for nonce in made]
        faults.append([nonce for nonce in made if isinstance(nonce, str)])
        rows.append([_phrase_row(caption, p, n) for p, n in zip(phrases, nonces, strict=True)])
        texts.append([_replace(caption, p, n) for p, ns in zip(phrases, nonces, strict=True) for n in ns])
    tokens_TL = tokenize([text for group in texts for text in group] or [""]).numpy().astype(np.int32)
    counts = [len(group) for group in texts]
    columns = {
        STATUS: pa.array([_status(row) for row in rows], pa.string()),
        PHRASES: pa.array(rows, pa.list_(PHRASE_TYPE)),
        NONCE_FAULTS: pa.array(faults, pa.list_(pa.string())),
        TOKENS: pa.array(list(tokenize(captions).numpy().astype(np.int32)), pa.list_(pa.int32())),
        COUNTERFACTUALS: _nest(tokens_TL, counts),
    }
    return add_seconds(add_columns(table, columns), "parse", time.perf_counter() - started)


def _phrase_row(caption: str, phrase: Any, nonces: list[str]) -> dict[str, Any]:
    words = {
        "text": caption[phrase.start : phrase.end],
        "target": caption[phrase.target_start : phrase.target_end],
    }
    return {**asdict(phrase), **words, "nonces": nonces, "drops": [], "drop": None, "displacement": None}


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
        """Take parsed rows. ``drop`` = s(I, T) - s(I, T~), s(I, T) being the stored alignment (Eq. 3)."""
        started = time.perf_counter()
        image_ND = torch.from_numpy(to_matrix(table[IMAGE_EMBEDDING]).astype(np.float32))
        alignments = table[ALIGNMENT].to_pylist()
        groups = [
            TextGroup(np.asarray(caption, np.int64), tuple(np.asarray(text, np.int64) for text in others))
            for caption, others in zip(
                table[TOKENS].to_pylist(), table[COUNTERFACTUALS].to_pylist(), strict=True
            )
        ]
        rows = table[PHRASES].to_pylist()
        embedded = self.clip.text.embed(groups)
        for phrases, image_D, text_TD, alignment in zip(rows, image_ND, embedded, alignments, strict=True):
            similarity_T = pair_cosine(image_D.expand(len(text_TD) - 1, -1), text_TD[1:]).numpy()
            displacement_T = 1 - pair_cosine(text_TD[:1].expand(len(text_TD) - 1, -1), text_TD[1:]).numpy()
            _fill(phrases, np.float32(alignment) - similarity_T, displacement_T)
        columns = {
            PHRASES: pa.array(rows, pa.list_(PHRASE_TYPE)),
            MEAN_PAS: pa.array([_mean_drop(phrases) for phrases in rows], pa.float32()),
        }
        table = add_columns(table.drop_columns([TOKENS, COUNTERFACTUALS]), columns)
        return add_seconds(table, "attribute", time.perf_counter() - started)


def _fill(phrases: list[dict[str, Any]], drop_T: np.ndarray, displacement_T: np.ndarray) -> None:
    """Write drops into the phrases, in the order in which their counterfactuals were made."""
    start = 0
    for phrase in phrases:
        end = start + len(phrase["nonces"])
        if end > start:
            phrase["drops"] = drop_T[start:end].tolist()
            phrase["drop"] = float(drop_T[start:end].mean(dtype=np.float64))
            phrase["displacement"] = float(displacement_T[start:end].mean(dtype=np.float64))
        start = end


def _mean_drop(phrases: list[dict[str, Any]]) -> float | None:
    """Mean over the phrases that have a drop (Eq. 5, mu), summed in their order; None without any."""
    drops = [phrase["drop"] for phrase in phrases if phrase["drop"] is not None]
    return float(np.mean(np.asarray(drops, np.float32), dtype=np.float64)) if drops else None
