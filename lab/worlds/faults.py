"""Planted faults: the fault of each pair is known, so scores can be evaluated by the faults they find.

``fault_table`` compares scores over whole rankings, by their AUC; ``count_kept`` compares the subsets that
rules keep at one budget. N rows; ``kept_N`` and ``pool_N`` are bool. The pool is the rows that the second
gate of cpi ranks.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lab.statistics import auc_interval, drawn_interval
from lab.worlds.captions import claim_of, describe
from lab.worlds.negatives import hard_negatives
from lab.worlds.scenes import SHAPES, Pairs, Scene, draw_scene, is_true
from raycomp.core.metrics import Z_95, auc, share_interval
from raycomp.table import Estimate
from raycomp.words import ATTRIBUTE, OBJECT, RELATION, REPLACE

NO_FAULT = "none"
TAILS = (
    " - stock photo, free download, click here for more",
    " | buy posters and prints online, best price guaranteed",
    ", royalty free image, sign up today for unlimited access",
    " - share this on your favourite site, all rights reserved",
)
# Share of a truncated file that stays: well inside the picture data, so that decoding fails.
CUT = (0.2, 0.6)

Fault = Callable[[Scene, int, bytes, np.random.Generator, Pairs | None], tuple[str, bytes]]
"""From a scene, the template of its caption, its picture and the pairs that captions may name."""


def mismatched_caption(
    scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the caption of another scene, false for this one."""
    other = draw_scene(rng, pairs)
    while is_true(claim_of(other, template), scene):
        other = draw_scene(rng, pairs)
    return describe(other, template), image


def replace_word(
    kind: str, scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the caption with one shape, one colour or size, or one relation replaced so that it is false."""
    negatives = hard_negatives(scene, template, pairs)
    captions = [n.caption for n in negatives if (n.operation, n.kind) == (REPLACE, kind)]
    return captions[rng.integers(len(captions))], image


def boilerplate_tail(
    scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the true caption followed by words that no picture shows."""
    return describe(scene, template) + TAILS[rng.integers(len(TAILS))], image


def corrupt_image(
    scene: Scene, template: int, image: bytes, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[str, bytes]:
    """Return the true caption with truncated image bytes, or bytes that are no image."""
    if rng.integers(2):
        return describe(scene, template), image[: int(len(image) * rng.uniform(*CUT))]
    return describe(scene, template), rng.bytes(len(image))


FAULTS: Mapping[str, Fault] = {
    "mismatched_caption": mismatched_caption,
    "wrong_object": partial(replace_word, OBJECT),
    "wrong_attribute": partial(replace_word, ATTRIBUTE),
    "wrong_relation": partial(replace_word, RELATION),
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


@dataclass(frozen=True)
class FaultRow:
    """One planted fault and the AUC of both scores, on the same rows."""

    fault: str
    num_planted: int
    num_scored: int
    """Faulty rows that have both scores; only these count."""
    num_clean: int
    """Clean rows that have both scores: the other side of each AUC."""
    alignment: Estimate | None
    """AUC of clean against faulty pairs: the chance that a clean one scores above a faulty one, with its 95 %
    interval by DeLong. 0.5 is chance; below it faulty pairs score higher. None if a side is empty."""
    mean_pas: Estimate | None


def fault_table(
    fault_N: Sequence[str] | np.ndarray, alignment_N: np.ndarray, pas_N: np.ndarray
) -> list[FaultRow]:
    """Return one row per fault that occurs, by name; missing scores are NaN.

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


ALL_FAULTS = "all faults"
MANY_PHRASES = 5


@dataclass(frozen=True)
class KeptShare:
    """``part`` of ``whole`` rows, and the ends of the share's 95 % interval."""

    part: float
    """For a random draw the mean over all draws, so not always a whole number."""
    whole: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """NaN without rows."""
        return self.part / self.whole if self.whole else float("nan")


@dataclass(frozen=True)
class KindCount:
    """The number of rows of one kind, and the number that each rule keeps."""

    what: str
    num_rows: int
    num_pooled: int
    by_rule: dict[str, KeptShare]
    """Intervals after Wilson: over other worlds, with fixed gates."""
    drawn: KeptShare
    """A draw from the pool of as many rows as cpi keeps, over all draws: the mean and the central 95 % of a
    hypergeometric distribution, exact. The interval is over draws from this world, not over worlds."""


def count_kept(
    groups: Mapping[str, np.ndarray], kept: Mapping[str, np.ndarray], pool_N: np.ndarray, num_drawn: int
) -> list[KindCount]:
    """Return one row per group, a name and its rows as bool [N], with the number that each rule keeps.

    ValueError if a draw needs more rows than the pool has.
    """
    rows = []
    for what, group_N in groups.items():
        whole, pooled = int(group_N.sum()), int((group_N & pool_N).sum())
        parts = {rule: int((group_N & kept_N).sum()) for rule, kept_N in kept.items()}
        shares = {rule: KeptShare(part, whole, *share_interval(part, whole)) for rule, part in parts.items()}
        mean, low, high = drawn_interval(int(pool_N.sum()), pooled, num_drawn)
        drawn = KeptShare(mean, whole, low / max(whole, 1), high / max(whole, 1))
        rows.append(KindCount(what, whole, pooled, shares, drawn))
    return rows


def group_faults(fault_N: Sequence[str] | np.ndarray) -> dict[str, np.ndarray]:
    """Return the rows of each planted fault, by name, and of all faults."""
    fault_N = np.asarray(fault_N, dtype=str)
    faults = sorted(set(fault_N.tolist()) - {NO_FAULT})
    return {**{fault: fault_N == fault for fault in faults}, ALL_FAULTS: fault_N != NO_FAULT}


def group_traits(captions: Sequence[str], num_phrases_N: np.ndarray) -> dict[str, np.ndarray]:
    """Return the rows by the content of their captions: number of things, number of phrases, each shape."""
    shapes = [[word for word in re.findall(r"\w+", caption) if word in SHAPES] for caption in captions]
    num_things_N = np.array([len(found) for found in shapes])
    groups = {f"{count} things": num_things_N == count for count in (2, 3)}
    groups |= {f"{count} phrases": num_phrases_N == count for count in range(1, MANY_PHRASES)}
    groups[f"{MANY_PHRASES} phrases or more"] = num_phrases_N >= MANY_PHRASES
    groups |= {f"a {shape}": np.array([shape in found for found in shapes]) for shape in SHAPES}
    return {what: group_N for what, group_N in groups.items() if group_N.any()}


def compare_kept(first_N: np.ndarray, second_N: np.ndarray) -> tuple[float, float, float]:
    """Return how many more of N rows the first selection keeps than the second, with its 95 % interval.

    Paired, because both select among the same rows: N times the mean of the rows' own differences, +- 1.96 of
    its standard errors. A selection is bool, or each row's chance for a draw. NaN ends below 2 rows.
    """
    more_N = np.asarray(first_N, np.float64) - np.asarray(second_N, np.float64)
    total = float(more_N.sum())
    if len(more_N) < 2:
        return total, float("nan"), float("nan")
    half = Z_95 * float(np.sqrt(len(more_N) * more_N.var(ddof=1)))
    return total, total - half, total + half
