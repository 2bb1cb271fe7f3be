"""Multinomial logistic regression: a linear classifier on embeddings.

N examples, C classes, D dims; ``label_N`` are classes from 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy

# From strong to weak, half a decade apart; embeddings have length 1.
PENALTIES = tuple(10 ** (-exponent / 2) for exponent in range(2, 17))
_MOST_STEPS = 1000
_SMALL_GRADIENT = 1e-7
# Products of a logit matrix below which one thread is as fast as several, which wait for each other on a busy
# machine.
_SMALL_FIT = 1e8


class Linear(NamedTuple):
    """A linear classifier, float64: the largest of ``feature_ND @ weight_CD.T + bias_C`` is the class."""

    weight_CD: np.ndarray
    bias_C: np.ndarray

    def score(self, feature_ND: np.ndarray) -> np.ndarray:
        """Return the logits, float64 (N, C)."""
        return np.asarray(feature_ND, np.float64) @ self.weight_CD.T + self.bias_C


def fit_logistic(
    feature_ND: np.ndarray, label_N: np.ndarray, num_classes: int, penalty: float, start: Linear | None = None
) -> Linear:
    """Return the minimum of the mean cross-entropy + penalty / 2 * |weight|^2; the bias is not penalised.

    scikit-learn's C is 1 / (penalty * N). By L-BFGS in float64, from ``start`` or 0, until no derivative is
    above 1e-7 or 1,000 steps are made; with a penalty above 0 there is one minimum, up to a bias common to
    all classes.
    """
    feature = torch.from_numpy(np.asarray(feature_ND, np.float64))
    label = torch.from_numpy(np.asarray(label_N, np.int64))
    initial = start or Linear(np.zeros((num_classes, feature_ND.shape[1])), np.zeros(num_classes))
    weight, bias = (torch.from_numpy(part.copy()).requires_grad_() for part in initial)
    solver = torch.optim.LBFGS(
        [weight, bias],
        max_iter=_MOST_STEPS,
        tolerance_grad=_SMALL_GRADIENT,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def evaluate() -> torch.Tensor:
        solver.zero_grad()
        loss = cross_entropy(feature @ weight.T + bias, label) + penalty / 2 * weight.square().sum()
        loss.backward()
        return loss

    num_threads = torch.get_num_threads()
    if feature.numel() * num_classes < _SMALL_FIT:
        torch.set_num_threads(1)
    try:
        solver.step(evaluate)
    finally:
        torch.set_num_threads(num_threads)
    return Linear(weight.detach().numpy(), bias.detach().numpy())


def hold_out_fifth(label_N: np.ndarray, unit_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a mask of a fifth of every class, bool (N,): at least one unit, but never the only one.

    Examples of one unit stay together within their class.
    """
    units, which_N = np.unique(unit_N, return_inverse=True)
    place_N = rng.permutation(len(units))[which_N]
    is_held_N = np.zeros(len(label_N), bool)
    for label in np.unique(label_N):
        is_own_N = label_N == label
        places = np.unique(place_N[is_own_N])
        num_held = max(1, len(places) // 5) if len(places) > 1 else 0
        is_held_N |= is_own_N & np.isin(place_N, places[:num_held])
    return is_held_N


def choose_penalty(
    feature_ND: np.ndarray,
    label_N: np.ndarray,
    num_classes: int,
    is_held_N: np.ndarray,
    penalties: Sequence[float] = PENALTIES,
) -> tuple[float, list[float]]:
    """Return the penalty whose fit on the other examples is most accurate on the held ones, and all
    accuracies.

    The first of equals is returned. Each fit starts where the previous one ended.
    """
    shares: list[float] = []
    fitted = None
    for penalty in penalties:
        fitted = fit_logistic(feature_ND[~is_held_N], label_N[~is_held_N], num_classes, penalty, fitted)
        found_H = fitted.score(feature_ND[is_held_N]).argmax(1)
        shares.append(float((found_H == label_N[is_held_N]).mean()))
    return penalties[int(np.argmax(shares))], shares
