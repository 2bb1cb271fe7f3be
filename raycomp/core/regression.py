"""Least squares at any size, and embeddings in two dimensions.

Letters: N rows of a piece, C columns; the others explain the last.
NaN is an error everywhere: the caller removes rows without a value.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from raycomp.core.metrics import correlation_interval, pearson

_SMALLEST_EIGENVALUE = 1e-10
# Share of the variance: a smaller remainder is rounding.
_EXACT = 1e-12


@dataclass(frozen=True)
class CrossMoments:
    """Count, means and centred cross products of columns seen in pieces, float64.

    Merges like ``attribution.Moments``: the bits repeat if the order of merging does.
    """

    count: int
    mean_C: np.ndarray
    product_CC: np.ndarray
    """Sum over rows of the product of two columns' deviations from their means."""

    @classmethod
    def of(cls, columns: Sequence[np.ndarray]) -> "CrossMoments":
        """Return the moments of one piece; ValueError on other lengths and values that are not finite."""
        value_CN = np.array([np.asarray(column, np.float64) for column in columns])
        if not np.isfinite(value_CN).all():
            raise ValueError("moments of a value that is not finite: drop rows without a value")
        num_columns, num_rows = value_CN.shape
        if not num_rows:
            return cls(0, np.zeros(num_columns), np.zeros((num_columns, num_columns)))
        # Deviations from the first value first, so that a constant column has exactly none.
        first_C = value_CN[:, 0]
        value_CN = value_CN - first_C[:, None]
        step_C = value_CN.mean(axis=1)
        value_CN = value_CN - step_C[:, None]
        product_CC = np.array([[(a_N * b_N).sum() for b_N in value_CN] for a_N in value_CN])
        return cls(num_rows, first_C + step_C, product_CC)

    def merge(self, other: "CrossMoments") -> "CrossMoments":
        """Return the moments of both pieces together."""
        # A piece without rows must not round the mean of the other.
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        step_C = other.mean_C - self.mean_C
        between_CC = np.outer(step_C, step_C) * (self.count * other.count / count)
        mean_C = self.mean_C + step_C * other.count / count
        return CrossMoments(count, mean_C, self.product_CC + other.product_CC + between_CC)


@dataclass(frozen=True)
class LinearFit:
    """y = intercept + the sum of coefficient times column, by ordinary least squares."""

    num_rows: int
    intercept: float
    coefficients: dict[str, float]
    """By column name; 0 if the column does not vary."""
    explained: float | None
    """R^2, the share of y's variance that the columns explain, 0 to 1; none if y does not vary."""

    @classmethod
    def of(cls, names: Sequence[str], moments: CrossMoments) -> "LinearFit":
        """Return the fit of the last column on the others, named ``names``.

        Normal equations of the centred columns, each in units of its own deviation. Of collinear columns
        (an eigenvalue of their correlations below 1e-10 of the largest) the coefficients that are smallest in
        those units, by the pseudo-inverse; residuals do not depend on that choice.
        """
        size_C = np.sqrt(np.diag(moments.product_CC))
        unit_C = np.where(size_C > 0, size_C, 1.0)
        cosine_CC = moments.product_CC / np.outer(unit_C, unit_C)
        inverse = np.linalg.pinv(cosine_CC[:-1, :-1], rcond=_SMALLEST_EIGENVALUE, hermitian=True)
        scaled = np.where(size_C[:-1] > 0, inverse @ cosine_CC[:-1, -1], 0.0)
        slope = scaled * unit_C[-1] / unit_C[:-1]
        intercept = moments.mean_C[-1] - slope @ moments.mean_C[:-1]
        explained = float(np.clip(scaled @ cosine_CC[:-1, -1], 0, 1)) if size_C[-1] > 0 else None
        coefficients = dict(zip(names, slope.tolist(), strict=True))
        return cls(moments.count, float(intercept), coefficients, explained)

    def residuals(self, column_N: Mapping[str, np.ndarray], y_N: np.ndarray) -> np.ndarray:
        """Return y minus the prediction, float32, in y's units; computed in float64, row by row, so that a
        row's bits do not depend on the other rows.

        All are 0 if the fit is exact (R^2 within 1e-12 of 1): the remainder would be rounding, which depends
        on how the rows were split into pieces.
        """
        terms = (at * np.asarray(column_N[name], np.float64) for name, at in self.coefficients.items())
        rest_N = np.asarray(y_N, np.float64) - reduce(operator.add, terms, self.intercept)
        is_exact = self.explained is not None and 1 - self.explained < _EXACT
        return np.where(is_exact & ~np.isnan(rest_N), 0.0, rest_N).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return values that json holds exactly."""
        return {**vars(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LinearFit":
        """Return the fit that ``to_dict`` wrote."""
        return cls(**values)


class PartialCorrelation(NamedTuple):
    """The partial correlation of two columns, given others and the rows' groups."""

    r: float
    """NaN if a column does not vary given the others."""
    low: float
    high: float
    """Ends of the 95 % interval; NaN if there is none."""
    freedom: int
    """Degrees of freedom: rows less groups and controls."""


def correlate_within(
    x_N: np.ndarray, y_N: np.ndarray, controls: Sequence[np.ndarray], group_N: np.ndarray
) -> PartialCorrelation:
    """Correlate the residuals of two columns on controls and group means, all groups (runs) together.

    The interval is Fisher's with the remaining degrees of freedom. It assumes that rows of a group depend on
    each other only through the group's mean. ValueError on other lengths.
    """
    lengths = [len(column) for column in (x_N, y_N, *controls, group_N)]
    if len(set(lengths)) != 1:
        raise ValueError(f"columns of {lengths} rows: must be equal")
    _, which_N, size_G = np.unique(group_N, return_inverse=True, return_counts=True)
    columns = [np.asarray(column, np.float64) for column in (x_N, y_N, *controls)]
    inner_CN = np.array([column - (np.bincount(which_N, column) / size_G)[which_N] for column in columns])
    size_C = np.sqrt((inner_CN**2).sum(1))
    # In units of their own deviation; a rounding remainder of a constant column counts as constant.
    least_C = _EXACT * np.abs(columns).max(1, initial=0) * max(1, len(which_N)) ** 0.5
    unit_CN = np.where((size_C > least_C)[:, None], inner_CN / np.maximum(size_C, 1e-300)[:, None], 0.0)
    pair_N2, control_NC = unit_CN[:2].T, unit_CN[2:].T
    fit_C2, _, rank, _ = np.linalg.lstsq(control_NC, pair_N2, rcond=_SMALLEST_EIGENVALUE)
    rest_N2 = pair_N2 - control_NC @ fit_C2
    freedom = len(which_N) - len(size_G) - int(rank)
    is_left = (rest_N2**2).sum(0) > _EXACT
    r = pearson(rest_N2[:, 0], rest_N2[:, 1]) if is_left.all() else float("nan")
    low, high = correlation_interval(r, max(0, freedom + 1))
    return PartialCorrelation(r, low, high, freedom)


_ROWS = 65_536


def project_pca(embedding_ND: np.ndarray) -> np.ndarray:
    """Return the rows along the two directions of largest variance, fp32 [N, 2], centred.

    The sign of a direction is free; here its largest component is positive. Memory beyond the result is a
    matrix of D x D and a part of the rows. Of one dimension the second column is 0.
    """
    num, dim = embedding_ND.shape
    if not num:
        return np.zeros((0, 2), np.float32)

    def cut() -> Iterator[np.ndarray]:
        return (embedding_ND[start : start + _ROWS].astype(np.float64) for start in range(0, num, _ROWS))

    mean_D = sum((part.sum(axis=0) for part in cut()), np.zeros(dim)) / num
    second_DD = sum((part.T @ part for part in cut()), np.zeros((dim, dim))) / num
    _, direction_DD = np.linalg.eigh(second_DD - np.outer(mean_D, mean_D))
    axis_DK = direction_DD[:, ::-1][:, :2]
    axis_DK = axis_DK * np.sign(axis_DK[np.abs(axis_DK).argmax(axis=0), np.arange(axis_DK.shape[1])])
    found = np.zeros((num, 2), np.float32)
    found[:, : axis_DK.shape[1]] = np.concatenate([(part - mean_D) @ axis_DK for part in cut()])
    return found
