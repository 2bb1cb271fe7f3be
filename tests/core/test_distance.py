"""The A-distance from below: known distributions, a slow loop, and simulation of fresh data."""

import math

import numpy as np
import pytest

from raycomp.core import probe


def bound(first: np.ndarray, second: np.ndarray, refits: int = 2, num_null: int = 2) -> probe.ADistance:
    return probe.bound_a_distance(first, second, np.random.default_rng(7), refits, num_null)


def gaussians(num: int, dims: int, gap: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two samples whose best classifier errs with probability Phi(-gap / 2)."""
    first, second = np.random.default_rng(seed).standard_normal((2, num, dims))
    second[:, 0] += gap
    return first, second


def truth(gap: float) -> float:
    return 2 * math.erf(gap / 2 / math.sqrt(2))


def test_gaussians_of_known_separation_where_pairs_are_many():
    for gap in (0.5, 1.0, 2.0):
        got = bound(*gaussians(4000, 6, gap), refits=20, num_null=100)
        assert got.value == pytest.approx(truth(gap), abs=0.07)
        assert got.low < got.value < got.high
        assert got.high - got.low < 0.2
        assert got.null_high < 0.15 < got.low


@pytest.mark.slow
def test_intervals_cover_what_is_expected_at_this_number_of_pairs():
    """Fresh data sets; refits see fewer different pairs, so the intervals are wide rather than narrow."""
    fresh = [bound(*gaussians(160, 32, 1.0, seed), refits=20) for seed in range(40)]
    values = np.array([one.value for one in fresh])
    covered = np.mean([one.low <= values.mean() <= one.high for one in fresh])
    reach = np.mean([(one.high - one.low) / 2 / 1.96 for one in fresh])
    assert covered >= 0.93
    assert 0.95 < reach / values.std(ddof=1) < 1.7
    assert values.mean() < truth(1.0)
    assert np.mean([one.low <= truth(1.0) for one in fresh]) > 0.97


def test_one_distribution_is_within_its_null_and_far_ones_are_at_2():
    first, second = gaussians(400, 8, 0.0)
    same = bound(first, second, num_null=100)
    assert same.null_low < same.null_mean < same.null_high
    assert abs(same.null_mean) < 0.05
    assert same.null_low - 0.05 < same.value < same.null_high + 0.05
    far = bound(first, second + 20)
    assert far.value == 2
    assert far.curve == (2, 2, 2)
    assert math.isnan(far.low)
    assert bound(first, first).value == 0


def test_copies_of_a_pair_stay_in_one_fold():
    """Each pair has a direction of its own, that tells its texts apart and nothing of another pair's."""
    rng = np.random.default_rng(5)
    step = rng.standard_normal((120, 150))
    first, second = (0.1 * rng.standard_normal((120, 150)) + sign * step for sign in (-1, 1))
    ones, thrice = np.ones((120, 1)), np.full(120, 3)
    held = probe._bound(first, second, thrice, ones, np.random.default_rng(0))
    once = probe._bound(first, second, ones[:, 0], ones, np.random.default_rng(0))
    np.testing.assert_allclose(held, once)
    assert abs(held[0]) < 0.4
    torn = (np.repeat(each, 3, axis=0) for each in (first, second))
    assert bound(*torn).value > 1.5
    assert bound(first, second, refits=5).high < 1


def test_equals_a_slow_nested_ridge_of_repeated_rows():
    rng = np.random.default_rng(6)
    first, second = rng.standard_normal((2, 40, 4))
    second[:, 0] += 0.7
    times = rng.integers(0, 3, 40)
    got = probe._bound(first, second, times, np.ones((40, 1)), np.random.default_rng(1))
    seen = np.flatnonzero(times)
    fold = np.full(40, -1)
    fold[seen] = probe.draw_folds(seen, 5, np.random.default_rng(1))

    def errors(train: np.ndarray, test: np.ndarray, ridge: float) -> float:
        rows = np.repeat(np.arange(40), times * train)
        x, y = np.concatenate([first[rows], second[rows]]), np.repeat([1.0, -1.0], len(rows))
        mean, scatter = x.mean(axis=0), np.cov(x.T, bias=True) * len(x)
        weight = np.linalg.inv(scatter + ridge * np.trace(scatter) / 4 * np.eye(4)) @ (x - mean).T @ y
        wrong = ((first - mean) @ weight < 0) / 2 + ((second - mean) @ weight > 0) / 2
        return (wrong * times * test).sum()

    total = 0.0
    for this in range(5):
        choice = [
            sum(
                errors(~np.isin(fold, (-1, this, other)), fold == other, ridge)
                for other in ((this + 1) % 5, (this - 1) % 5)
            )
            for ridge in probe.RIDGES
        ]
        ridge = probe.RIDGES[int(np.argmin(choice))]
        total += errors(~np.isin(fold, (-1, this)), fold == this, ridge)
    np.testing.assert_allclose(got, [2 * (1 - 2 * total / times.sum())])


def test_folds_keep_groups_whole_and_even():
    group_N = np.random.default_rng(3).integers(0, 53, 400)
    fold_N = probe.draw_folds(group_N, 5, np.random.default_rng(4))
    folds = [set(group_N[fold_N == fold]) for fold in range(5)]
    assert sum(len(fold) for fold in folds) == len(set(group_N)) == len(set.union(*folds))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1


def test_too_few_pairs_have_none_and_shapes_must_fit():
    x = np.random.default_rng(0).standard_normal((19, 2))
    few = bound(x[:9], x[1:10])
    assert all(map(math.isnan, [*few[:6], *few.curve]))
    some = bound(x, x[::-1])
    assert not math.isnan(some.value)
    assert all(map(math.isnan, some.curve))
    with pytest.raises(ValueError, match="as many rows"):
        bound(x, x[1:])


def test_no_text_is_drawn_twice_on_a_side():
    first, second = np.random.default_rng(1).integers(0, 40, (2, 300))
    for seed in range(20):
        rows = probe.draw_pairs(first, second, np.random.default_rng(seed))
        assert len(rows) == len(set(first[rows])) == len(set(second[rows])) > 15
