"""Intervals against draws, limits, and tables of known tests."""

import math

import numpy as np
import pytest

from raycomp.core.intervals import compare_paired, compute_share, mcnemar
from raycomp.core.metrics import share_interval


def test_examples_of_their_own_images_have_wilsons_interval():
    right_N = np.array([1.0] * 30 + [0.0] * 10)
    found = compute_share(right_N, np.arange(40))
    low, high = share_interval(30, 40)
    assert found.value == 0.75
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.005)


def test_all_right_or_all_wrong_still_has_an_interval_of_its_images():
    for value in [0.0, 1.0]:
        found = compute_share(np.full(50, value), np.repeat(np.arange(10), 5))
        assert (found.low, found.high) == pytest.approx(share_interval(int(10 * value), 10))
        assert 0 < found.detectable <= 1


def test_intervals_of_clustered_examples_cover_the_truth():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(300):
        image_G = rng.beta(2, 2, 60)
        unit_N = np.repeat(np.arange(60), rng.integers(1, 9, 60))
        right_N = (rng.random(len(unit_N)) < image_G[unit_N]).astype(float)
        found = compute_share(right_N, unit_N)
        covered += found.low <= 0.5 <= found.high
    assert 0.92 <= covered / 300 <= 0.98


def test_macro_is_the_mean_of_splits_and_micro_of_examples():
    right_N, split_N = np.array([1.0] * 10 + [0.0] * 90), np.array(["a"] * 10 + ["b"] * 90)
    assert compute_share(right_N, np.arange(100), split_N).value == 0.5
    assert compute_share(right_N, np.arange(100)).value == pytest.approx(0.1)


def test_no_examples_have_no_share():
    assert all(math.isnan(value) for value in compute_share(np.zeros(0), np.zeros(0)))


def test_mcnemar_against_binomial_tables():
    for only_first, only_second, expected in [
        (0, 0, 1.0),
        (0, 5, 0.0625),
        (1, 9, 0.021484375),
        (5, 5, 1.0),
        (10, 3, 756 / 8192),
        (3, 10, 756 / 8192),
    ]:
        assert mcnemar(only_first, only_second) == pytest.approx(expected, rel=1e-12)


def test_two_models_are_compared_on_the_examples_that_part_them():
    first_N, second_N = np.array([1.0, 1, 0, 0, 1]), np.array([1.0, 0, 1, 1, 1])
    found = compare_paired(first_N, second_N, np.arange(5))
    assert (found.only_first, found.only_second) == (1, 2)
    assert found.difference == pytest.approx(0.2)
    assert found.low < 0.2 < found.high
    back = compare_paired(second_N, first_N, np.arange(5))
    assert (back.difference, back.p, back.p_units) == pytest.approx((-0.2, found.p, found.p_units))


@pytest.mark.slow
def test_means_over_classes_of_few_examples_are_covered_and_not_distinguished_by_chance():
    for num in [1, 2, 5]:
        rng, covered, found_apart = np.random.default_rng(5), 0, 0
        share_C = rng.beta(4, 2, 50)
        class_N = np.repeat(np.arange(50), num)
        units = np.arange(len(class_N))
        for _ in range(200):
            first_N, second_N = (rng.random((2, len(class_N))) < share_C[class_N]).astype(float)
            found = compute_share(first_N, units, class_N)
            covered += found.low <= share_C.mean() <= found.high
            found_apart += compare_paired(first_N, second_N, units, class_N).p_units < 0.05
        assert covered / 200 >= 0.93
        assert found_apart / 200 <= 0.07


def test_what_splits_share_an_image_is_counted_together():
    right_N, unit_N = np.tile(np.repeat([1.0, 0.0], 50), 2), np.tile(np.arange(100), 2)
    split_N = np.repeat([0, 1], 100)
    shared, apart = compute_share(right_N, unit_N, split_N), compute_share(right_N, np.arange(200), split_N)
    assert shared.high - shared.low == pytest.approx(math.sqrt(2) * (apart.high - apart.low), rel=0.02)


def test_mcnemar_is_left_out_where_examples_share_an_image():
    first_N, second_N = np.array([1, 0, 0, 1, 1, 0]), np.array([1, 1, 1, 1, 0, 1])
    alone = compare_paired(first_N, second_N, np.arange(6))
    shared = compare_paired(first_N, second_N, np.array([0, 1, 2, 3, 4, 4]))
    assert alone.p == pytest.approx(mcnemar(1, 3)) and math.isnan(shared.p)
    assert (alone.difference, alone.only_first, alone.only_second) == (shared.difference, 1, 3)


def test_a_model_differs_from_itself_by_nothing():
    right_N = np.array([1.0, 0, 1])
    found = compare_paired(right_N, right_N, np.arange(3))
    assert (found.difference, found.p, found.p_units) == (0, 1, 1)
    assert math.isnan(found.low)
