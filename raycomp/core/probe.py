"""How far an edit moves an encoder's embeddings, as functions of arrays (arXiv:2510.26302, section 5.2).

The paper takes the proxy A-distance (Ben-David et al. 2007) between embeddings of captions T and of edited
captions T~: near 0 says that a linear classifier cannot tell the two sets apart. But neither can it where the
two sets have one distribution. SWAP is its own inverse: where T~ is as likely a caption as T ("a cube on a
ball", "a ball on a cube") the sets are equal, and the A-distance of even a perfect encoder is 0. It compares
sets, not pairs. Whether a caption is told from its own edit is seen in the paired distance |g(T) - g(T~)|,
read against that of paraphrases, and, with the image, in which of the two it is nearer to.

Letters: N pairs of a text and its edit, row i with row i; D dims, R draws. ``group_N`` holds each pair's uid,
as any values that compare equal; a uid may have several pairs and is never torn.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from raycomp.core.phrases import Phrase
from raycomp.schema import OBJECT

# Similarities this close count as equal: adding in another order moves them by less.
TIE = 1e-6
NUM_FOLDS = 5
# Of the mean variance over D: what the ridge adds to each direction's.
RIDGE = 0.1
# Of the kernel's eigenvalues, whose sum is the number of rows.
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3)


class Interval(NamedTuple):
    """A value and its 95 % interval; NaN where there is none."""

    value: float
    low: float
    high: float


class ADistance(NamedTuple):
    """Proxy A-distance in [0, 2], its 95 % interval, and mean and central 95 % of its null."""

    value: float
    low: float
    high: float
    null_mean: float
    null_low: float
    null_high: float


_NO_ENDS = (float("nan"), float("nan"))
NO_INTERVAL = Interval(float("nan"), *_NO_ENDS)
NO_DISTANCE = ADistance(*[float("nan")] * 6)


def draw_folds(group_N: np.ndarray, num_folds: int, rng: np.random.Generator) -> np.ndarray:
    """Return each pair's fold, int (N,): groups stay whole and folds differ by at most one group."""
    groups, which_N = np.unique(group_N, return_inverse=True)
    return rng.permutation(np.arange(len(groups)) % num_folds)[which_N]


def proxy_a_distance(
    first_ND: np.ndarray,
    second_ND: np.ndarray,
    group_N: np.ndarray,
    rng: np.random.Generator,
    num_draws: int = 200,
) -> ADistance:
    """Return 2 (1 - 2 err) between two sets of embeddings, cut to [0, 2].

    ``err`` is the held-out error, over ``NUM_FOLDS`` folds of whole groups, of a linear classifier: least
    squares on labels +1 and -1 with a ridge of ``RIDGE`` times the mean variance, in closed form; an output
    of exactly 0 is half an error. Cut at 0 because finite sets can have an error above 1/2 (a text that is
    in the first set in one fold and in the second in another misleads), but a distance is not negative.

    The interval resamples groups, with the classifiers as they are. The null exchanges first and second of
    all pairs of a group at once, by coins. With fewer groups than folds all is NaN.
    """
    if first_ND.shape != second_ND.shape or len(first_ND) != len(group_N):
        shapes = f"{first_ND.shape}, {second_ND.shape} and {len(group_N)} groups"
        raise ValueError(f"pairs of {shapes}: must be as many rows, of as many dims")
    groups, which_N = np.unique(group_N, return_inverse=True)
    if len(groups) < NUM_FOLDS:
        return NO_DISTANCE
    fold_N = draw_folds(group_N, NUM_FOLDS, rng)
    coin_GR = rng.choice([-1.0, 1.0], (len(groups), num_draws))
    label_NR = np.concatenate([np.ones((len(groups), 1)), coin_GR], axis=1)[which_N]
    error_NR = _held_out_errors(np.float64(first_ND), np.float64(second_ND), fold_N, label_NR)
    null_R = _to_distance(error_NR[:, 1:].mean(axis=0))
    interval = bootstrap_ratio(error_NR[:, 0], np.ones(len(error_NR)), group_N, rng, num_draws)
    value, high, low = _to_distance(np.array(interval)).tolist()
    return ADistance(value, low, high, float(null_R.mean()), *_percentiles(null_R))


def _to_distance(error: np.ndarray) -> np.ndarray:
    return np.clip(2 * (1 - 2 * error), 0, 2)


def _held_out_errors(
    first_ND: np.ndarray, second_ND: np.ndarray, fold_N: np.ndarray, label_NR: np.ndarray
) -> np.ndarray:
    """Return each pair's mean error (N, R) where ``label_NR`` labels the first and its negative the second.

    As both labels are equally many, centred least squares needs no intercept.
    """
    error_NR = np.empty(label_NR.shape)
    for fold in range(fold_N.max() + 1):
        test_N = fold_N == fold
        train_XD = np.concatenate([first_ND[~test_N], second_ND[~test_N]])
        label_XR = np.concatenate([label_NR[~test_N], -label_NR[~test_N]])
        mean_D = train_XD.mean(axis=0)
        weight_DR = _solve_ridge(train_XD - mean_D, label_XR)
        for_first_MR = ((first_ND[test_N] - mean_D) @ weight_DR) * label_NR[test_N]
        for_second_MR = ((second_ND[test_N] - mean_D) @ weight_DR) * -label_NR[test_N]
        wrong_MR = [(out < 0) + (out == 0) / 2 for out in (for_first_MR, for_second_MR)]
        error_NR[test_N] = (wrong_MR[0] + wrong_MR[1]) / 2
    return error_NR


def _solve_ridge(x_XD: np.ndarray, y_XR: np.ndarray) -> np.ndarray:
    scatter_DD = x_XD.T @ x_XD
    ridge = RIDGE * np.trace(scatter_DD) / len(scatter_DD)
    return np.linalg.solve(scatter_DD + max(ridge, 1e-12) * np.eye(len(scatter_DD)), x_XD.T @ y_XR)


def pair_distance(first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
    """Return |g(T) - g(T~)| of each pair, 0 within ``TIE``, float64 (N,): in [0, 2] for length 1."""
    distance_N = np.linalg.norm(np.float64(first_ND) - np.float64(second_ND), axis=1)
    return np.where(distance_N <= TIE, 0.0, distance_N)


def pair_similarity(first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
    """Return the inner product of each pair, float64 (N,): the cosine for embeddings of length 1."""
    return (np.float64(first_ND) * np.float64(second_ND)).sum(axis=1)


def two_way_choice(image_ND: np.ndarray, first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
    """Return 1 where the image is nearer to T than to T~, 0 where not, 1/2 within ``TIE``, float64 (N,).

    The mean is the accuracy of the choice; chance, and an encoder that gives both one embedding, has 0.5.
    """
    lead_N = pair_similarity(image_ND, first_ND) - pair_similarity(image_ND, second_ND)
    return (lead_N > TIE) + (np.abs(lead_N) <= TIE) / 2


def bootstrap_ratio(
    above_N: np.ndarray,
    below_N: np.ndarray,
    group_N: np.ndarray,
    rng: np.random.Generator,
    num_draws: int = 200,
) -> Interval:
    """Return sum(above) / sum(below) with the percentile interval over ``num_draws`` resamples of groups.

    With ``below_N`` of ones that is a mean. NaN where below sums to 0 (a draw that does is left out). No
    interval where all draws agree (one group, an accuracy of 1): that says nothing about other samples.
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
    return Interval(value, *_percentiles(drawn_R)) if np.ptp(drawn_R) > 1e-9 else Interval(value, *_NO_ENDS)


def _percentiles(drawn_R: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(drawn_R, [2.5, 97.5])
    return float(low), float(high)


def shuffle_words(caption: str, share: float, rng: np.random.Generator) -> str:
    """Return the caption with ``share`` of its words, at least two, on one another's places, none on its own.

    Words are what white space parts. With share 0, or fewer than two words, the caption itself.
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
    """Return how much of a latent an embedding determines: R^2 of kernel regression on groups not seen.

    Block identifiability asks for any map, not a linear one (Daunhawer et al., arXiv:2303.09166): the kernel
    is Gaussian, as wide as the median distance. Half of the groups are for fitting, a quarter for choosing
    the ridge and a quarter for testing. 1: determined; 0: no better than the mean, and below where chance
    misleads. Squares are summed over the M dims of the latent.
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


def swap_conjuncts(text: str, phrases: Sequence[Phrase]) -> str | None:
    """Return the text with the first two conjoined objects in the other order: it says the same.

    "A dog and a cat sleep" becomes "A cat and a dog sleep". None where no two phrases stand side by side with
    just "and" between them.
    """
    for first, second in pairwise(phrases):
        if (first.kind, second.kind) != (OBJECT, OBJECT) or text[first.end : second.start] != " and ":
            continue
        left, right = text[first.start : first.end], text[second.start : second.end]
        if left[:1].isupper() and first.start == 0:
            left, right = left[0].lower() + left[1:], right[0].upper() + right[1:]
        return f"{text[: first.start]}{right} and {left}{text[second.end :]}"
    return None
