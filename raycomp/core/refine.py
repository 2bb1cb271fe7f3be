"""Choice of a caption's negatives: the hardest, and those that text-only judges cannot
distinguish from captions.

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
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from raycomp.table import group_by
from raycomp.words import ADD, RELATION

LOW_SIMILARITY = "low_similarity"
"""Reason of rejection: an ADD left the neighbourhood of its input."""


class Candidate(NamedTuple):
    """A valid negative that may be chosen."""

    text: str
    op: str
    """Operations in the order applied, joined with "+"."""
    kind: str
    calls: int
    concepts: tuple[str, ...]
    similarity: float | None = None
    """cos(g(caption), g(text)); none without ranking."""
    image_drop: float | None = None
    """s(I, caption) - s(I, text); none if the image's embedding is not available."""
    unigram: float | None = None
    bigram: float | None = None
    language_model: float | None = None
    """log p(caption) - log p(text) of text-only judges, in nats; none if not judged."""
    phrase_rank: float | None = None
    phrase_rate: float | None = None
    suspect: bool | None = None
    """The share of photos that its new phrase fits better, the share of captions that mention the phrase, and
    whether it may be true of the photo; none if not screened."""
    inputs: tuple[str, ...] = ()
    """The input of each call: first the caption, or of an ADD matched in length a true part of it; then the
    output of the call before."""


def list_additions(candidate: Candidate) -> list[tuple[str, str]]:
    """Return each ADD's own input and output: base and augmented text of the ADD condition.

    With several calls an ADD is compared with its own input, not with the caption
    (arXiv:2510.26302, Theorem 9 and Eq. 83: base and augmented text share a z_inv).
    """
    outputs = (*candidate.inputs[1:], candidate.text)
    calls = zip(candidate.op.split("+"), candidate.inputs, outputs, strict=True)
    return [(before, after) for op, before, after in calls if op == ADD]


def choose_hardest(candidates: Sequence[Candidate], per_calls: int) -> list[Candidate]:
    """Return at most ``per_calls`` candidates of each number of calls, by calls, in the order chosen.

    Within each (calls, op) the candidates most similar to the caption come first; equal or unranked ones stay
    in order of proposal. Then the sequences of operations take turns, the hardest first (Algorithm 1 ranks by
    g*). A text that fewer calls also give is not a negative of more calls.
    """
    seen: set[str] = set()
    chosen = []
    by_calls = sorted(candidates, key=lambda candidate: candidate.calls)
    for _, group in groupby(by_calls, key=lambda candidate: candidate.calls):
        new: dict[str, Candidate] = {}
        for candidate in group:
            if candidate.text not in seen:
                new.setdefault(candidate.text, candidate)
        seen.update(new)
        by_op = group_by(sorted(new.values(), key=_by_hardness), lambda candidate: candidate.op)
        turns = [(turn, _by_hardness(c), c) for own in by_op.values() for turn, c in enumerate(own)]
        chosen += [candidate for *_, candidate in sorted(turns, key=lambda entry: entry[:2])][:per_calls]
    return chosen


class Comparison(NamedTuple):
    """Three ways to spend the same two operations on one caption, each with two texts: see
    ``schema.COMPARISON_TYPE``."""

    op: str
    one_call: tuple[str, str]
    two_calls: tuple[str, str]
    independent: tuple[str, str]


def compare_calls(candidates: Sequence[Candidate]) -> Comparison | None:
    """Return the comparison of the hardest two-call candidate that allows one, None if none does.

    It needs both of that candidate's edits as valid candidates of one call, two texts of one call of the same
    two operations, and a second text of two calls of these operations, in any order.
    """
    singles = [candidate for candidate in candidates if candidate.calls == 1]
    alone = {(single.op, single.concepts): single.text for single in reversed(singles)}
    ranked = sorted(singles, key=_by_hardness)
    doubles = sorted((candidate for candidate in candidates if candidate.calls == 2), key=_by_hardness)
    for double in doubles:
        first, second = double.op.split("+")
        alike = (one.text for one in doubles if sorted(one.op.split("+")) == sorted((first, second)))
        other = next((text for text in alike if text != double.text), None)
        # An added object or attribute is one concept; all other edits name two.
        cut = 1 if first == ADD and not double.kind.startswith(RELATION) else 2
        parts = (first, double.concepts[:cut]), (second, double.concepts[cut:])
        if not all(part in alone for part in parts):
            continue
        hardest = [next((c.text for c in ranked if c.op == first), "")]
        hardest += [c.text for c in ranked if c.op == second and c.text != hardest[0]][:1]
        if len(hardest) == 2 and other is not None:
            independent = alone[parts[0]], alone[parts[1]]
            return Comparison(double.op, (hardest[0], hardest[1]), (double.text, other), independent)
    return None


def _by_hardness(candidate: Candidate) -> float:
    return -(candidate.similarity or 0.0)


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

    options = {"maxiter": _MOST_STEPS}
    found = minimize(evaluate, np.zeros(len(used_U)), jac=True, method="L-BFGS-B", options=options)
    weight_F[used_U] = found.x
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
    if not len(row_T):
        return np.zeros(0, bool)
    end_T = np.cumsum(share_T)
    before_T = end_T - share_T
    base_T, drawn_T = before_T[np.searchsorted(row_T, row_T)], uniform_N[row_T]
    return (before_T - base_T <= drawn_T) & (drawn_T < end_T - base_T)


def assign_bins(gap_T: np.ndarray, longer_T: np.ndarray, edge_B: np.ndarray, most_longer: int) -> np.ndarray:
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


NUM_SIZES = 10
"""Bins of the size of a gap."""
MOST_LONGER = 3
"""Words by which caption and negative may differ before they share a bin with all longer differences."""


def compute_edges(gap_T: np.ndarray, num_sizes: int = NUM_SIZES) -> np.ndarray:
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
