"""The texts that the composition probe embeds, each once, and the pairs of texts that it compares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycomp.core.probe import shuffle_words
from raycomp.words import CAPTION, NEGATIVES, OPERATIONS, UID

PARAPHRASE = "paraphrase"
OTHER = "other caption"
ANY = "any"
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)

Encode = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class EditedPairs:
    """The pairs of one line of the table, as the numbers of their rows and of their edited texts."""

    op: str
    calls: int
    row_N: np.ndarray
    edit_N: np.ndarray


@dataclass(frozen=True)
class Embeddings:
    """All embeddings, of length 1: T texts, B rows, each row's uid, texts and image."""

    text_TD: np.ndarray
    same_T: np.ndarray
    """One number for all texts that differ in white space or case alone."""
    uid_B: np.ndarray
    caption_B: np.ndarray
    paraphrase_B: np.ndarray
    """-1 where a row has none, as in ``other_B``."""
    other_B: np.ndarray
    image_BD: np.ndarray | None


def embed(
    encode: Encode,
    rows: Sequence[Mapping[str, Any]],
    index: dict[str, int],
    image_embeddings: np.ndarray | None,
) -> Embeddings:
    """Embed the texts of ``index``, in its order; ValueError on embeddings of different sizes."""
    text_TD = _unit(encode(list(index)), len(index), "texts")
    image_BD = None if image_embeddings is None else _unit(image_embeddings, len(rows), "images")
    if image_BD is not None and image_BD.shape[1] != text_TD.shape[1]:
        raise ValueError(f"images have {image_BD.shape[1]} dims and texts {text_TD.shape[1]}: must be equal")
    paraphrase_B, other_B = (
        np.array([index[text] if (text := _take(row, name)) else -1 for row in rows])
        for name in (PARAPHRASE, OTHER)
    )
    return Embeddings(
        text_TD,
        np.unique([" ".join(text.lower().split()) for text in index], return_inverse=True)[1],
        np.unique([str(row[UID]) for row in rows], return_inverse=True)[1],
        np.array([index[row[CAPTION]] for row in rows]),
        paraphrase_B,
        other_B,
        image_BD,
    )


def _take(row: Mapping[str, Any], name: str) -> str | None:
    text = row.get(name)
    return text if text and text != row[CAPTION] else None


def shuffle_captions(
    rows: Sequence[Mapping[str, Any]], rng: np.random.Generator
) -> dict[float, list[str | None]]:
    """Return each row's caption shuffled to each share; None where it has fewer than two words."""
    captions = [row[CAPTION] if len(row[CAPTION].split()) > 1 else None for row in rows]
    return {
        share: [None if text is None else shuffle_words(text, share, rng) for text in captions]
        for share in SHARES
    }


def index_texts(rows: Sequence[Mapping[str, Any]], shuffled: dict[float, list[str | None]]) -> dict[str, int]:
    """Number every text to embed, each once, in the order of its first occurrence."""
    texts: dict[str | None, None] = {}
    for row in rows:
        negatives = (negative["text"] for negative in row[NEGATIVES] or ())
        texts |= dict.fromkeys((row[CAPTION], _take(row, PARAPHRASE), _take(row, OTHER), *negatives))
    for column in shuffled.values():
        texts |= dict.fromkeys(column)
    return {text: i for i, text in enumerate(text for text in texts if text is not None)}


def _unit(embeddings: np.ndarray, num: int, name: str) -> np.ndarray:
    """Check and return embeddings as fp32 rows of length 1."""
    import torch

    from raycomp.core.alignment import normalise

    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or len(embeddings) != num:
        raise ValueError(f"embeddings of {num} {name}: must be [{num}, dims], are {embeddings.shape}")
    if not np.isfinite(embeddings).all():
        raise ValueError(f"embeddings of {name}: must be finite")
    return normalise(torch.tensor(embeddings)).numpy()


def list_pairs(
    rows: Sequence[Mapping[str, Any]], index: dict[str, int], embeddings: Embeddings
) -> list[EditedPairs]:
    """Return the lines of the table: the two baselines, each (calls, operation), and each number of calls."""
    found: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for i, row in enumerate(rows):
        for negative in row[NEGATIVES] or ():
            pair = (i, index[negative["text"]])
            found.setdefault((negative["calls"], negative["op"]), []).append(pair)
            found.setdefault((negative["calls"], ANY), []).append(pair)
    lines = []
    for name, text_B in ((PARAPHRASE, embeddings.paraphrase_B), (OTHER, embeddings.other_B)):
        row_N = np.flatnonzero(text_B >= 0)
        lines.append(EditedPairs(name, 0, row_N, text_B[row_N]))
    for calls, op in sorted(found, key=_place):
        lines.append(EditedPairs(op, calls, *np.array(found[calls, op]).T))
    return lines


def _place(key: tuple[int, str]) -> tuple[bool, int, list[int], str]:
    calls, op = key
    known = [OPERATIONS.index(part) if part in OPERATIONS else len(OPERATIONS) for part in op.split("+")]
    return op == ANY, calls, known, op
