"""Statistics of the drawn worlds: an interval of the AUC, of a draw, and what an embedding determines.

N rows, M of the other kind or dims of a latent, D dims of an embedding; F rows are fitted, R the rest.
"""

import math
from itertools import accumulate

import numpy as np

from raycomp.config.options import check
from raycomp.core.metrics import Z_95, auc, share_below
from raycomp.core.probe import draw_folds

# Relative to the sum of the kernel's eigenvalues, which is the number of rows.
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3)


def auc_interval(positive_N: np.ndarray, negative_M: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of ``auc`` by DeLong et al. 1988, cut to [0, 1].

    (nan, nan) if there is none: with fewer than 2 of either kind, or if the estimated variance is 0 (perfect
    separation, all scores equal), which gives no information on other samples.
    """
    middle = auc(positive_N, negative_M)
    if min(len(positive_N), len(negative_M)) < 2:
        return float("nan"), float("nan")
    share_N = share_below(positive_N, negative_M)
    share_M = 1 - share_below(negative_M, positive_N)
    half = Z_95 * np.sqrt(share_N.var(ddof=1) / len(share_N) + share_M.var(ddof=1) / len(share_M))
    if half == 0:
        return float("nan"), float("nan")
    return float(max(middle - half, 0)), float(min(middle + half, 1))


def drawn_interval(num_rows: int, num_marked: int, num_drawn: int) -> tuple[float, int, int]:
    """Return the number of marked rows in a draw without replacement: the mean, and the central 95 % of
    draws.

    The hypergeometric distribution in whole numbers, so exact; meant for thousands of rows. ValueError if
    more rows are marked or drawn than exist.
    """
    for name, value in (("num_marked", num_marked), ("num_drawn", num_drawn)):
        check(0 <= value <= num_rows, name, value, f"between 0 and num_rows={num_rows}")
    # scipy's quantile is wrong if a tail is exactly 1 / 40.
    least, most = max(0, num_drawn + num_marked - num_rows), min(num_marked, num_drawn)
    ways = [
        math.comb(num_marked, count) * math.comb(num_rows - num_marked, num_drawn - count)
        for count in range(least, most + 1)
    ]
    below = list(accumulate(ways))
    low = next(count for count, part in enumerate(below, least) if 40 * part >= below[-1])
    high = next(count for count, part in enumerate(below, least) if 40 * part >= 39 * below[-1])
    return num_drawn * num_marked / max(num_rows, 1), low, high


def held_out_r2(
    embedding_ND: np.ndarray, latent_NM: np.ndarray, group_N: np.ndarray, rng: np.random.Generator
) -> float:
    """Return how much of a latent an embedding determines: R^2 of kernel regression on held-out groups.

    Block identifiability allows any map, not only a linear one (Daunhawer et al., arXiv:2303.09166): the
    kernel is Gaussian, as wide as the median distance. Half of the groups are for fitting, a quarter for
    choosing the ridge and a quarter for testing. 1: determined; 0: no better than the mean; below 0 by
    chance. Squares are summed over the M dims of the latent.
    """
    part_N = np.array([0, 0, 1, 2])[draw_folds(group_N, 4, rng)]
    fit_N = part_N == 0
    square_FF = _square_distance(embedding_ND[fit_N], embedding_ND[fit_N])
    width = np.median(square_FF[square_FF > 0]) if (square_FF > 0).any() else 1.0
    mean_M = latent_NM[fit_N].mean(axis=0)
    value, vector_FF = np.linalg.eigh(np.exp(-square_FF / width))
    turned_FM = vector_FF.T @ (latent_NM[fit_N] - mean_M)
    kernel_RF = np.exp(-_square_distance(embedding_ND[~fit_N], embedding_ND[fit_N]) / width) @ vector_FF
    rest_RM, is_test_R = latent_NM[~fit_N] - mean_M, part_N[~fit_N] == 2
    scores = []
    for ridge in RIDGES:
        error_RM = rest_RM - kernel_RF @ (turned_FM / (np.maximum(value, 0) + ridge)[:, None])
        parts = [(error_RM[at_R], rest_RM[at_R]) for at_R in (~is_test_R, is_test_R)]
        scores.append([(error**2).sum() / (rest**2).sum() for error, rest in parts])
    return float(1 - min(scores)[1])


def _square_distance(a_ND: np.ndarray, b_MD: np.ndarray) -> np.ndarray:
    square_NM = (a_ND**2).sum(axis=1)[:, None] + (b_MD**2).sum(axis=1) - 2 * a_ND @ b_MD.T
    return np.maximum(square_NM, 0)
