"""Statistics against slow loops, known answers and their own pieces."""

import itertools
import json
import math
from functools import reduce

import numpy as np
import pytest
from scipy import stats

from raycomp.core import metrics
from raycomp.core.metrics import (
    BOTH,
    GAINED,
    LOST,
    CrossMoments,
    Histogram,
    LinearFit,
    PairMoments,
    Reservoir,
    correlate_within,
    find_kappa,
    measure_shifts,
    pearson,
)


def test_auc_equals_all_pairs():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        num_values = 3 if seed % 2 else 10**6
        positive, negative = rng.integers(0, num_values, 40), rng.integers(0, num_values, 60)
        won = sum((p > n) + (p == n) / 2 for p, n in itertools.product(positive, negative))
        assert metrics.auc(positive, negative) == pytest.approx(won / 2400, abs=1e-12)
    with pytest.raises(ValueError, match="negative scores: must be at least 1"):
        metrics.auc(positive, [])
    with pytest.raises(ValueError, match=r"positive\[1\]=nan: must be finite"):
        metrics.auc([0, np.nan], negative)


def test_correlations_equal_numpy():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 20, 300) if seed % 2 else rng.standard_normal(300) + 100
        y = x * (seed - 2) + rng.standard_normal(300) * 5
        assert metrics.pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)
        rank = [[((v < c).sum() + (v <= c).sum() + 1) / 2 for c in v] for v in (x, y)]
        np.testing.assert_array_equal(metrics.average_ranks(x), rank[0])
        assert metrics.spearman(x, y) == pytest.approx(np.corrcoef(*rank)[0, 1], abs=1e-12)


def test_correlation_limits():
    x = np.linspace(0.1, 3, 50)
    assert metrics.pearson(x, 5 - 2 * x) == pytest.approx(-1)
    assert metrics.spearman(x, np.exp(x)) == pytest.approx(1)
    assert metrics.pearson(x, np.exp(x)) < 0.95
    constant = np.full(50, 0.1)
    for one, two in ((x, constant), (constant, x), (x[:1], x[:1]), (x[:0], x[:0])):
        assert math.isnan(metrics.pearson(one, two))
        assert math.isnan(metrics.spearman(one, two))
    with pytest.raises(ValueError, match="x has 50 rows and y 49"):
        metrics.pearson(x, x[1:])
    with pytest.raises(ValueError, match=r"y\[0\]=nan"):
        metrics.spearman(x[:1], [np.nan])


def test_pair_moments_merge():
    rng = np.random.default_rng(6)
    x = rng.standard_normal(2000) + 1000
    y = x + rng.standard_normal(2000)
    a, b, c = (PairMoments.of(x[s], y[s]) for s in (slice(0, 1), slice(1, 900), slice(900, 2000)))
    for merged in (a.merge(b).merge(c), a.merge(b.merge(c)), PairMoments().merge(c).merge(a).merge(b)):
        assert merged.count == 2000
        assert merged.pearson == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-10)
    assert a.merge(PairMoments()) == a
    assert PairMoments().merge(PairMoments()) == PairMoments.of([], [])


def test_correlation_interval_by_hand_and_its_limits():
    # r = 0.5 of 103 rows: z = 0.5493 -+ 0.1960.
    low, high = metrics.correlation_interval(0.5, 103)
    assert (low, high) == pytest.approx((math.tanh(0.549306 - 0.1959964), math.tanh(0.549306 + 0.1959964)))
    ranks = metrics.correlation_interval(0.5, 103, ranks=True)
    assert math.atanh(ranks[1]) - math.atanh(0.5) == pytest.approx(0.1959964 * 1.06**0.5)
    for r, num_rows in ((1.0, 99), (-1.0, 99), (math.nan, 99), (0.2, 3)):
        assert all(map(math.isnan, metrics.correlation_interval(r, num_rows)))


def test_share_interval_against_published_values():
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20.
    assert [round(x, 4) for x in metrics.share_interval(81, 263)] == [0.2553, 0.3662]
    assert [round(x, 4) for x in metrics.share_interval(15, 148)] == [0.0624, 0.1605]
    assert [round(x, 4) for x in metrics.share_interval(0, 20)] == [0.0, 0.1611]
    assert metrics.share_interval(0, 0) == (0.0, 1.0)


def test_kappa_by_hand_and_its_limits():
    """Of 50 rows: yes by both 20, no by both 15, so agreement is .7; by chance .5 * .6 + .5 * .4 = .5."""
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert find_kappa(pairs) == pytest.approx((0.7 - 0.5) / (1 - 0.5))
    assert find_kappa([("a", "a"), ("b", "b"), ("c", "c")]) == pytest.approx(1)
    assert find_kappa([("a", "b"), ("b", "a")]) == pytest.approx(-1)
    assert find_kappa([("a", "a")]) == 1 and find_kappa([("a", "b")]) == 0


def test_log_odds_equal_the_written_formula():
    kept, dropped = np.array([30, 5, 1, 0]), np.array([10, 20, 0, 7])
    lean, z = metrics.log_odds(kept, dropped, prior_words=50)
    total = 73
    for word in range(4):
        a = 50 * (kept[word] + dropped[word]) / total
        yk, yd = kept[word] + a, dropped[word] + a
        want = math.log(yk / (36 + 50 - yk)) - math.log(yd / (37 + 50 - yd))
        assert lean[word] == pytest.approx(want)
        assert z[word] == pytest.approx(want / math.sqrt(1 / yk + 1 / yd))


def test_log_odds_limits():
    kept, dropped = np.array([30, 5, 1]), np.array([10, 20, 4])
    np.testing.assert_allclose(metrics.log_odds(kept, 3 * kept), 0, atol=1e-12)
    plain = np.log(kept / (36 - kept)) - np.log(dropped / (34 - dropped))
    np.testing.assert_allclose(metrics.log_odds(kept, dropped, 1e-9)[0], plain, rtol=1e-6)
    assert (np.abs(metrics.log_odds(kept, dropped, 1e9)[0]) < 1e-6).all()
    np.testing.assert_array_equal(metrics.log_odds([4], [1]), [[0], [0]])
    for kept, dropped, prior, message in (
        ([0, 1], [0, 1], 1, "counts: must be at least 0, and at least 1"),
        ([-1, 1], [2, 1], 1, "counts: must be at least 0, and at least 1"),
        ([1, 2], [1], 1, "counts of 2 and 1 words"),
        ([1, 2], [2, 1], 0, "prior_words=0: must be above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            metrics.log_odds(kept, dropped, prior)


def test_histogram_equals_numpy_and_loses_no_row_in_any_order():
    rng = np.random.default_rng(8)
    value = np.concatenate([rng.standard_normal(1000), [-1, 1, -np.inf, np.inf, 0.5, np.nextafter(1, 2)]])
    whole = Histogram.of(value, -1, 1, 16)
    counts, edges = np.histogram(value[np.isfinite(value)], 16, (-1, 1))
    np.testing.assert_array_equal(whole.counts, counts)
    np.testing.assert_array_equal(whole.edges, edges)
    assert (whole.under, whole.over) == ((value < -1).sum(), (value > 1).sum())
    a, b, c = (Histogram.of(piece, -1, 1, 16) for piece in np.split(value, [0, 333]))
    assert a.merge(b).merge(c) == c.merge(a.merge(b)) == b.merge(c).merge(a) == whole
    with pytest.raises(ValueError, match="histograms of bins"):
        a.merge(Histogram.of(value, -1, 1, 17))
    with pytest.raises(ValueError, match="histogram of NaN"):
        Histogram.of([np.nan], 0, 1, 2)
    for low, high, num_bins in ((1, 1, 3), (0, 1, 0)):
        with pytest.raises(ValueError, match="must rise and have at least 1"):
            Histogram.of(value, low, high, num_bins)


def test_reservoir_does_not_depend_on_order_or_cutting():
    uid = np.random.default_rng(10).integers(0, 2**64, (300, 2), dtype=np.uint64)
    number = np.arange(300)
    text = np.array([f"caption {i}" for i in number], dtype=object)
    for capacity in [0, 1, 20, 500]:
        whole = Reservoir.of(capacity, 3, uid, {"row": number, "text": text})
        assert len(whole.uid_M2) == min(capacity, 300)
        mixed = np.random.default_rng(11).permutation(300)
        a, b, c, d = (
            Reservoir.of(capacity, 3, uid[rows], {"row": number[rows], "text": text[rows]})
            for rows in np.split(mixed, [0, 5, 150])
        )
        for merged in (a.merge(b).merge(c).merge(d), Reservoir(capacity, 3).merge(d.merge(c)).merge(b)):
            np.testing.assert_array_equal(merged.uid_M2, whole.uid_M2)
            np.testing.assert_array_equal(merged.columns["row"], whole.columns["row"])
            assert merged.num_seen == 300
        np.testing.assert_array_equal(text[whole.columns["row"]], whole.columns["text"])
        np.testing.assert_array_equal(uid[whole.columns["row"]], whole.uid_M2)
    with pytest.raises(ValueError, match="column row has 3 rows: must be 4"):
        Reservoir.of(2, 0, uid[:4], {"row": number[:3]})
    with pytest.raises(ValueError, match="capacity=-1"):
        Reservoir.of(-1, 0, uid, {})
    with pytest.raises(ValueError, match="another capacity or seed"):
        Reservoir.of(2, 0, uid, {}).merge(Reservoir.of(2, 1, uid, {}))


COLUMNS = ("a", "b", "c")


def make_columns(num: int, seed: int) -> list[np.ndarray]:
    """Columns of very different size and place, correlated, and one to explain."""
    rng = np.random.default_rng(seed)
    a, b, noise = rng.normal(size=(3, num))
    c = 5e3 + 40 * a + 30 * b + rng.normal(size=num)
    return [a, 1e-3 * b, c, 0.02 * a - 0.01 * b + 1e-5 * c + 0.05 * noise]


def fit_all(columns: list[np.ndarray]) -> LinearFit:
    return LinearFit.of(COLUMNS[: len(columns) - 1], CrossMoments.of(columns))


def merge_pieces(columns: list[np.ndarray], cuts: list[int]) -> CrossMoments:
    """Moments of the pieces between ``cuts``, some of them without rows, merged in order."""
    pieces = np.split(np.array(columns), cuts, axis=1)
    return reduce(CrossMoments.merge, map(CrossMoments.of, pieces))


def residuals(found: LinearFit, columns: list[np.ndarray]) -> np.ndarray:
    return found.residuals(dict(zip(COLUMNS, columns, strict=False)), columns[-1])


def design(columns: list[np.ndarray]) -> np.ndarray:
    return np.column_stack([np.ones(len(columns[0])), *columns[:-1]])


def test_the_fit_is_numpys():
    for num in [5, 100, 3000]:
        columns = make_columns(num, num)
        slope, rest, _, _ = np.linalg.lstsq(design(columns), columns[-1], rcond=None)
        found = fit_all(columns)
        assert np.allclose([found.intercept, *found.coefficients.values()], slope, rtol=1e-6, atol=1e-8)
        assert found.explained == pytest.approx(1 - rest[0] / columns[-1].var() / num, abs=1e-9)
        assert np.allclose(residuals(found, columns), columns[-1] - design(columns) @ slope, atol=1e-7)
        assert LinearFit.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_pieces_merged_are_the_whole_and_merged_again_the_same_bits():
    for cuts in [[0, 1], [500], [3, 3, 998], list(range(0, 1000, 37))]:
        columns = make_columns(1000, 1)
        merged, whole = merge_pieces(columns, cuts), CrossMoments.of(columns)
        assert merged.count == whole.count == 1000
        assert np.allclose(merged.mean_C, whole.mean_C, rtol=1e-13)
        assert np.allclose(merged.product_CC, whole.product_CC, rtol=1e-9, atol=1e-9)
        assert LinearFit.of(COLUMNS, merged) == LinearFit.of(COLUMNS, merge_pieces(columns, cuts))


def test_what_is_explained_wholly_leaves_ties():
    for cuts in [[], [0, 1], [250], list(range(0, 500, 37))]:
        a, b, c, _ = make_columns(500, 3)
        columns = [a, b, c, 7 - 2 * a + 300 * b + 0.01 * c]
        found = LinearFit.of(COLUMNS, merge_pieces(columns, cuts))
        assert found.explained == pytest.approx(1, abs=1e-12)
        slope = [found.intercept, *found.coefficients.values()]
        assert np.allclose(slope, [7, -2, 300, 0.01], rtol=1e-6)
        assert residuals(found, columns).tobytes() == bytes(4 * 500)
        columns[-1][7] = np.nan
        assert np.flatnonzero(np.isnan(residuals(found, columns))).tolist() == [7]
        with pytest.raises(ValueError, match="not finite"):
            CrossMoments.of(columns)


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
        found, plain = fit_all(more[what]), fit_all(less[what])
        assert np.isfinite([found.intercept, *found.coefficients.values()]).all()
        assert np.allclose(residuals(found, more[what]), residuals(plain, less[what]), atol=1e-7)


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


def count(has_NV: np.ndarray, first_N: np.ndarray, second_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    groups = {BOTH: first_N & second_N, LOST: first_N & ~second_N, GAINED: second_N & ~first_N}
    return (
        np.array([has_NV[groups[group]].sum(0) for group in range(3)]),
        np.array([groups[group].sum() for group in range(3)]),
    )


def test_it_is_the_sum_over_rows():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        has_NV = rng.random((300, 5)) < rng.random(5)
        first_N, second_N = rng.random(300) < 0.6, rng.random(300) < 0.3 + 0.1 * seed
        found = measure_shifts(*count(has_NV, first_N, second_N))
        for v in range(5):
            first = has_NV[first_N, v].mean()
            second = has_NV[second_N, v].mean()
            common = (has_NV[first_N, v].sum() + has_NV[second_N, v].sum()) / (first_N.sum() + second_N.sum())
            squares = expected = 0.0
            for row in range(300):
                weight = second_N[row] / second_N.sum() - first_N[row] / first_N.sum()
                squares += weight**2 * (has_NV[row, v] - common) ** 2
                expected += weight**2 * common * (1 - common)
            error = math.sqrt(max(squares, expected))
            assert found.first[v] == pytest.approx(first) and found.second[v] == pytest.approx(second)
            assert found.difference[v] == pytest.approx(second - first)
            assert found.high[v] - found.low[v] == pytest.approx(2 * 1.959963984540054 * error)
            assert found.p[v] == pytest.approx(2 * stats.norm.sf(abs(second - first) / error))


def test_a_rare_word_in_subsets_of_one_size_is_mcnemars():
    count_3V = np.array([[50], [12], [30]])
    found = measure_shifts(count_3V, np.array([10**7, 10**5, 10**5]))
    assert found.p[0] == pytest.approx(2 * stats.norm.sf(18 / math.sqrt(42)), rel=1e-3)


def test_no_changed_row_is_no_change():
    found = measure_shifts(np.array([[5, 0], [0, 0], [0, 0]]), np.array([9, 0, 0]))
    assert (found.p == 1).all() and (found.difference == 0).all()
    empty = measure_shifts(np.array([[0], [3], [0]]), np.array([0, 9, 0]))
    assert np.isnan(empty.difference).all() and (empty.p == 1).all()
