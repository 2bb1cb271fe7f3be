"""Statistics of reports: separation by a score, agreement of scores, words and concepts a choice favours, and
least squares at any size.

NaN is an error everywhere: the caller removes and counts rows without a value. Mergeable statistics can be
computed on pieces of any size and merged.

N rows of a piece; V concepts in three groups of rows: kept in both, only in the first (lost), only in the
second (gained), and a row has a concept or not; C columns, of which the others explain the last.
"""

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from raycomp.config.options import check
from raycomp.core.selection import hash_uids

Z_95 = 1.959964
"""Two-sided 95 % of the standard normal."""


def _check_finite(name: str, value_N: np.ndarray) -> np.ndarray:
    value_N = np.asarray(value_N, dtype=np.float64)
    bad_N = ~np.isfinite(value_N)
    if bad_N.any():
        raise ValueError(f"{name}[{int(bad_N.argmax())}]={value_N[bad_N][0]}: must be finite")
    return value_N


def share_below(value_N: np.ndarray, other_M: np.ndarray) -> np.ndarray:
    """Return for each value the share of the others below it, equal ones counting half."""
    other_M = np.sort(other_M)
    below_N = np.searchsorted(other_M, value_N, "left") + np.searchsorted(other_M, value_N, "right")
    return below_N / (2 * len(other_M))


def auc(positive_N: np.ndarray, negative_M: np.ndarray) -> float:
    """Return the chance that a positive scores above a negative, ties 1/2: Mann-Whitney U / NM, in [0, 1]."""
    for name, value in (("positive", positive_N), ("negative", negative_M)):
        if not len(value):
            raise ValueError(f"{name} scores: must be at least 1, are 0")
    positive_N, negative_M = _check_finite("positive", positive_N), _check_finite("negative", negative_M)
    return float(share_below(positive_N, negative_M).mean())


@dataclass(frozen=True)
class PairMoments:
    """Means, squared deviations and their product of two columns seen in pieces, float64.

    Merges like ``alignment.Moments``: the bits repeat if the order of merging does.
    """

    count: int = 0
    mean_x: float = 0.0
    mean_y: float = 0.0
    m2_x: float = 0.0
    m2_y: float = 0.0
    m_xy: float = 0.0

    @classmethod
    def of(cls, x_N: np.ndarray, y_N: np.ndarray) -> "PairMoments":
        """Return the moments of one piece; ValueError on other lengths and values that are not finite."""
        x_N, y_N = _check_finite("x", x_N), _check_finite("y", y_N)
        if len(x_N) != len(y_N):
            raise ValueError(f"x has {len(x_N)} rows and y {len(y_N)}: must be equal")
        if not len(x_N):
            return cls()
        # Deviations from the first value first, so that a constant column has exactly none.
        dx_N, dy_N = x_N - x_N[0], y_N - y_N[0]
        step_x, step_y = dx_N.mean(), dy_N.mean()
        dx_N, dy_N = dx_N - step_x, dy_N - step_y
        sums = (dx_N * dx_N).sum(), (dy_N * dy_N).sum(), (dx_N * dy_N).sum()
        return cls(len(x_N), float(x_N[0] + step_x), float(y_N[0] + step_y), *map(float, sums))

    def merge(self, other: "PairMoments") -> "PairMoments":
        """Return the moments of both pieces together."""
        count = self.count + other.count
        if not count:
            return self
        weight = self.count * other.count / count
        dx, dy = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        return PairMoments(
            count,
            self.mean_x + dx * other.count / count,
            self.mean_y + dy * other.count / count,
            self.m2_x + other.m2_x + dx * dx * weight,
            self.m2_y + other.m2_y + dy * dy * weight,
            self.m_xy + other.m_xy + dx * dy * weight,
        )

    @property
    def pearson(self) -> float:
        """Pearson's r in [-1, 1]; NaN if a column does not vary or there are fewer than 2 rows."""
        if self.count < 2 or self.m2_x == 0 or self.m2_y == 0:
            return float("nan")
        return min(max(self.m_xy / (self.m2_x**0.5 * self.m2_y**0.5), -1.0), 1.0)


def pearson(x_N: np.ndarray, y_N: np.ndarray) -> float:
    """Return Pearson's r; NaN if a column does not vary."""
    return PairMoments.of(x_N, y_N).pearson


def average_ranks(value_N: np.ndarray) -> np.ndarray:
    """Return ranks from 1, float64; equal values share the mean of their ranks."""
    # Not scipy's: select would import scipy only for this.
    _, group_N, size_G = np.unique(value_N, return_inverse=True, return_counts=True)
    return (np.cumsum(size_G) - (size_G - 1) / 2)[group_N]


def spearman(x_N: np.ndarray, y_N: np.ndarray) -> float:
    """Return Spearman's rho, Pearson's r of the average ranks; NaN if a column does not vary."""
    return pearson(average_ranks(_check_finite("x", x_N)), average_ranks(_check_finite("y", y_N)))


def correlation_interval(r: float, num_rows: int, ranks: bool = False) -> tuple[float, float]:
    """Return the 95 % interval of a correlation of ``num_rows`` independent rows by Fisher's z.

    The variance of z is 1 / (n - 3), of Spearman's rho (``ranks``) 1.06 / (n - 3) (Fieller et al. 1957).
    Rows in clusters, such as the phrases of a caption or of a target, are not independent: the number of
    clusters in place of that of rows is the safe choice for clusters of one kind and about equal size.
    (nan, nan) if there is none: r is NaN or has absolute value 1, or there are fewer than 4 rows.
    """
    if num_rows < 4 or not abs(r) < 1:
        return float("nan"), float("nan")
    half = Z_95 * math.sqrt((1.06 if ranks else 1.0) / (num_rows - 3))
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def student_95(freedom: int) -> float:
    """Return Student's t for a two-sided 95 % interval."""
    check(freedom >= 1, "freedom", freedom, "at least 1")
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(freedom, 0.975))


def share_interval(part: int, whole: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score; (0, 1) without rows."""
    return wilson(part / whole, whole) if whole else (0.0, 1.0)


def wilson(share: float, whole: float) -> tuple[float, float]:
    """Return the 95 % interval of a share of ``whole`` independent examples, by Wilson's score."""
    square = Z_95**2 / whole
    middle = share + square / 2
    half = math.sqrt(square * share * (1 - share) + square**2 / 4)
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def find_kappa(pairs: Sequence[tuple[str, str]]) -> float:
    """Return Cohen's kappa of two labels for each row: (agreement - that by chance) / (1 - that by chance).

    In [-1, 1]; 1 where both have the same label throughout, which leaves nothing to chance.
    """
    firsts, seconds = (Counter(pair[place] for pair in pairs) for place in (0, 1))
    num = len(pairs)
    chance = sum(firsts[label] * seconds[label] for label in firsts) / num**2
    agreement = sum(one == other for one, other in pairs) / num
    return (agreement - chance) / (1 - chance) if chance < 1 else 1.0


def log_odds(
    kept_V: np.ndarray, dropped_V: np.ndarray, prior_words: float = 500.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the preference of each of V words for the kept side: log-odds ratio and z score, float64 (V,).

    Monroe, Colaresi and Quinn 2008, "Fightin' Words", with the informative Dirichlet prior: each side first
    gets ``prior_words`` words distributed as in both sides together, which pulls rare words to 0. Values
    above 0 favour kept. Counts are not negative and each word occurs at least once; a vocabulary of one word
    has no preference.
    """
    kept_V, dropped_V = np.asarray(kept_V, np.float64), np.asarray(dropped_V, np.float64)
    if kept_V.shape != dropped_V.shape:
        raise ValueError(f"counts of {len(kept_V)} and {len(dropped_V)} words: must be of one vocabulary")
    total_V = kept_V + dropped_V
    if (np.minimum(kept_V, dropped_V) < 0).any() or (total_V == 0).any():
        raise ValueError("counts: must be at least 0, and at least 1 on one side for every word")
    check(prior_words > 0, "prior_words", prior_words, "above 0")
    if len(total_V) < 2:
        return np.zeros_like(total_V), np.zeros_like(total_V)
    prior_V = prior_words * total_V / total_V.sum()
    kept_V, dropped_V = kept_V + prior_V, dropped_V + prior_V
    lean_V = np.log(kept_V / (kept_V.sum() - kept_V)) - np.log(dropped_V / (dropped_V.sum() - dropped_V))
    return lean_V, lean_V / np.sqrt(1 / kept_V + 1 / dropped_V)


@dataclass(frozen=True)
class Histogram:
    """Counts in fixed bins of equal width; merging is exact in any order.

    Bins are closed on the left and open on the right, except the last, which is closed.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    under: int = 0
    over: int = 0

    @classmethod
    def of(cls, value_N: np.ndarray, low: float, high: float, num_bins: int) -> "Histogram":
        """Count ``value_N``; infinities count as under or over. ValueError on NaN, low >= high, no bins."""
        if not (low < high and num_bins >= 1):
            said = f"histogram from {low} to {high} in {num_bins} bins"
            raise ValueError(f"{said}: must rise and have at least 1")
        value_N = np.asarray(value_N, dtype=np.float64)
        if np.isnan(value_N).any():
            raise ValueError("histogram of NaN: drop rows without a value")
        counts = np.histogram(value_N, np.linspace(low, high, num_bins + 1))[0]
        return cls(low, high, tuple(counts.tolist()), int((value_N < low).sum()), int((value_N > high).sum()))

    @property
    def edges(self) -> np.ndarray:
        """The num_bins + 1 edges, float64."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    def merge(self, other: "Histogram") -> "Histogram":
        """Return both counts together; ValueError if the bins differ."""
        bins, others = ((one.low, one.high, len(one.counts)) for one in (self, other))
        if bins != others:
            raise ValueError(f"histograms of bins {bins} and {others}: must be equal")
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(self.low, self.high, counts, self.under + other.under, self.over + other.over)


@dataclass(frozen=True, eq=False)
class Reservoir:
    """At most ``capacity`` rows drawn uniformly from all rows seen: those of the smallest hash of (uid,
    seed).

    The draw depends only on the uids, not on the order or the splitting of the rows; merging is exact, in any
    order. The rows are in drawing order, so the first m are a draw of m. Uids must be unique.
    """

    capacity: int
    seed: int
    uid_M2: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.uint64))
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    """Values to keep of each row: arrays of any type with the rows along the first axis."""
    num_seen: int = 0

    @classmethod
    def of(cls, capacity: int, seed: int, uid_N2: np.ndarray, columns: dict[str, np.ndarray]) -> "Reservoir":
        """Draw from one piece. ValueError on a column of another length or a negative capacity."""
        check(capacity >= 0, "capacity", capacity, "at least 0")
        for name, column in columns.items():
            if len(column) != len(uid_N2):
                raise ValueError(f"column {name} has {len(column)} rows: must be {len(uid_N2)}, one per uid")
        drawn = np.lexsort((uid_N2[:, 1], uid_N2[:, 0], hash_uids(uid_N2, seed)))[:capacity]
        taken = {name: column[drawn] for name, column in columns.items()}
        return cls(capacity, seed, uid_N2[drawn], taken, len(uid_N2))

    def merge(self, other: "Reservoir") -> "Reservoir":
        """Return the draw from both pieces together; a piece that saw no rows may lack the columns."""
        if (self.capacity, self.seed) != (other.capacity, other.seed):
            raise ValueError("reservoirs of another capacity or seed: must be equal")
        if not other.num_seen or not self.num_seen:
            return self if self.num_seen else other
        uid_N2 = np.concatenate([self.uid_M2, other.uid_M2])
        pairs = ((name, column, other.columns[name]) for name, column in self.columns.items())
        columns = {name: np.concatenate(both) for name, *both in pairs}
        drawn = Reservoir.of(self.capacity, self.seed, uid_N2, columns)
        seen = self.num_seen + other.num_seen
        return Reservoir(self.capacity, self.seed, drawn.uid_M2, drawn.columns, seen)


BOTH, LOST, GAINED = range(3)


class Shifts(NamedTuple):
    """The second subset's shares minus the first's, [V] each; NaN where a subset is empty."""

    first: np.ndarray
    second: np.ndarray
    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """Ends of the 95 % interval, from -1 to 1; it excludes 0 exactly where ``p`` is below 0.05."""
    p: np.ndarray
    """Two-sided, of the hypothesis that both subsets have the same share; 1 without a changed row."""


def measure_shifts(count_3V: np.ndarray, size_3: np.ndarray) -> Shifts:
    """Test whether concepts are as frequent in the second subset as in the first.

    ``count_3V``: rows that have the concept, by group; ``size_3``: rows of each group. A score test for
    paired rows: the difference of shares is a sum over rows, each with the weight 1 / second size if the
    second keeps it, minus 1 / first size if the first does. A row of both subsets weighs nothing where these
    are of one size, and only changed rows count. For a rare concept z is then that of McNemar (1947),
    (gained - lost) / sqrt(gained + lost). Where the second is a part of the first, lost rows are compared
    with kept ones. The variance is the larger of two: the sum of squares about the common share, as in
    McNemar's, and the one expected at that share. So a few rows cannot give a small p.
    """
    from scipy.special import ndtr  # slow to import

    count_3V = np.asarray(count_3V, np.float64)
    both, lost, gained = (float(size) for size in size_3)
    num_first, num_second = both + lost, both + gained
    if not num_first or not num_second:
        nan_V = np.full(count_3V.shape[1], np.nan)
        return Shifts(nan_V, nan_V, nan_V, nan_V, nan_V, np.ones_like(nan_V))
    in_first_V, in_second_V = count_3V[BOTH] + count_3V[LOST], count_3V[BOTH] + count_3V[GAINED]
    difference_V = in_second_V / num_second - in_first_V / num_first
    weight_3 = np.array([1 / num_second - 1 / num_first, -1 / num_first, 1 / num_second])
    common_V = (in_first_V + in_second_V) / (num_first + num_second)
    without_3V = np.array([both, lost, gained])[:, None] - count_3V
    found_V = weight_3**2 @ (count_3V * (1 - common_V) ** 2 + without_3V * common_V**2)
    expected_V = float(weight_3**2 @ np.array([both, lost, gained])) * common_V * (1 - common_V)
    error_V = np.sqrt(np.maximum(found_V, expected_V))
    z_V = np.divide(difference_V, error_V, out=np.zeros_like(error_V), where=error_V > 0)
    reach_V = Z_95 * error_V
    low_V, high_V = np.maximum(difference_V - reach_V, -1.0), np.minimum(difference_V + reach_V, 1.0)
    p_V = 2 * ndtr(-np.abs(z_V))
    return Shifts(in_first_V / num_first, in_second_V / num_second, difference_V, low_V, high_V, p_V)


_SMALLEST_EIGENVALUE = 1e-10
# Share of the variance: a smaller remainder is rounding.
_EXACT = 1e-12


@dataclass(frozen=True)
class CrossMoments:
    """Count, means and centred cross products of columns seen in pieces, float64.

    Merges like ``alignment.Moments``: the bits repeat if the order of merging does.
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
