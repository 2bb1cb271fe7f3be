"""Planted faults: what is wrong with a pair is known, so scores can be judged by what they find."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raycomp.core.metrics import auc, auc_interval
from raycomp.table import Estimate
from raycomp.words import ATTRIBUTE, OBJECT, RELATION, REPLACE
from raycomp.worlds.captions import claim_of, describe
from raycomp.worlds.negatives import hard_negatives
from raycomp.worlds.pairs import Pairs
from raycomp.worlds.scenes import Scene, draw_scene, is_true

NO_FAULT = "none"
TAILS = (
    " - stock photo, free download, click here for more",
    " | buy posters and prints online, best price guaranteed",
    ", royalty free image, sign up today for unlimited access",
    " - share this on your favourite site, all rights reserved",
)
# How much of a cut file stays: well inside the picture data, so that it cannot decode.
CUT = (0.2, 0.6)

Fault = Callable[[Scene, int, bytes, np.random.Generator, Pairs | None], tuple[str, bytes]]
"""Of a scene, the template of its caption, its picture and the pairs that captions may name."""


def mismatched_caption(
    scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the caption of another scene, false for this one."""
    other = draw_scene(rng, pairs)
    while is_true(claim_of(other, template), scene):
        other = draw_scene(rng, pairs)
    return describe(other, template), image


def wrong_object(
    scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the caption with one shape replaced so that it is false."""
    return _replaced(scene, template, OBJECT, rng, pairs), image


def wrong_attribute(
    scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the caption with one colour or size replaced so that it is false."""
    return _replaced(scene, template, ATTRIBUTE, rng, pairs), image


def wrong_relation(
    scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the caption with one relation replaced so that it is false."""
    return _replaced(scene, template, RELATION, rng, pairs), image


def boilerplate_tail(
    scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the true caption with words behind it that no picture shows."""
    return describe(scene, template) + TAILS[rng.integers(len(TAILS))], image


def corrupt_image(
    scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the true caption beside image bytes that are cut off, or none of an image at all."""
    if rng.integers(2):
        return describe(scene, template), image[: int(len(image) * rng.uniform(*CUT))]
    return describe(scene, template), rng.bytes(len(image))


FAULTS: Mapping[str, Fault] = {
    "mismatched_caption": mismatched_caption,
    "wrong_object": wrong_object,
    "wrong_attribute": wrong_attribute,
    "wrong_relation": wrong_relation,
    "boilerplate_tail": boilerplate_tail,
    "corrupt_image": corrupt_image,
}
# Few corrupt images: with more than max_bad_fraction of them a run stops.
DEFAULT_MIX: Mapping[str, float] = {
    "mismatched_caption": 0.19,
    "wrong_object": 0.19,
    "wrong_attribute": 0.19,
    "wrong_relation": 0.19,
    "boilerplate_tail": 0.19,
    "corrupt_image": 0.05,
}


def _replaced(scene: Scene, template: int, kind: str, rng: np.random.Generator, pairs: Pairs | None) -> str:
    negatives = hard_negatives(scene, template, pairs)
    captions = [n.caption for n in negatives if (n.operation, n.kind) == (REPLACE, kind)]
    return captions[rng.integers(len(captions))]


@dataclass(frozen=True)
class FaultRow:
    """One planted fault and what the two scores make of it, on the same rows."""

    fault: str
    num_planted: int
    num_scored: int
    """Faulty rows that have both scores; only these are judged."""
    num_clean: int
    """Clean rows that have both scores: the other side of each AUC."""
    alignment: Estimate | None
    """AUC of clean against faulty pairs: the chance that a clean one scores above a faulty one, with its 95 %
    interval by DeLong. 0.5 finds nothing; below it the faulty pairs score higher. None without rows on either
    side."""
    mean_pas: Estimate | None


def fault_table(
    fault_N: Sequence[str] | np.ndarray, alignment_N: np.ndarray, pas_N: np.ndarray
) -> list[FaultRow]:
    """Return one row per fault that occurs, by name; scores that a row lacks are NaN.

    ``fault_N`` holds "none" or a fault's name; ``alignment_N`` and ``pas_N`` are the columns of scores/.
    """
    fault_N = np.asarray(fault_N, dtype=str)
    if not len(fault_N) == len(alignment_N) == len(pas_N):
        raise ValueError(f"rows of fault, alignment, pas: {len(fault_N)}, {len(alignment_N)}, {len(pas_N)}")
    scored_N = np.isfinite(alignment_N) & np.isfinite(pas_N)
    clean_N = scored_N & (fault_N == NO_FAULT)
    rows = []
    for fault in sorted(set(fault_N.tolist()) - {NO_FAULT}):
        faulty_N = scored_N & (fault_N == fault)
        rows.append(
            FaultRow(
                fault=fault,
                num_planted=int((fault_N == fault).sum()),
                num_scored=int(faulty_N.sum()),
                num_clean=int(clean_N.sum()),
                alignment=_separate(alignment_N[clean_N], alignment_N[faulty_N]),
                mean_pas=_separate(pas_N[clean_N], pas_N[faulty_N]),
            )
        )
    return rows


def _separate(clean_N: np.ndarray, faulty_M: np.ndarray) -> Estimate | None:
    if not (len(clean_N) and len(faulty_M)):
        return None
    return Estimate(auc(clean_N, faulty_M), *auc_interval(clean_N, faulty_M), chance=0.5)
