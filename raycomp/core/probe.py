"""How far an edit moves an encoder's embeddings, as functions of arrays (arXiv:2510.26302, section 5.2).

The paper takes the A-distance (``core/distance.py``) between embeddings of captions T and of edited captions
T~: near 0 means that a classifier cannot separate the two sets. But no classifier can if the two sets have
one distribution. SWAP is its own inverse: if T~ is as likely a caption as T ("a cube on a ball", "a ball on a
cube") the sets are equal, and the A-distance of even a perfect encoder is 0. It compares sets, not pairs. The
paired distance |g(T) - g(T~)| measures whether a caption is separated from its own edit. It is compared with
that of paraphrases and, with the image, by which of the two texts is nearer to the image.

Letters: N pairs of a text and its edit, row i with row i; D dims, R draws. ``group_N`` holds each pair's uid,
as any values that can be compared for equality; a uid may have several pairs, which stay together.
"""

from typing import NamedTuple

import numpy as np

from raycomp.core.distance import draw_folds

# Similarities this close count as equal: another order of addition moves them by less.
TIE = 1e-6
# Relative to the sum of the kernel's eigenvalues, which is the number of rows.
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3)


class Interval(NamedTuple):
    """A value and its 95 % interval; NaN if there is none."""

    value: float
    low: float
    high: float

    def under(self, name: str, over: str = "") -> dict[str, float]:
        """Return parts of a plain row, as ``table.take_estimate`` reads them: the ends are NAME_low and
        NAME_high; ``over`` is inserted if a row has intervals of several kinds."""
        return {name: self.value, f"{name}{over}_low": self.low, f"{name}{over}_high": self.high}


_NO_ENDS = (float("nan"), float("nan"))
NO_INTERVAL = Interval(float("nan"), *_NO_ENDS)


def pair_distance(first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
    """Return |g(T) - g(T~)| of each pair, 0 within ``TIE``, float64 (N,): in [0, 2] for length 1."""
    distance_N = np.linalg.norm(np.float64(first_ND) - np.float64(second_ND), axis=1)
    return np.where(distance_N <= TIE, 0.0, distance_N)


def pair_similarity(first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
    """Return the inner product of each pair, float64 (N,): the cosine for embeddings of length 1."""
    return (np.float64(first_ND) * np.float64(second_ND)).sum(axis=1)


def two_way_choice(image_ND: np.ndarray, first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
    """Return 1 if the image is nearer to T than to T~, 0 if not, 1/2 within ``TIE``, float64 (N,).

    The mean is the accuracy of the choice; chance, and an encoder with one embedding for both, give 0.5.
    """
    return count_wins(pair_similarity(image_ND, first_ND) - pair_similarity(image_ND, second_ND))


def count_wins(lead_N: np.ndarray) -> np.ndarray:
    """Return 1 if a lead is above 0, 0 if it is below, 1/2 within ``TIE``, float64 (N,)."""
    return (lead_N > TIE) + (np.abs(lead_N) <= TIE) / 2


def bootstrap_ratio(
    above_N: np.ndarray,
    below_N: np.ndarray,
    group_N: np.ndarray,
    rng: np.random.Generator,
    num_draws: int = 200,
) -> Interval:
    """Return sum(above) / sum(below) with the percentile interval over ``num_draws`` resamples of groups.

    With ``below_N`` of ones it is a mean. NaN if below sums to 0 (such a draw is left out). No interval if
    all draws agree (one group, an accuracy of 1): they give no information on other samples.
    """
    groups, which_N = np.unique(group_N, return_inverse=True)
    if not len(groups):
        return NO_INTERVAL
    above_G = np.bincount(which_N, above_N)
    below_G = np.bincount(which_N, below_N)
    if not below_G.sum():
        return NO_INTERVAL
    times_RG = rng.multinomial(len(groups), np.full(len(groups), 1 / len(groups)), num_draws)
    above_R, below_R = times_RG @ above_G, times_RG @ below_G
    drawn_R = above_R[below_R > 0] / below_R[below_R > 0]
    value = float(above_G.sum() / below_G.sum())
    ends = np.percentile(drawn_R, [2.5, 97.5]).tolist() if np.ptp(drawn_R) > 1e-9 else _NO_ENDS
    return Interval(value, *ends)


def shuffle_words(caption: str, share: float, rng: np.random.Generator) -> str:
    """Return the caption with ``share`` of its words, at least two, permuted so that none keeps its position.

    White space separates words. With share 0, or fewer than two words, return the caption itself.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share={share}: must be in [0, 1]")
    words = caption.split()
    if share == 0 or len(words) < 2:
        return caption
    chosen = rng.permutation(len(words))[: max(2, round(share * len(words)))]
    moved = list(words)
    for to, source in zip(chosen, np.roll(chosen, 1), strict=True):
        moved[to] = words[source]
    return " ".join(moved)


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
