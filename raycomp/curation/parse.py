"""Parse captions into phrases, draw their nonces and tokenize the counterfactuals, on CPUs.

Go et al. (arXiv 2605.22651), Eq. 2. Many processes do this on each machine. open_clip takes 5 s and 600 MB in
each process, so it is not loaded.
"""

from functools import lru_cache
from typing import Any

import pyarrow as pa

from raycomp.config import ParserConfig, ScorerConfig
from raycomp.curation.config import AttributeConfig, NonceConfig
from raycomp.data.arrow import (
    COUNTERFACTUALS,
    FAULTS,
    TOKENS,
    add_columns,
    nest,
    readable,
    to_fixed_lists,
)
from raycomp.language.nonce import make_counterfactual
from raycomp.language.phrases import Phrase
from raycomp.models.nonces import NonceMaker
from raycomp.models.parser import MAX_CHARACTERS, Parser, load_parser
from raycomp.models.tokens import load_tokens
from raycomp.schema import PHRASE_TYPE
from raycomp.words import (
    CAPTION,
    CONTENT,
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
    """The objects that parsing needs, loaded once per process."""
    tokenizer = load_tokens(scorer)
    return load_parser(parser.name), NonceMaker(tokenizer, nonce.seed, scorer.model), tokenizer


def parse(
    table: pa.Table,
    parser: ParserConfig,
    nonce: NonceConfig,
    attribute: AttributeConfig,
    scorer: ScorerConfig,
) -> pa.Table:
    """Add phrases with their nonces, and the tokens of caption and counterfactuals.

    The counterfactual tokens of a row are ordered by phrase, then by nonce. A phrase without a valid nonce
    stays, with an empty list; ``faults`` holds the reason. With ``attribute.targets=content`` adjectives,
    verbs and relation words follow the phrases of their row, with class CONTENT; ``attribute`` separates
    them.
    """
    find, maker, tokenize = _tools(parser, nonce, scorer)
    captions = table[CAPTION].to_pylist()
    keys = table[UID].to_pylist() if nonce.key == "sample" else [""] * len(captions)
    rows, texts, faults = [], [], []
    parsed = find.parse_content(captions, attribute.targets == CONTENT)
    for caption, key, (phrases, content) in zip(captions, keys, parsed, strict=True):
        made = [
            nonces
            for some in (phrases, content)
            for nonces in maker.make(caption[:MAX_CHARACTERS], _targets(some), attribute.nonces, key)
        ]
        faults.append([nonce for nonce in made[: len(phrases)] if isinstance(nonce, str)])
        nonces = [[] if isinstance(nonce, str) else nonce for nonce in made]
        phrases += content
        rows.append([_phrase_row(caption, p, n) for p, n in zip(phrases, nonces, strict=True)])
        spans = _targets(phrases)
        edits = [(*span, drawn) for span, several in zip(spans, nonces, strict=True) for drawn in several]
        texts.append([readable(make_counterfactual(caption, *edit)) for edit in edits])
    tokens_TL = tokenize([text for group in texts for text in group] or [""])
    counts = [len(group) for group in texts]
    columns = {
        STATUS: pa.array([find_status(row) for row in rows], pa.string()),
        PHRASES: pa.array(rows, pa.list_(PHRASE_TYPE)),
        FAULTS: pa.array(faults, pa.list_(pa.string())),
        TOKENS: to_fixed_lists(tokenize(list(map(readable, captions)))),
        COUNTERFACTUALS: nest(tokens_TL, counts),
    }
    return add_columns(table, columns)


def _targets(phrases: list[Phrase]) -> list[tuple[int, int]]:
    return [(phrase.target_start, phrase.target_end) for phrase in phrases]


def _phrase_row(caption: str, phrase: Any, nonces: list[str]) -> dict[str, Any]:
    words = {
        "text": caption[phrase.start : phrase.end],
        "target": caption[phrase.target_start : phrase.target_end],
    }
    return {**phrase._asdict(), **words, "nonces": nonces, "drops": [], "drop": None, "displacement": None}


def find_status(phrases: list[dict[str, Any]]) -> str:
    """Return ok, or the reason why a caption with these phrases has no mean PAS. CONTENT does not count."""
    phrases = [phrase for phrase in phrases if phrase["target_class"] != CONTENT]
    if not phrases:
        return NO_PHRASE
    classes = {phrase["target_class"] for phrase in phrases if phrase["nonces"]}
    return NO_VALID_NONCE if not classes else NO_SEEN_PHRASE if classes == {UNSEEN} else OK
