"""A judge of text alone, trained on pairs of a caption and its negative: which of the two is the caption?

Logistic regression on antisymmetric features (caption minus negative) without a bias, so that exchanging the
two exchanges the answer. Each pair is judged by a fit to the other folds; pairs of one image share a fold.

Letters: T pairs, F features.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from lab.text_classifier import list_features
from raycomp.core.refine import find_used, sparse_rows

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4)
_MOST_STEPS = 300
_COLUMNS = 1 << 18


def list_text_features(pairs: Sequence[tuple[str, str]]) -> Any:
    """Return the features of pairs of caption and negative, sparse (T, F): differences in words, in pairs and
    triples of neighbours, and in the number of words, hashed into 2^18 columns."""
    entries = []
    for pair in pairs:
        found: dict[int, float] = {}
        for text, sign in zip(pair, (1, -1), strict=True):
            for feature in list_features(text):
                column = zlib.crc32(feature.encode()) % _COLUMNS
                found[column] = found.get(column, 0) + sign
        entries.append({column: value for column, value in found.items() if value})
    return sparse_rows(entries, _COLUMNS)


def fit_pair_judge(feature_TF: Any, penalty: float) -> np.ndarray:
    """Return the weights, float64 (F,), of least mean log(1 + e^-margin) + penalty / 2 |weight|^2.

    ``feature_TF``: sparse; margin = feature . weight is the log-odds that the first of the
    two is the caption. By L-BFGS from 0.
    """
    from scipy.optimize import minimize

    used_U = find_used(feature_TF)
    weight_F = np.zeros(feature_TF.shape[1])
    feature_TU = feature_TF[:, used_U]
    transposed_UT, num_pairs = feature_TU.T.tocsr(), max(1, feature_TF.shape[0])

    def evaluate(weight_U: np.ndarray) -> tuple[float, np.ndarray]:
        margin_T = feature_TU @ weight_U
        slope_T = -1 / (1 + np.exp(np.clip(margin_T, -700, 700))) / num_pairs
        loss = float(np.logaddexp(0, -margin_T).sum() / num_pairs + penalty / 2 * weight_U @ weight_U)
        return loss, transposed_UT @ slope_T + penalty * weight_U

    start_U, options = np.zeros(len(used_U)), {"maxiter": _MOST_STEPS}
    weight_F[used_U] = minimize(evaluate, start_U, jac=True, method="L-BFGS-B", options=options).x
    return weight_F


def judge_pairs(feature_TF: Any, fold_T: np.ndarray, penalties: Sequence[float] = PENALTIES) -> np.ndarray:
    """Return each pair's margin by a judge that was fitted to the other folds, float64 (T,).

    Above 0 the judge is right. ``fold_T``: int, from 0; for each fold the penalty is the one whose fit to the
    others without the next fold is right most often on that one.
    """
    margin_T = np.zeros(feature_TF.shape[0])
    folds = np.unique(fold_T)
    for place, fold in enumerate(folds):
        is_held_T, is_next_T = fold_T == fold, fold_T == folds[(place + 1) % len(folds)]
        is_inner_T = ~(is_held_T | is_next_T)
        shares = [
            right_share(feature_TF[is_next_T] @ fit_pair_judge(feature_TF[is_inner_T], penalty))
            for penalty in penalties
        ]
        weight_F = fit_pair_judge(feature_TF[~is_held_T], penalties[int(np.argmax(shares))])
        margin_T[is_held_T] = feature_TF[is_held_T] @ weight_F
    return margin_T


def right_share(margin_T: np.ndarray) -> float:
    """Return the share of pairs in which the judge is right, 0 to 1; undecided ones count half."""
    return float(((margin_T > 0) + (margin_T == 0) / 2).mean()) if len(margin_T) else 0.5
