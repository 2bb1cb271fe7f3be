"""The arms: which of a world's N pairs are trained on, chosen in memory from the scores of a curation."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import exact_share
from raycomp.core.selection import parse_uids, random_scores
from raycomp.curate.arm import find_arm
from raycomp.curate.config import AlignConfig, AttributeConfig, CurateConfig, SelectConfig
from raycomp.curate.measures import corpus_columns
from raycomp.curate.select import choose_tables
from raycomp.study.cells import ALIGN, CPI, DRAWN_IN_POOL, FULL, ORACLE, RANDOM
from raycomp.words import KEPT, UID
from raycomp.worlds.faults import NO_FAULT

FAULT = "fault"
KEEP = 0.5
RULES = {CPI: "cpi", ALIGN: "align_only", DRAWN_IN_POOL: "align70_random50", RANDOM: "random"}


def choose_rows(scores: pa.Table, arm: str, seed: int) -> np.ndarray:
    """Return the rows of an arm, rising; of all arms but ``full`` exactly half of the N rows.

    ``scores``: the columns of a curation's scores that its rules read, and ``fault``, null or "none" for a
    pair without one. ``seed`` draws the random arms; cpi50 and align50 follow from the scores alone. oracle50
    draws from the pairs without a fault. Raises ValueError where an arm has fewer rows than it should.
    """
    if arm == FULL:
        return np.arange(len(scores))
    rows = _draw_clean(scores, seed) if arm == ORACLE else _choose(scores, RULES[arm], seed)
    wanted = exact_share(KEEP, len(scores))
    if len(rows) != wanted:
        raise ValueError(
            f"{arm}: has {len(rows)} of the {wanted} pairs that it should; give a world more pairs"
        )
    return rows


def _choose(scores: pa.Table, rule: str, seed: int) -> np.ndarray:
    how = AttributeConfig(keep=KEEP, pool=1.0)
    config = CurateConfig(align=AlignConfig(0.7), attribute=how, select=SelectConfig(rule), seed=seed)
    arm = find_arm(config)
    _, judged = choose_tables([scores.select(corpus_columns(arm, with_attribute=True))], arm)
    return np.flatnonzero(judged[0][0] == KEPT)


def count_faults(scores: pa.Table, row_N: np.ndarray) -> dict[str, int]:
    """Return how many of these rows have each fault, "none" among them."""
    return dict(sorted(Counter(_list_faults(scores)[row_N].tolist()).items()))


def _list_faults(scores: pa.Table) -> np.ndarray:
    return np.array(pc.fill_null(scores[FAULT], NO_FAULT).to_pylist())


def _draw_clean(scores: pa.Table, seed: int) -> np.ndarray:
    clean = np.flatnonzero(_list_faults(scores) == NO_FAULT)
    drawn_N = random_scores(parse_uids(scores[UID]), seed)[clean]
    return np.sort(clean[np.argsort(-drawn_N, kind="stable")[: exact_share(KEEP, len(scores))]])
