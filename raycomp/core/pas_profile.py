"""Correlates of PAS over a set of pairs: alignment, text-only measures, displacement of the text embedding.

N pairs that have a PAS, P targets that have a drop.
"""

from typing import NamedTuple

import numpy as np

from raycomp.core.metrics import correlation_interval, pearson
from raycomp.core.regression import CrossMoments, LinearFit

PAPER_ALIGNMENT, PAPER_DISPLACEMENT = 0.084, -0.215
"""Pearson correlations of Go et al. (arXiv 2605.22651, section 7): CC3M, ViT-B/16, inside the pool."""
_LEAST = 4
_TEXT = ("num_words", "num_targets", "displacement")


class Agreement(NamedTuple):
    """A correlation or a share of the variance, -1 to 1; NaN with too few pairs or no variance."""

    value: float
    low: float
    high: float
    """Ends of the 95 % interval; NaN if there is none."""
    num: int


class PasProfile(NamedTuple):
    """Correlates of PAS."""

    alignment: Agreement
    """Pearson correlation of PAS and alignment over pairs."""
    displacement: Agreement
    """Pearson correlation of drop and displacement over targets; the interval counts pairs, whose targets may
    all agree."""
    text: Agreement
    """R^2 of PAS on text-only measures: the number of words, the number of targets, their mean displacement.
    Without an interval."""


def profile_pas(
    alignment_N: np.ndarray,
    pas_N: np.ndarray,
    text_N3: np.ndarray,
    drop_P: np.ndarray,
    displacement_P: np.ndarray,
) -> PasProfile:
    """Return the correlates of PAS.

    ``text_N3``: words of the caption, targets with a drop, their mean displacement.
    """
    nan = float("nan")
    fit = LinearFit.of(_TEXT, CrossMoments.of([*text_N3.T, pas_N])) if len(pas_N) >= 2 * _LEAST else None
    explained = nan if fit is None or fit.explained is None else fit.explained
    return PasProfile(
        _correlate(alignment_N, pas_N, len(pas_N)),
        _correlate(displacement_P, drop_P, min(len(pas_N), len(drop_P))),
        Agreement(explained, nan, nan, len(pas_N)),
    )


def _correlate(x_N: np.ndarray, y_N: np.ndarray, num: int) -> Agreement:
    """Return the correlation of two columns, with the interval for ``num`` independent rows."""
    nan = float("nan")
    if num < _LEAST or not np.ptp(x_N) or not np.ptp(y_N):
        return Agreement(nan, nan, nan, len(x_N))
    r = pearson(np.asarray(x_N, np.float64), np.asarray(y_N, np.float64))
    return Agreement(r, *correlation_interval(r, num), len(x_N))
