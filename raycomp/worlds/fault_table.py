"""How well each score finds each planted fault."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raycomp.core.metrics import auc, auc_interval
from raycomp.table import Estimate
from raycomp.worlds.faults import NO_FAULT


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
