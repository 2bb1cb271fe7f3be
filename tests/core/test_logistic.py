"""Logistic regression against Newton's method, its limits, and the choice of its penalty."""

import numpy as np
import pytest

from raycomp.core.logistic import choose_penalty, fit_logistic, hold_out_fifth


def make_classes(num: int, seed: int, noise: float = 0.8):
    rng = np.random.default_rng(seed)
    label_N = rng.integers(0, 3, num)
    middle_CD = np.random.default_rng(99).normal(size=(3, 4))
    feature_ND = middle_CD[label_N] + noise * rng.normal(size=(num, 4))
    return (feature_ND / np.linalg.norm(feature_ND, axis=1, keepdims=True)).astype(np.float32), label_N


def newton(feature_ND, label_N, num_classes, penalty):
    """Minimise the same sum by its full matrix of second derivatives; the bias is a feature that is 1."""
    x_NE = np.append(np.float64(feature_ND), np.ones((len(feature_ND), 1)), axis=1)
    num, dims = x_NE.shape
    weight_CE = np.zeros((num_classes, dims))
    wanted_NC = np.eye(num_classes)[label_N]
    ridge_E = np.append(np.full(dims - 1, penalty), 0.0)
    for _ in range(50):
        logit_NC = x_NE @ weight_CE.T
        share_NC = np.exp(logit_NC - logit_NC.max(1, keepdims=True))
        share_NC /= share_NC.sum(1, keepdims=True)
        gradient_CE = (share_NC - wanted_NC).T @ x_NE / num + weight_CE * ridge_E
        hessian = np.zeros((num_classes, dims, num_classes, dims))
        for c in range(num_classes):
            for d in range(num_classes):
                factor_N = share_NC[:, c] * ((c == d) - share_NC[:, d]) / num
                hessian[c, :, d, :] = (x_NE * factor_N[:, None]).T @ x_NE + (c == d) * np.diag(ridge_E)
        size = num_classes * dims
        # A bias common to all classes changes nothing: the shortest step.
        step = np.linalg.pinv(hessian.reshape(size, size), rcond=1e-12) @ gradient_CE.reshape(size)
        weight_CE -= step.reshape(num_classes, dims)
    return weight_CE[:, :-1], weight_CE[:, -1]


def test_the_fit_is_that_of_newtons_method():
    for penalty in [1.0, 1e-2, 1e-4]:
        feature_ND, label_N = make_classes(120, 0)
        found = fit_logistic(feature_ND, label_N, 3, penalty)
        weight_CD, bias_C = newton(feature_ND, label_N, 3, penalty)
        assert found.weight_CD == pytest.approx(weight_CD, abs=2e-4 * np.abs(weight_CD).max())
        assert found.bias_C - found.bias_C.mean() == pytest.approx(bias_C - bias_C.mean(), abs=1e-3)


def test_the_penalty_is_the_one_that_predicts_others_best():
    feature_ND, label_N = make_classes(150, 2, noise=1.5)
    is_held_N = hold_out_fifth(label_N, np.arange(150), np.random.default_rng(0))
    penalties = (1e2, 1e-1, 1e-3, 1e-7)
    penalty, shares = choose_penalty(feature_ND, label_N, 3, is_held_N, penalties)
    slow = []
    for one in penalties:
        weight_CD, bias_C = newton(feature_ND[~is_held_N], label_N[~is_held_N], 3, one)
        found_H = (feature_ND[is_held_N] @ weight_CD.T + bias_C).argmax(1)
        slow.append((found_H == label_N[is_held_N]).mean())
    assert shares == pytest.approx(slow, abs=1e-9)
    assert penalty == penalties[int(np.argmax(slow))]


def test_a_fifth_of_every_class_is_held_out_and_duplicates_stay_together():
    rng = np.random.default_rng(0)
    label_N = np.repeat([0, 1, 2, 3], [50, 10, 2, 1])
    unit_N = np.arange(63)
    unit_N[1::2][:25] = unit_N[::2][:25]  # the first class: twins
    is_held_N = hold_out_fifth(label_N, unit_N, rng)
    assert [is_held_N[label_N == label].sum() for label in range(4)] == [10, 2, 1, 0]
    assert not set(unit_N[is_held_N]) & set(unit_N[~is_held_N])
    again, other = (hold_out_fifth(label_N, unit_N, np.random.default_rng(seed)) for seed in (0, 1))
    assert (again == is_held_N).all() and (other != is_held_N).any()
