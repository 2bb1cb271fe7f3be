"""Intervals against draws, limits, and tables of known tests."""

import math

import numpy as np
import pytest

from raycomp.core.intervals import compare_paired, find_share, hierarchical_interval, mcnemar
from raycomp.core.metrics import share_interval


def test_examples_of_their_own_images_have_wilsons_interval():
    right_N = np.array([1.0] * 30 + [0.0] * 10)
    found = find_share(right_N, np.arange(40))
    low, high = share_interval(30, 40)
    assert found.value == 0.75
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.005)


def test_repeating_every_image_tells_nothing_more():
    right_N = np.array([1.0] * 30 + [0.0] * 10)
    once = find_share(right_N, np.arange(40))
    often = find_share(np.repeat(right_N, 5), np.repeat(np.arange(40), 5))
    assert (often.low, often.high) == pytest.approx((once.low, once.high), abs=0.005)
    assert often.detectable == pytest.approx(once.detectable, abs=0.01)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_right_or_all_wrong_still_has_an_interval_of_its_images(value: float):
    found = find_share(np.full(50, value), np.repeat(np.arange(10), 5))
    assert (found.low, found.high) == pytest.approx(share_interval(int(10 * value), 10))
    assert 0 < found.detectable <= 1


def test_intervals_of_clustered_examples_cover_the_truth():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(300):
        image_G = rng.beta(2, 2, 60)
        unit_N = np.repeat(np.arange(60), rng.integers(1, 9, 60))
        right_N = (rng.random(len(unit_N)) < image_G[unit_N]).astype(float)
        found = find_share(right_N, unit_N)
        covered += found.low <= 0.5 <= found.high
    assert 0.92 <= covered / 300 <= 0.98


def test_macro_is_the_mean_of_splits_and_micro_of_examples():
    right_N, split_N = np.array([1.0] * 10 + [0.0] * 90), np.array(["a"] * 10 + ["b"] * 90)
    assert find_share(right_N, np.arange(100), split_N).value == 0.5
    assert find_share(right_N, np.arange(100)).value == pytest.approx(0.1)


def test_macro_intervals_cover_the_truth():
    rng, covered = np.random.default_rng(1), 0
    split_N = np.repeat(["few", "many"], [40, 400])
    truth_N = np.repeat([0.9, 0.5], [40, 400])
    for _ in range(300):
        found = find_share((rng.random(440) < truth_N).astype(float), np.arange(440), split_N)
        covered += found.low <= 0.7 <= found.high
    assert 0.92 <= covered / 300 <= 0.98


def test_what_is_detectable_is_found_in_four_of_five_cases():
    rng, num, found = np.random.default_rng(2), 400, 0
    detectable = find_share((np.arange(num) < 0.6 * num).astype(float), np.arange(num)).detectable
    for _ in range(400):
        first_N, second_N = rng.random(num) < 0.6, rng.random(num) < 0.6 + detectable
        found += compare_paired(first_N, second_N, np.arange(num)).p_units < 0.05
    assert 0.72 <= found / 400 <= 0.9


def test_no_examples_have_no_share():
    assert all(math.isnan(value) for value in find_share(np.zeros(0), np.zeros(0)))


@pytest.mark.parametrize(
    ("only_first", "only_second", "expected"),
    [
        (0, 0, 1.0),
        (0, 5, 0.0625),
        (1, 9, 0.021484375),
        (5, 5, 1.0),
        (10, 3, 0.0922851562),
        (3, 10, 0.0922851562),
    ],
)
def test_mcnemar_against_binomial_tables(only_first, only_second, expected):
    assert mcnemar(only_first, only_second) == pytest.approx(expected)


def test_mcnemar_of_many_examples_is_that_of_the_normal_limit():
    z = (10_300 - 9_700 - 1) / math.sqrt(20_000)
    assert mcnemar(9_700, 10_300) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=5e-3)


def test_two_models_are_compared_on_the_examples_that_part_them():
    first_N, second_N = np.array([1.0, 1, 0, 0, 1]), np.array([1.0, 0, 1, 1, 1])
    found = compare_paired(first_N, second_N, np.arange(5))
    assert (found.only_first, found.only_second) == (1, 2)
    assert found.difference == pytest.approx(0.2)
    assert found.low < 0.2 < found.high
    back = compare_paired(second_N, first_N, np.arange(5))
    assert (back.difference, back.p, back.p_units) == pytest.approx((-0.2, found.p, found.p_units))


def test_a_model_differs_from_itself_by_nothing():
    right_N = np.array([1.0, 0, 1])
    found = compare_paired(right_N, right_N, np.arange(3))
    assert (found.difference, found.p, found.p_units) == (0, 1, 1)
    assert math.isnan(found.low)


def test_seeds_and_images_both_widen_an_interval():
    rng = np.random.default_rng(3)
    image_N, seed_S = rng.normal(0, 1, 100), rng.normal(0, 1, 10)
    flat, unit_N = np.zeros((10, 100)), np.arange(100)

    def width(value_SN: np.ndarray) -> float:
        _, low, high = hierarchical_interval([(value_SN, unit_N)], np.random.default_rng(0))
        return high - low

    by_image, by_seed = width(flat + image_N), width(flat + seed_S[:, None])
    assert by_image == pytest.approx(2 * 1.96 * image_N.std() / 10, rel=0.1)
    assert by_seed == pytest.approx(2 * 1.96 * seed_S.std() / math.sqrt(10), rel=0.1)
    assert width(flat + image_N + seed_S[:, None]) > max(by_image, by_seed)
    assert width(flat) == 0


def test_blocks_count_alike_whatever_their_size():
    blocks = [(np.ones((2, 5)), np.arange(5)), (np.zeros((8, 50)), np.arange(50))]
    assert hierarchical_interval(blocks, np.random.default_rng(0)) == pytest.approx((0.5, 0.5, 0.5))
