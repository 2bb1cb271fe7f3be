"""Candidates as the tokens that the scorer's text encoder reads, and the columns that travel with them."""

from collections.abc import Sequence

import pyarrow as pa

from raycomp.config import ScorerConfig
from raycomp.core.hardness import Candidate, list_additions
from raycomp.data.arrow import COUNTERFACTUALS, TOKENS, nest, readable, to_fixed_lists
from raycomp.models.tokens import load_tokens

# Travel between the stages, a value for each of a row's negatives, only where ``add_similarity`` is set: the
# places of each ADD's input and output among the row's texts, the caption first; their least similarity.
ADDITIONS = "additions"
ADD_SIMILARITY = "add_similarity"
_ADDITIONS_TYPE = pa.list_(pa.list_(pa.list_(pa.int32())))
Steps = Sequence[Sequence[tuple[str, str]]]
"""Of each of a row's candidates, the input and output of every ADD."""


def add_tokens(
    captions: Sequence[str],
    candidates: Sequence[Sequence[Candidate]],
    scorer: ScorerConfig,
    with_additions: bool,
) -> dict[str, pa.Array]:
    """Return the tokens of captions and candidates; with additions also of every ADD's input and output."""
    tokenize = load_tokens(scorer)
    texts = [[candidate.text for candidate in group] for group in candidates]
    columns: dict[str, pa.Array] = {}
    if with_additions:
        steps = [[list_additions(candidate) for candidate in group] for group in candidates]
        texts = list(map(_add_texts, captions, texts, steps))
        columns[ADDITIONS] = pa.array(list(map(_place, captions, texts, steps)), _ADDITIONS_TYPE)
    tokens_TL = tokenize([readable(text) for group in texts for text in group] or [""])
    columns[TOKENS] = to_fixed_lists(tokenize(list(captions)))
    columns[COUNTERFACTUALS] = nest(tokens_TL, [len(group) for group in texts])
    return columns


def _add_texts(caption: str, texts: Sequence[str], steps: Steps) -> list[str]:
    """Return ``texts`` and, behind them, what of the steps is not among them."""
    known = {caption, *texts}
    more = (text for pairs in steps for pair in pairs for text in pair if text not in known)
    return [*texts, *dict.fromkeys(more)]


def _place(caption: str, texts: Sequence[str], steps: Steps) -> list[list[list[int]]]:
    """Return the steps with the place of each text, 0 for the caption."""
    places = {text: place for place, text in reversed([*enumerate([caption, *texts])])}
    return [[[places[before], places[after]] for before, after in pairs] for pairs in steps]
