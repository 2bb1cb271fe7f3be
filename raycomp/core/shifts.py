"""Shares of a concept among the kept rows of two subsets of one pool, and whether they differ.

V concepts; three groups of rows: kept in both, only in the first (lost), only in the second (gained). A row
has a concept or not.
"""

from typing import NamedTuple

import numpy as np

from raycomp.core.metrics import Z_95

BOTH, LOST, GAINED = range(3)


class Shifts(NamedTuple):
    """The second subset's shares minus the first's, [V] each; NaN where a subset is empty."""

    first: np.ndarray
    second: np.ndarray
    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """Ends of the 95 % interval, from -1 to 1; it excludes 0 exactly where ``p`` is below 0.05."""
    p: np.ndarray
    """Two-sided, of the hypothesis that both subsets have the same share; 1 without a changed row."""


def find_shifts(count_3V: np.ndarray, size_3: np.ndarray) -> Shifts:
    """Test whether concepts are as frequent in the second subset as in the first.

    ``count_3V``: rows that have the concept, by group; ``size_3``: rows of each group. A score test for
    paired rows: the difference of shares is a sum over rows, each with the weight 1 / second size if the
    second keeps it, minus 1 / first size if the first does. A row of both subsets weighs nothing where these
    are of one size, and only changed rows count. For a rare concept z is then that of McNemar (1947),
    (gained - lost) / sqrt(gained + lost). Where the second is a part of the first, lost rows are compared
    with kept ones. The variance is the larger of two: the sum of squares about the common share, as in
    McNemar's, and the one expected at that share. So a few rows cannot give a small p.
    """
    from scipy.special import ndtr  # slow to import

    count_3V = np.asarray(count_3V, np.float64)
    both, lost, gained = (float(size) for size in size_3)
    num_first, num_second = both + lost, both + gained
    if not num_first or not num_second:
        nan_V = np.full(count_3V.shape[1], np.nan)
        return Shifts(nan_V, nan_V, nan_V, nan_V, nan_V, np.ones_like(nan_V))
    in_first_V, in_second_V = count_3V[BOTH] + count_3V[LOST], count_3V[BOTH] + count_3V[GAINED]
    difference_V = in_second_V / num_second - in_first_V / num_first
    weight_3 = np.array([1 / num_second - 1 / num_first, -1 / num_first, 1 / num_second])
    common_V = (in_first_V + in_second_V) / (num_first + num_second)
    without_3V = np.array([both, lost, gained])[:, None] - count_3V
    found_V = weight_3**2 @ (count_3V * (1 - common_V) ** 2 + without_3V * common_V**2)
    expected_V = float(weight_3**2 @ np.array([both, lost, gained])) * common_V * (1 - common_V)
    error_V = np.sqrt(np.maximum(found_V, expected_V))
    has_error_V = error_V > 0
    z_V = np.divide(difference_V, error_V, out=np.zeros_like(error_V), where=has_error_V)
    reach_V = Z_95 * error_V
    return Shifts(
        in_first_V / num_first,
        in_second_V / num_second,
        difference_V,
        np.maximum(difference_V - reach_V, -1.0),
        np.minimum(difference_V + reach_V, 1.0),
        2 * ndtr(-np.abs(z_V)),
    )
