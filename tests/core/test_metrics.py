"""Statistics against slow loops, known answers and their own pieces."""

import itertools
import math

import numpy as np
import pytest

from raycomp.core import metrics
from raycomp.core.metrics import Histogram, PairMoments, Reservoir


def test_auc_equals_all_pairs():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        num_values = 3 if seed % 2 else 10**6
        positive, negative = (
            rng.integers(0, num_values, 40) + seed / 10,
            rng.integers(0, num_values, 60) + seed / 10,
        )
        won = sum((p > n) + (p == n) / 2 for p, n in itertools.product(positive, negative))
        assert metrics.auc(positive, negative) == pytest.approx(won / 2400, abs=1e-12)
        assert metrics.auc(negative, positive) == pytest.approx(1 - won / 2400, abs=1e-12)


def test_auc_limits():
    low, high = np.arange(5.0), np.arange(10.0, 13.0)
    assert metrics.auc(high, low) == 1
    assert metrics.auc(low, high) == 0
    assert metrics.auc(np.zeros(3), np.zeros(4)) == 0.5
    with pytest.raises(ValueError, match="negative scores: must be at least 1"):
        metrics.auc(low, low[:0])
    with pytest.raises(ValueError, match=r"positive\[1\]=nan: must be finite"):
        metrics.auc([0, np.nan], low)


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
    forth, back = metrics.log_odds(kept, dropped), metrics.log_odds(dropped, kept)
    np.testing.assert_allclose(forth, np.negative(back))
    np.testing.assert_allclose(metrics.log_odds(kept, 3 * kept), 0, atol=1e-12)
    plain = np.log(kept / (36 - kept)) - np.log(dropped / (34 - dropped))
    np.testing.assert_allclose(metrics.log_odds(kept, dropped, 1e-9)[0], plain, rtol=1e-6)
    assert (np.abs(metrics.log_odds(kept, dropped, 1e9)[0]) < 1e-6).all()
    np.testing.assert_array_equal(metrics.log_odds([4], [1]), [[0], [0]])
    assert metrics.log_odds([4, 1], [0, 0])[1] == pytest.approx(0, abs=1e-12)
    for kept, dropped in (([0, 1], [0, 1]), ([-1, 1], [2, 1])):
        with pytest.raises(ValueError, match="counts: must be at least 0, and at least 1"):
            metrics.log_odds(kept, dropped)
    with pytest.raises(ValueError, match="counts of 2 and 1 words"):
        metrics.log_odds([1, 2], [1])
    with pytest.raises(ValueError, match="prior_words=0: must be above 0"):
        metrics.log_odds([1, 2], [2, 1], 0)


def test_histogram_equals_numpy_and_loses_no_row():
    rng = np.random.default_rng(8)
    value = np.concatenate([rng.standard_normal(1000), [-1, 1, -np.inf, np.inf, 0.5, np.nextafter(1, 2)]])
    histogram = Histogram.of(value, -1, 1, 16)
    counts, edges = np.histogram(value[np.isfinite(value)], 16, (-1, 1))
    np.testing.assert_array_equal(histogram.counts, counts)
    np.testing.assert_array_equal(histogram.edges, edges)
    assert histogram.under == (value < -1).sum() > 1
    assert histogram.over == (value > 1).sum() > 2
    assert sum(histogram.counts) + histogram.under + histogram.over == len(value)


def test_histograms_merge_in_any_order():
    value = np.random.default_rng(9).standard_normal(1000).astype(np.float32)
    whole = Histogram.of(value, -2, 2, 40)
    a, b, c = (Histogram.of(piece, -2, 2, 40) for piece in np.split(value, [0, 333]))
    assert a.merge(b).merge(c) == c.merge(a.merge(b)) == b.merge(c).merge(a) == whole
    with pytest.raises(ValueError, match="histograms of bins"):
        a.merge(Histogram.of(value, -2, 2, 41))
    with pytest.raises(ValueError, match="histogram of NaN"):
        Histogram.of([np.nan], 0, 1, 2)
    for low, high, num_bins in ((1, 1, 3), (2, 1, 3), (0, 1, 0)):
        with pytest.raises(ValueError, match="must rise and have at least 1"):
            Histogram.of(value, low, high, num_bins)


def draw_rows(num: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    uid = np.random.default_rng(10).integers(0, 2**64, (num, 2), dtype=np.uint64)
    return uid, {"row": np.arange(num), "text": np.array([f"caption {i}" for i in range(num)], dtype=object)}


def take(columns: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[rows] for name, column in columns.items()}


def test_reservoir_does_not_depend_on_order_or_cutting():
    for capacity in [0, 1, 20, 500]:
        uid, columns = draw_rows(300)
        whole = Reservoir.of(capacity, 3, uid, columns)
        assert len(whole.uid_M2) == min(capacity, 300)
        mixed = np.random.default_rng(11).permutation(300)
        pieces = [
            Reservoir.of(capacity, 3, uid[rows], take(columns, rows)) for rows in np.split(mixed, [0, 5, 150])
        ]
        a, b, c, d = pieces
        for merged in (
            a.merge(b).merge(c).merge(d),
            d.merge(c.merge(b.merge(a))),
            Reservoir(capacity, 3).merge(b.merge(c)).merge(d),
        ):
            np.testing.assert_array_equal(merged.uid_M2, whole.uid_M2)
            np.testing.assert_array_equal(merged.columns["row"], whole.columns["row"])
            assert merged.num_seen == 300
        for row, text in zip(whole.columns["row"], whole.columns["text"], strict=True):
            assert text == f"caption {row}"
        np.testing.assert_array_equal(uid[whole.columns["row"]], whole.uid_M2)


def test_reservoir_refuses_what_does_not_fit():
    uid, columns = draw_rows(4)
    with pytest.raises(ValueError, match="column row has 3 rows: must be 4"):
        Reservoir.of(2, 0, uid, {"row": np.arange(3)})
    with pytest.raises(ValueError, match="capacity=-1"):
        Reservoir.of(-1, 0, uid, columns)
    with pytest.raises(ValueError, match="another capacity or seed"):
        Reservoir.of(2, 0, uid, columns).merge(Reservoir.of(2, 1, uid, columns))
