"""Choose negatives that a judge without the image cannot distinguish from their captions.

A judge of text alone sees a pair of a caption and its negative through features: differences, caption minus
negative, of word counts, of likelihoods, of lengths. A linear judge learns nothing from a set of pairs if
and only if every feature's sum over the set is 0: that sum is the derivative of its logistic loss at weight
0. So the candidates are weighted by exponential tilting until all sums are 0, and one candidate per caption
is drawn by these weights. What the draw leaves unbalanced is cut by ``balance``: as many pairs in each bin
of a grid over likelihood and length as in the mirrored bin (the grid of SugarCrepe, Hsieh et al. 2023,
arXiv:2306.14610, appendix; adversarial filtering of Zellers et al. 2018, arXiv:1808.05326).

Letters: N captions, T candidates of all of them, F features. ``row_T`` is each candidate's caption,
ascending. Features are antisymmetric: exchanging caption and negative changes their sign.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PENALTY = 1e-3
"""Ridge on the weights of the tilting, per caption: a feature of few candidates is not balanced by losing
them all."""
_MOST_STEPS = 500


def fit_tilting(
    feature_TF: Any, row_T: np.ndarray, prior_T: np.ndarray, coverage: float, penalty: float = PENALTY
) -> np.ndarray:
    """Return weights, float64 (F,), by which the expected sum of every feature is 0 but for the ridge.

    They minimize sum_i log(1 + sum_j e^(coverage + prior_ij + weight . feature_ij)) + N penalty / 2
    |weight|^2 over captions i and their candidates j: a convex function whose derivative is the expected sum
    of the features under ``tilt``, plus the ridge. ``feature_TF``: sparse, ``prior_T``: log-weights, larger
    is preferred. ``coverage``: log-odds of a candidate of prior 0 against no negative at all; infinite = a
    caption always keeps one.
    """
    from scipy.optimize import minimize

    used_U = find_used(feature_TF)
    weight_F = np.zeros(feature_TF.shape[1])
    feature_TF = feature_TF[:, used_U]
    ridge = penalty * max(1, len(np.unique(row_T)))
    transposed_UT = feature_TF.T.tocsr()

    def evaluate(weight_U: np.ndarray) -> tuple[float, np.ndarray]:
        share_T, log_total = _share(feature_TF @ weight_U + prior_T, row_T, coverage)
        return log_total + ridge / 2 * weight_U @ weight_U, transposed_UT @ share_T + ridge * weight_U

    start_U = np.zeros(len(used_U))
    weight_F[used_U] = minimize(
        evaluate, start_U, jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS}
    ).x
    return weight_F


def find_used(feature_TF: Any) -> np.ndarray:
    """Return the columns of a sparse matrix that have an entry: the weights of the others stay 0."""
    return np.flatnonzero(np.bincount(feature_TF.indices, minlength=feature_TF.shape[1]))


def tilt(
    feature_TF: Any, row_T: np.ndarray, prior_T: np.ndarray, coverage: float, weight_F: np.ndarray
) -> np.ndarray:
    """Return each candidate's probability to be its caption's negative, float64 (T,); the rest is none."""
    return _share(feature_TF @ weight_F + prior_T, row_T, coverage)[0]


def _share(logit_T: np.ndarray, row_T: np.ndarray, coverage: float) -> tuple[np.ndarray, float]:
    """Return the softmax over each caption's candidates and "none" of logit -coverage; the sum of
    log-normalizers, up to a constant."""
    if not len(row_T):
        return np.zeros(0), 0.0
    starts = np.flatnonzero(np.diff(row_T, prepend=row_T[0] - 1))
    most_R = np.maximum(np.maximum.reduceat(logit_T, starts), -coverage)
    place_T = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(row_T)))
    exp_T = np.exp(logit_T - most_R[place_T])
    total_R = np.add.reduceat(exp_T, starts) + np.exp(-coverage - most_R)
    return exp_T / total_R[place_T], float((np.log(total_R) + most_R).sum())


def draw_one(share_T: np.ndarray, row_T: np.ndarray, uniform_N: np.ndarray) -> np.ndarray:
    """Draw at most one candidate of each caption by its probabilities, bool (T,).

    ``uniform_N``: a number in [0, 1) of each caption, as from ``selection.random_scores``: the draw of a
    caption does not depend on the others.
    """
    end_T = np.cumsum(share_T)
    first_T = np.searchsorted(row_T, row_T)
    before_T = end_T - share_T
    base_T = before_T[first_T] if len(row_T) else before_T
    drawn_T = uniform_N[row_T] if len(row_T) else np.zeros(0)
    return (before_T - base_T <= drawn_T) & (drawn_T < end_T - base_T)


def find_bins(gap_T: np.ndarray, longer_T: np.ndarray, edge_B: np.ndarray, most_longer: int) -> np.ndarray:
    """Return each pair's bin, int64 (T,): -c is the bin of the pair with caption and negative exchanged.

    Bins are products of the size of ``gap_T`` (caption minus negative, by the ascending positive ``edge_B``)
    with ``longer_T`` (words of the caption minus words of the negative), which is cut to +-``most_longer``.
    Bin 0 holds pairs without any difference.
    """
    size_T = np.searchsorted(edge_B, np.abs(gap_T), side="right") + 1
    step_T = np.where(gap_T == 0, 0, np.sign(gap_T) * size_T).astype(np.int64)
    longer_T = np.clip(longer_T, -most_longer, most_longer).astype(np.int64)
    return longer_T * (2 * len(edge_B) + 3) + step_T


def quotas(counts: dict[Any, int]) -> dict[Any, int]:
    """Return how many pairs of each bin stay so that mirrored bins hold equally many.

    Keys are (group, bin). A bin stays whole if its mirrored one holds at least as many; bin 0 always.
    """
    return {
        (group, bin): min(count, counts.get((group, -bin), 0) if bin else count)
        for (group, bin), count in counts.items()
    }


def balance(group_T: np.ndarray, bin_T: np.ndarray, order_T: np.ndarray) -> np.ndarray:
    """Return which pairs stay, bool (T,): of each (group, bin) the ``quotas`` first by ``order_T``.

    In one memory; ``negatives.refine`` finds the same rows of a corpus by ``selection.KthSearch``.
    """
    key_T2 = np.stack([group_T, bin_T], axis=1)
    keys, which_T, count_K = np.unique(key_T2, axis=0, return_inverse=True, return_counts=True)
    pairs = [(int(group), int(bin)) for group, bin in keys]
    quota = quotas(dict(zip(pairs, count_K.tolist(), strict=True)))
    quota_K = np.array([quota[pair] for pair in pairs], np.int64)
    sorted_T = np.lexsort((order_T, which_T.ravel()))
    start_K = np.cumsum(count_K) - count_K
    rank_T = np.empty(len(order_T), np.int64)
    rank_T[sorted_T] = np.arange(len(order_T)) - np.repeat(start_K, count_K)
    return rank_T < quota_K[which_T.ravel()]


def refine(
    feature_TF: Any,
    row_T: np.ndarray,
    group_T: np.ndarray,
    gap_T: np.ndarray,
    longer_T: np.ndarray,
    prior_T: np.ndarray,
    uniform_N2: np.ndarray,
    coverage: float = 2.0,
    penalty: float = PENALTY,
) -> np.ndarray:
    """Return which candidates stay, bool (T,), at most one of each caption: tilting, draw, grid.

    The whole refinement of one operation in one memory. ``group_T`` is each candidate's kind, within which
    the grid of ``gap_T`` (ten bins on each side of 0, equally full) and ``longer_T`` is balanced.
    ``uniform_N2``: two independent numbers in [0, 1) of each caption, for the draw and for the grid.
    """
    weight_F = fit_tilting(feature_TF, row_T, prior_T, coverage, penalty)
    drawn_T = draw_one(tilt(feature_TF, row_T, prior_T, coverage, weight_F), row_T, uniform_N2[:, 0])
    place_K = np.flatnonzero(drawn_T)
    bin_K = find_bins(gap_T[place_K], longer_T[place_K], find_edges(gap_T), MOST_LONGER)
    kept_K = balance(group_T[place_K], bin_K, uniform_N2[row_T[place_K], 1])
    drawn_T[place_K[~kept_K]] = False
    return drawn_T


NUM_SIZES = 10
"""Bins of the size of a gap."""
MOST_LONGER = 3
"""Words by which caption and negative may differ before they share a bin with all longer differences."""


def find_edges(gap_T: np.ndarray, num_sizes: int = NUM_SIZES) -> np.ndarray:
    """Return the edges between equally full bins of |gap|, ascending, without repetition."""
    size_T = np.abs(gap_T[gap_T != 0])
    if not len(size_T):
        return np.zeros(0)
    return np.unique(np.quantile(size_T, np.arange(1, num_sizes) / num_sizes))


def spread_gaps(gap_T: np.ndarray, edge_B: np.ndarray) -> np.ndarray:
    """Return features of a gap, float64 (T, B + 1): +-1 in the column of its size, by its sign.

    A sum of 0 in each column makes the gap's histogram symmetric around 0.
    """
    column_T = np.searchsorted(edge_B, np.abs(gap_T), side="right")
    spread = np.zeros((len(gap_T), len(edge_B) + 1))
    spread[np.arange(len(gap_T)), column_T] = np.sign(gap_T)
    return spread


def sparse_rows(entries: Sequence[Mapping[int, float]], num_columns: int) -> Any:
    """Return a sparse matrix (T, F) from the columns and values of each row."""
    from scipy.sparse import csr_array

    ends = np.cumsum([0, *map(len, entries)])
    columns = np.fromiter((column for one in entries for column in one), np.int64, int(ends[-1]))
    values = np.fromiter((value for one in entries for value in one.values()), np.float64, int(ends[-1]))
    return csr_array((values, columns, ends), (len(entries), num_columns))


def stack_rows(parts: Sequence[Any]) -> Any:
    """Return sparse matrices of equal width below each other."""
    from scipy.sparse import vstack

    return vstack(parts, format="csr")


def join_columns(first: Any, blocks: Sequence[np.ndarray]) -> Any:
    """Return a sparse matrix with dense blocks to its right, sparse."""
    from scipy.sparse import csr_array, hstack

    return hstack([first, *map(csr_array, blocks)], format="csr")
