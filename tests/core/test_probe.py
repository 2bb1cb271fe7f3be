"""Measures of the composition probe against known distributions, slow loops and limits."""

import math
from itertools import permutations

import numpy as np
import pytest

from raycomp.core import probe


def test_a_perfect_encoder_where_swapping_is_closed():
    """All ordered pairs of 12 words, one-hot by place: every caption's swap is another's caption."""
    pairs = np.array(list(permutations(range(12), 2)))
    first = np.concatenate([np.eye(12)[pairs[:, 0]], np.eye(12)[pairs[:, 1]]], axis=1)
    second = np.concatenate([first[:, 12:], first[:, :12]], axis=1)
    got = probe.bound_a_distance(first, second, np.random.default_rng(7), num_refits=2)
    assert got.value <= got.null_high
    assert got.value < 0.1
    np.testing.assert_allclose(probe.pair_distance(first, second), 2)
    np.testing.assert_array_equal(probe.two_way_choice(first, first, second), 1)


def test_pair_distance_and_similarity():
    one, two = np.array([[1.0, 0], [0, 1], [1, 0]]), np.array([[0.0, 1], [0, 1 + 1e-8], [-1, 0]])
    np.testing.assert_allclose(probe.pair_distance(one, two), [math.sqrt(2), 0, 2])
    assert probe.pair_distance(one, two)[1] == 0
    np.testing.assert_allclose(probe.pair_similarity(one, two), [0, 1, -1])


def test_bootstrap_limits():
    rng = np.random.default_rng(9)
    for above, below, want in (([2, 4, 6], [1, 2, 3], 2), ([1, 1, 1], [1, 1, 1], 1), ([3], [2], 1.5)):
        got = probe.bootstrap_ratio(np.array(above), np.array(below), np.arange(len(above)), rng)
        assert got.value == want
        assert math.isnan(got.low) and math.isnan(got.high)
    for empty in (np.zeros(0), np.zeros(3)):
        got = probe.bootstrap_ratio(empty, empty, np.arange(len(empty)), rng)
        assert all(map(math.isnan, got))
    half_empty = probe.bootstrap_ratio(np.array([1.0, 2]), np.array([1.0, 0]), np.arange(2), rng)
    assert half_empty.value == 3
    assert 1 <= half_empty.low <= half_empty.high <= 3


def test_shuffling_moves_its_share_of_the_words():
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(20)]
    for share in (0.25, 0.5, 0.75, 1.0):
        moved = probe.shuffle_words(" ".join(words), share, rng).split()
        assert sorted(moved) == sorted(words)
        assert sum(a != b for a, b in zip(words, moved, strict=True)) == 20 * share
    assert probe.shuffle_words("two words", 0.01, rng) == "words two"
    assert probe.shuffle_words("a  b c", 0, rng) == "a  b c"
    for text in ("", "one"):
        assert probe.shuffle_words(text, 1, rng) == text
    with pytest.raises(ValueError, match=r"share=1\.5"):
        probe.shuffle_words("a b", 1.5, rng)


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
