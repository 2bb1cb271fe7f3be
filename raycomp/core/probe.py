"""How far an edit moves an encoder's embeddings, and the A-distance of two sets of embeddings.

The paper takes the A-distance (``bound_a_distance``) between embeddings of captions T and of edited captions
T~: near 0 means that a classifier cannot separate the two sets. But no classifier can if the two sets have
one distribution. SWAP is its own inverse: if T~ is as likely a caption as T ("a cube on a ball", "a ball on a
cube") the sets are equal, and the A-distance of even a perfect encoder is 0. It compares sets, not pairs. The
paired distance |g(T) - g(T~)| measures whether a caption is separated from its own edit. It is compared with
that of paraphrases and, with the image, by which of the two texts is nearer to the image.

The A-distance is 2 (1 - 2 err), err the least error of any classifier that separates the sets. Finitely many
texts do not determine the best classifier. They give the error of a fitted one on texts that it did not see.
No classifier has a smaller error than the best, so in expectation the held-out value is a lower bound. Its
gap depends on the number of pairs N and of dims D (N = 1,476 of D = 512 can hide a third of the A-distance).
So values of different N cannot be compared, and if the learning curve still rises the bound is loose.

Letters: N pairs of a text and its edit, row i with row i, for the A-distance no text repeated on one side;
D dims, R draws or labellings, L ridges. ``group_N`` holds each pair's uid, as any values that can be compared
for equality; a uid may have several pairs, which stay together.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

# Similarities this close count as equal: another order of addition moves them by less.
TIE = 1e-6


class Interval(NamedTuple):
    """A value and its 95 % interval; NaN if there is none."""

    value: float
    low: float
    high: float

    def under(self, name: str, over: str = "") -> dict[str, float]:
        """Return parts of a plain row, as ``table.take_estimate`` reads them: the ends are NAME_low and
        NAME_high; ``over`` is inserted if a row has intervals of several kinds."""
        return {name: self.value, f"{name}{over}_low": self.low, f"{name}{over}_high": self.high}


_NAN = float("nan")
NO_INTERVAL = Interval(_NAN, _NAN, _NAN)


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
    all draws agree (one group, an accuracy of 1) or have below at most 0.
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
    ends = (
        np.percentile(drawn_R, [2.5, 97.5]).tolist()
        if len(drawn_R) and np.ptp(drawn_R) > 1e-9
        else (_NAN, _NAN)
    )
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


NUM_FOLDS = 5
PARTS = (8, 4, 2)
"""The learning curve uses 1/8, 1/4, 1/2 and all of the pairs."""
# Relative to the mean variance over D: the ridge added to the variance of each direction.
RIDGES = (10.0, 1.0, 0.1, 0.01)
LEAST_PAIRS = 2 * NUM_FOLDS


class ADistance(NamedTuple):
    """Lower bound of the A-distance, in [-2, 2]; its 95 % interval; mean and central 95 % of its null.

    A value below 0 is no more informative than 0. It is not clipped: a clipped value is not a bound in
    expectation.
    """

    value: float
    low: float
    high: float
    null_mean: float
    null_low: float
    null_high: float
    curve: tuple[float, ...]
    """At 1/8, 1/4 and 1/2 of the pairs: the mean over all disjoint parts of that size."""


NO_DISTANCE = ADistance(_NAN, _NAN, _NAN, _NAN, _NAN, _NAN, (_NAN,) * len(PARTS))


class _Moments(NamedTuple):
    """Sums over both texts of pairs; ``lead_DR`` is of the texts times their labels."""

    num: float
    total_D: np.ndarray
    scatter_DD: np.ndarray
    lead_DR: np.ndarray


class _Fold(NamedTuple):
    """The pairs of a fold, each ``times_M`` times, the first text labelled ``label_MR``, the second less."""

    first_MD: np.ndarray
    second_MD: np.ndarray
    times_M: np.ndarray
    label_MR: np.ndarray


def draw_pairs(first_N: np.ndarray, second_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows of pairs of numbered texts, no two with one first or one second text, in drawn order.

    One pair is drawn of each first text, then one of each second text among these. A text in two folds would
    be tested after training on it, and sets of one distribution would seem separable. A pair is dropped only
    for a drawn text, not for one that could have been drawn: chains of those can join all pairs.
    """
    row_N = rng.permutation(len(first_N))
    for text_N in (first_N, second_N):
        row_N = rng.permutation(row_N[np.unique(text_N[row_N], return_index=True)[1]])
    return row_N


def draw_folds(group_N: np.ndarray, num_folds: int, rng: np.random.Generator) -> np.ndarray:
    """Return each pair's fold, int (N,): groups stay whole and folds differ by at most one group."""
    groups, which_N = np.unique(group_N, return_inverse=True)
    return rng.permutation(np.arange(len(groups)) % num_folds)[which_N]


def bound_a_distance(
    first_ND: np.ndarray,
    second_ND: np.ndarray,
    rng: np.random.Generator,
    num_refits: int = 50,
    num_null: int = 200,
) -> ADistance:
    """Return a lower bound of the A-distance from N pairs that share no first and no second text.

    The classifier is linear: least squares on labels +1 and -1 with a ridge. Each of ``NUM_FOLDS`` folds of
    whole pairs is classified by one fitted on the others, which also choose its ridge: by the errors on the
    fold before and the fold after, of classifiers fitted on the remaining folds. An output of exactly 0 is
    half an error.

    The interval is 1.96 standard deviations of ``num_refits`` bootstrap refits, with ridge and folds drawn
    anew. The copies of a pair stay in one fold, so that no test text was trained on. A resample has fewer
    different pairs, so its values are lower: only their spread is used. The interval covers the expected
    value at this N. For the A-distance itself only its lower end is informative. The null swaps first and
    second of pairs at random. With fewer than ``LEAST_PAIRS`` pairs all is NaN.
    """
    if first_ND.shape != second_ND.shape:
        raise ValueError(f"pairs of {first_ND.shape} and {second_ND.shape}: must be as many rows and dims")
    if len(first_ND) < LEAST_PAIRS:
        return NO_DISTANCE
    both = np.concatenate([first_ND, second_ND]).astype(np.float64)
    both -= both.mean(axis=0)
    first_ND, second_ND = np.split(both / (both.std() or 1), 2)
    num = len(first_ND)
    once_N, order_N = np.ones(num), rng.permutation(num)
    coin_NR = np.concatenate([np.ones((num, 1)), rng.choice([-1.0, 1.0], (num, num_null))], axis=1)
    value, *null = _bound(first_ND, second_ND, once_N, coin_NR, rng).tolist()
    curve = []
    for size in PARTS:
        parts = np.array_split(order_N, size)
        is_enough = min(map(len, parts)) >= LEAST_PAIRS
        values = [
            _bound(first_ND[rows], second_ND[rows], once_N[rows], once_N[rows, None], rng)[0]
            for rows in (parts if is_enough else ())
        ]
        curve.append(float(np.mean(values)) if is_enough else _NAN)
    drawn = [
        _bound(first_ND, second_ND, rng.multinomial(num, once_N / num), once_N[:, None], rng)[0]
        for _ in range(num_refits)
    ]
    reach = 1.96 * float(np.std(drawn, ddof=1)) if np.ptp(drawn) > 1e-9 else _NAN
    low, high = np.clip([value - reach, value + reach], -2, 2).tolist()
    null_low, null_high = np.percentile(null, [2.5, 97.5]).tolist()
    return ADistance(value, low, high, float(np.mean(null)), null_low, null_high, tuple(curve))


def _bound(
    first_ND: np.ndarray,
    second_ND: np.ndarray,
    times_N: np.ndarray,
    label_NR: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the value of each labelling (R,), each pair counted ``times_N`` times and in one fold."""
    seen = np.flatnonzero(times_N)
    fold_S = draw_folds(seen, NUM_FOLDS, rng)
    arrays = (first_ND, second_ND, times_N.astype(np.float64), label_NR)
    folds = [_Fold(*(array[seen[fold_S == fold]] for array in arrays)) for fold in range(NUM_FOLDS)]
    moments = [_gather(fold) for fold in folds]
    sums: Iterable[Any] = zip(*moments, strict=True)
    whole = _Moments(*(sum(parts) for parts in sums))
    # The error on its two neighbours for each fold, ridge and labelling.
    wrong_FLR = np.zeros((len(folds), len(RIDGES), folds[0].label_MR.shape[1]))
    for this, other in pairwise([*range(len(folds)), 0]):
        rest = _without(_without(whole, moments[this]), moments[other])
        for place, weight_DR in enumerate(_solve(rest, RIDGES)):
            wrong_FLR[this, place] += _count_wrong(folds[other], rest, weight_DR)
            wrong_FLR[other, place] += _count_wrong(folds[this], rest, weight_DR)
    wrong_R = np.zeros(folds[0].label_MR.shape[1])
    for fold, own, choice_LR in zip(folds, moments, wrong_FLR, strict=True):
        rest, best_R = _without(whole, own), choice_LR.argmin(axis=0)
        for place in np.unique(best_R):
            at_R = best_R == place
            one = rest._replace(lead_DR=rest.lead_DR[:, at_R])
            (weight_DR,) = _solve(one, RIDGES[place : place + 1])
            wrong_R[at_R] += _count_wrong(fold._replace(label_MR=fold.label_MR[:, at_R]), one, weight_DR)
    # The mean error of each labelling, of each fold by classifiers not trained on it.
    return 2 * (1 - 2 * (wrong_R / (whole.num / 2)))


def _gather(fold: _Fold) -> _Moments:
    first_MD, second_MD, times_M, label_MR = fold
    both_XD, times_X1 = np.concatenate([first_MD, second_MD]), np.tile(times_M, 2)[:, None]
    lead_DR = ((first_MD - second_MD) * times_M[:, None]).T @ label_MR
    return _Moments(
        times_X1.sum(), (both_XD * times_X1).sum(axis=0), both_XD.T @ (both_XD * times_X1), lead_DR
    )


def _without(whole: _Moments, part: _Moments) -> _Moments:
    pairs: Iterable[Any] = zip(whole, part, strict=True)
    return _Moments(*(a - b for a, b in pairs))


def _solve(moments: _Moments, ridges: tuple[float, ...]) -> np.ndarray:
    """Return the weights for each ridge (L, D, R); centred: equal numbers of +1 and -1 need no intercept."""
    mean_D = moments.total_D / max(moments.num, 1)
    scatter_DD = moments.scatter_DD - moments.num * np.outer(mean_D, mean_D)
    dims = len(mean_D)
    # Relative to a total variance of 1: a part may have a variance near 0, from rounding.
    scale = max(np.trace(scatter_DD) / dims, 1e-6)
    added_L = scale * np.array(ridges)
    return np.linalg.solve(scatter_DD + added_L[:, None, None] * np.eye(dims), moments.lead_DR)


def _count_wrong(fold: _Fold, fitted: _Moments, weight_DR: np.ndarray) -> np.ndarray:
    """Return how many pairs' texts are on the wrong side (R,), each text half of a pair."""
    mean_D = fitted.total_D / max(fitted.num, 1)
    of_first_MR = ((fold.first_MD - mean_D) @ weight_DR) * fold.label_MR
    of_second_MR = ((fold.second_MD - mean_D) @ weight_DR) * -fold.label_MR
    wrong_MR = sum((out < 0) + (out == 0) / 2 for out in (of_first_MR, of_second_MR)) / 2
    return fold.times_M @ wrong_MR
