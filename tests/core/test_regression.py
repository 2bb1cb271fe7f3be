"""Least squares out of merged sums against numpy's on the whole design."""

import json
import math
from functools import reduce

import numpy as np
import pytest

from raycomp.core.metrics import CrossMoments, LinearFit, correlate_within, pearson

NAMES = ("a", "b", "c")


def make_columns(num: int, seed: int) -> list[np.ndarray]:
    """Columns of very different size and place, correlated, and one to explain."""
    rng = np.random.default_rng(seed)
    a, b, noise = rng.normal(size=(3, num))
    c = 5e3 + 40 * a + 30 * b + rng.normal(size=num)
    return [a, 1e-3 * b, c, 0.02 * a - 0.01 * b + 1e-5 * c + 0.05 * noise]


def fit(columns: list[np.ndarray]) -> LinearFit:
    return LinearFit.of(NAMES[: len(columns) - 1], CrossMoments.of(columns))


def merge_pieces(columns: list[np.ndarray], cuts: list[int]) -> CrossMoments:
    """Moments of the pieces between ``cuts``, some of them without rows, merged in order."""
    pieces = np.split(np.array(columns), cuts, axis=1)
    return reduce(CrossMoments.merge, map(CrossMoments.of, pieces))


def residuals(found: LinearFit, columns: list[np.ndarray]) -> np.ndarray:
    return found.residuals(dict(zip(NAMES, columns, strict=False)), columns[-1])


def design(columns: list[np.ndarray]) -> np.ndarray:
    return np.column_stack([np.ones(len(columns[0])), *columns[:-1]])


def test_the_fit_is_numpys():
    for num in [5, 100, 3000]:
        columns = make_columns(num, num)
        slope, rest, _, _ = np.linalg.lstsq(design(columns), columns[-1], rcond=None)
        found = fit(columns)
        assert np.allclose([found.intercept, *found.coefficients.values()], slope, rtol=1e-6, atol=1e-8)
        assert found.explained == pytest.approx(1 - rest[0] / columns[-1].var() / num, abs=1e-9)
        assert np.allclose(residuals(found, columns), columns[-1] - design(columns) @ slope, atol=1e-7)


def test_pieces_merged_are_the_whole_and_merged_again_the_same_bits():
    for cuts in [[0, 1], [500], [3, 3, 998], list(range(0, 1000, 37))]:
        columns = make_columns(1000, 1)
        merged, whole = merge_pieces(columns, cuts), CrossMoments.of(columns)
        assert merged.count == whole.count == 1000
        assert np.allclose(merged.mean_C, whole.mean_C, rtol=1e-13)
        assert np.allclose(merged.product_CC, whole.product_CC, rtol=1e-9, atol=1e-9)
        assert LinearFit.of(NAMES, merged) == LinearFit.of(NAMES, merge_pieces(columns, cuts))


def test_what_is_explained_wholly_leaves_ties():
    for cuts in [[], [0, 1], [250], list(range(0, 500, 37))]:
        a, b, c, _ = make_columns(500, 3)
        columns = [a, b, c, 7 - 2 * a + 300 * b + 0.01 * c]
        found = LinearFit.of(NAMES, merge_pieces(columns, cuts))
        assert found.explained == pytest.approx(1, abs=1e-12)
        slope = [found.intercept, *found.coefficients.values()]
        assert np.allclose(slope, [7, -2, 300, 0.01], rtol=1e-6)
        assert residuals(found, columns).tobytes() == bytes(4 * 500)
        columns[-1][7] = np.nan
        assert np.flatnonzero(np.isnan(residuals(found, columns))).tolist() == [7]


def test_a_column_that_says_nothing_new_changes_no_residual():
    for what in ["constant", "twice", "sum", "all constant"]:
        a, b, c, y = make_columns(600, 4)
        less = {"constant": [a, b, y], "twice": [a, b, y], "sum": [a, c, y], "all constant": [y * 0 + 3, y]}
        more = {
            "constant": [a, b, np.full(600, 0.1), y],
            "twice": [a, b, 1000 * a, y],
            "sum": [a, c, a + 1e-3 * c, y],
            "all constant": [y * 0 + 3, y * 0, y * 0 - 1e9, y],
        }
        found = fit(more[what])
        assert np.isfinite([found.intercept, *found.coefficients.values()]).all()
        assert np.allclose(residuals(found, more[what]), residuals(fit(less[what]), less[what]), atol=1e-7)


def test_a_row_without_a_value_has_no_residual_and_cannot_be_fitted():
    columns = make_columns(20, 9)
    found = fit(columns)
    columns[1][3] = np.nan
    assert np.flatnonzero(np.isnan(residuals(found, columns))).tolist() == [3]
    with pytest.raises(ValueError, match="not finite"):
        CrossMoments.of(columns)


def test_a_fit_survives_json_to_the_bit():
    found = fit(make_columns(64, 10))
    assert LinearFit.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_partial_correlation_is_that_of_residuals_on_groups_and_controls():
    rng = np.random.default_rng(6)
    run = np.repeat(np.arange(5), [4, 4, 3, 6, 1])
    control, x, y = rng.normal(size=(3, 18)) + run
    design_NC = np.column_stack([run[:, None] == np.arange(5), control]).astype(float)
    left = [one - design_NC @ np.linalg.lstsq(design_NC, one)[0] for one in (x, y)]
    found = correlate_within(x, y, [control, 2 * control], run)
    assert found.r == pytest.approx(pearson(*left), abs=1e-10)
    assert found.freedom == 18 - 5 - 1


def test_what_controls_explain_whole_has_no_partial_correlation():
    rng = np.random.default_rng(7)
    x, y, run = rng.normal(size=12), rng.normal(size=12), np.arange(12) // 4
    for first, controls in ((x, [x]), (x, [1e6 + 3 * x]), (run.astype(float), []), (np.full(12, 0.1), [y])):
        assert math.isnan(correlate_within(first, y, controls, run).r)
    assert math.isnan(correlate_within(x[:0], y[:0], [], run[:0]).r)
    with pytest.raises(ValueError, match=r"columns of \[12, 11, 12\] rows: must be equal"):
        correlate_within(x, y[1:], [], run)
