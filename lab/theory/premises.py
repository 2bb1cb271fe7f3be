"""The premises of Theorems 7 to 9 (arXiv:2510.26302) in the toy world, checked on every edit of every
caption.

Each theorem concludes from a premise that g** gives caption and edit one embedding:

- SWAP, Theorem 7: the intersection over tokens of the sets of z_inv that a token allows has one element;
- REPLACE, Theorem 8: g** of the text with a word is g** of the text with its replacement;
- ADD, Theorem 9: a z_inv is in the inverse images of caption and augmented text under g*.

g* of the toy is invertible, so the last premise requires one z_inv of both: that they are ``nearest`` > 0
apart refutes it. The same distance shows that g* separates every edit from its caption: it is a true
negative.

Letters as in ``scm.py``.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lab.theory import scm
from raycomp.words import ADD, OPERATIONS, REPLACE, SWAP


class Premise(NamedTuple):
    """The results for all edits of one operator."""

    nearest: float
    """The smallest |z_inv(caption) - z_inv(edit)|."""
    single: float
    """The share of edits whose tokens have exactly one z_inv in common."""
    same: float
    """The share of edits with the caption's g**."""


def check_premises(world: scm.World) -> dict[str, Premise]:
    """Return the results for the edits of each operator."""
    caption_S6 = np.pad(world.support_S5, ((0, 0), (0, 1)), constant_values=-1)
    votes_SD = _encode(world, caption_S6)
    meaning_SZ = scm.read_meaning(world, caption_S6)
    found = {}
    for op in OPERATIONS:
        gaps, singles, sames = [], [], []
        for scene_N, edited_NK in list_edits(caption_S6, op):
            step_NZ = scm.read_meaning(world, edited_NK) - meaning_SZ[scene_N]
            gaps.append(np.linalg.norm(step_NZ, axis=1))
            singles.append(_count_common(world, edited_NK) == 1)
            moved_ND = _encode(world, edited_NK) - votes_SD[scene_N]
            sames.append(np.abs(moved_ND).max(axis=1) < 1e-9)
        shares = (float(np.concatenate(part).mean()) for part in (singles, sames))
        found[op] = Premise(float(np.concatenate(gaps).min()), *shares)
    return found


def list_edits(caption_SK: np.ndarray, op: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield every edit that ``scm.OPERATORS`` can draw: the caption's index, and the resulting concepts.

    The edits come in parts that fit in memory.
    """
    scenes_S = np.arange(len(caption_SK))
    if op == SWAP:
        for source in scm.SWAPS.values():
            yield scenes_S, caption_SK[:, list(source)]
    for at in range(scm.BASE_LENGTH) if op == REPLACE else ():
        scene_N, concept_N = np.nonzero(scm.allow_absent(caption_SK, scm.CLASS_V[caption_SK[:, at]]))
        edited_NK = caption_SK[scene_N]
        edited_NK[:, at] = concept_N
        yield scene_N, edited_NK
    for at in scm.ADD_PLACES if op == ADD else ():
        scene_N, concept_N = np.nonzero(scm.allow_absent(caption_SK, np.zeros_like(scenes_S)))
        before_NK = caption_SK[scene_N]
        yield scene_N, np.insert(before_NK[:, :-1], at, concept_N, axis=1)


def _encode(world: scm.World, concept_NK: np.ndarray) -> np.ndarray:
    style_NKP = np.zeros((*concept_NK.shape, scm.STYLE_SIZE))
    return scm.encode_by_votes(world, scm.observe_texts(world, scm.Texts(concept_NK, style_NKP)))


def _count_common(world: scm.World, concept_NK: np.ndarray) -> np.ndarray:
    """Return the number of z_inv of the support that all tokens of each text share, int (N,)."""
    held_NS = scm.count_concepts(concept_NK) @ scm.count_concepts(world.support_S5).T
    return (held_NS == (concept_NK >= 0).sum(axis=1, keepdims=True)).sum(axis=1)
