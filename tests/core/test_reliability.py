"""Test-retest reliability against simulated drops whose reliability is known, and plain loops."""

import numpy as np
import pytest

from raycomp.core import reliability

NUM_SAMPLES, PHRASES, NONCES = 6000, 3, 16
OFFSETS = np.arange(0, NUM_SAMPLES * PHRASES + 1, PHRASES)


def simulate(own: float, error: float, seed: int = 0, nonces: int = NONCES) -> np.ndarray:
    """Return drops (P, T) whose samples' parts have variance own^2 and whose nonces have error^2 each."""
    rng = np.random.default_rng(seed)
    part_P = np.repeat(own * rng.standard_normal(NUM_SAMPLES), PHRASES)
    return part_P[:, None] + error * rng.standard_normal((NUM_SAMPLES * PHRASES, nonces))


def correlate_halves(
    drop_PT: np.ndarray, offset_E: np.ndarray, count: int, rng: np.random.Generator, num_splits: int = 20
) -> float:
    """Return Pearson's r of both halves, the mean of the splits."""
    half_BS2 = reliability.draw_halves(drop_PT, offset_E, count, rng, num_splits)
    return reliability._correlate(half_BS2, np.ones((1, len(half_BS2)))).item()


def test_known_reliability():
    """Errors of 3 phrases and ``count`` nonces average to a variance of 9 / 3 / count beside 1."""
    for count in [1, 2, 4, 8]:
        got = correlate_halves(simulate(1, 3), OFFSETS, count, np.random.default_rng(1))
        assert got == pytest.approx(1 / (1 + 3 / count), abs=0.02)


def test_spearman_brown_takes_one_count_to_another():
    for one, times in ((0.25, 4), (0.5, 2), (0.9, 0.5)):
        error = (1 - one) / one
        assert reliability.spearman_brown(one, times) == pytest.approx(1 / (1 + error / times))
    assert reliability.spearman_brown(0.3, 1) == 0.3
    assert reliability.spearman_brown(0.0, 5) == 0
    assert reliability.spearman_brown(1.0, 5) == 1
    with pytest.raises(ValueError, match=r"times=0: must be above 0"):
        reliability.spearman_brown(0.5, 0)
    with pytest.raises(ValueError, match=r"reliability=-0.5.*times=3"):
        reliability.spearman_brown(-0.5, 3)


def test_halves_are_plain_means_of_disjoint_columns():
    drop_PT = simulate(1, 1, nonces=4)[:9]
    offset_E = np.array([0, 2, 2, 9])
    half_BS2 = reliability.draw_halves(drop_PT, offset_E, 2, np.random.default_rng(3), num_splits=5)
    rng = np.random.default_rng(3)
    for split in range(5):
        order = rng.permutation(4)
        for half, columns in enumerate((order[::2], order[1::2])):
            want = [drop_PT[a:b, columns].mean() for a, b in ((0, 2), (2, 9))]
            np.testing.assert_allclose(half_BS2[[0, 2], split, half], want, rtol=1e-5)
    assert np.isnan(half_BS2[1]).all()


def test_halves_of_another_reading_and_of_a_sum():
    """The least drop per displacement, each the mean of its half's nonces; what is added does not vary."""
    drop_PT = simulate(1, 1, nonces=4)[:9]
    moved_PT = np.random.default_rng(4).uniform(0.1, 0.9, drop_PT.shape)
    offset_E, rng = np.array([0, 2, 9]), np.random.default_rng(3)
    half_BS2 = reliability.draw_halves(drop_PT, offset_E, 2, rng, 5, moved_PT, "min")
    rng = np.random.default_rng(3)
    for split in range(5):
        order = rng.permutation(4)
        for half, columns in enumerate((order[::2], order[1::2])):
            value_P = drop_PT[:, columns].mean(1) / np.sqrt(2 * moved_PT[:, columns].mean(1))
            want = [value_P[:2].min(), value_P[2:].min()]
            np.testing.assert_allclose(half_BS2[:, split, half], want, rtol=1e-5)
    drop_PT, moved_PT = simulate(0, 1), np.ones((NUM_SAMPLES * PHRASES, NONCES))
    base_B = np.random.default_rng(5).standard_normal(NUM_SAMPLES)
    [found] = reliability.measure_retest(
        drop_PT, OFFSETS, (1,), 0.5, np.arange(NUM_SAMPLES), rng, 20, base_B, displacement_PT=moved_PT
    )
    # Errors of 3 phrases, divided by the root of 2, have a variance of 1 / 6 beside 1.
    assert found.reliability[0] == pytest.approx(1 / (1 + 1 / 6), abs=0.02)


def test_phrases_with_few_nonces():
    """Of 4 columns one phrase has 3 nonces, 2 to 1; one has a single one and stands out of both halves."""
    nan = np.nan
    drop_PT = np.array([[1.0, 2.0, 4.0, nan], [9.0, nan, nan, nan], [5.0, nan, 7.0, nan]])
    half_BS2 = reliability.draw_halves(drop_PT, np.array([0, 2, 3]), 2, np.random.default_rng(0))
    pairs = {tuple(pair) for pair in half_BS2[0].tolist()}
    assert pairs == {(1.5, 4.0), (2.5, 2.0), (3.0, 1.0)}
    assert {tuple(pair) for pair in half_BS2[1].tolist()} == {(5.0, 7.0), (7.0, 5.0)}
    alone = reliability.draw_halves(drop_PT[1:2], np.array([0, 1]), 1, np.random.default_rng(0))
    assert np.isnan(alone).all()
    for count in (0, 3):
        with pytest.raises(ValueError, match=f"count={count}"):
            reliability.draw_halves(drop_PT, np.array([0, 3]), count, np.random.default_rng(0))


def test_measured_intervals_hold_the_truth_and_the_prediction_agrees():
    """Half of each kept set is expected in common where nothing repeats."""
    drop_PT = simulate(1, 3, seed=5)
    rng = np.random.default_rng(2)
    found = reliability.measure_retest(drop_PT, OFFSETS, (1, 2, 8), 0.5, np.arange(NUM_SAMPLES), rng, 200)
    assert [each.count for each in found] == [1, 2, 8]
    for each in found:
        value, low, high = each.reliability
        assert low < 1 / (1 + 3 / each.count) < high and low < value < high < low + 0.08
        assert each.predicted[0] == pytest.approx(value, abs=0.02)
    assert found[0].in_common < found[1].in_common < found[2].in_common
    noise = reliability.measure_retest(simulate(0, 1), OFFSETS, (2,), 0.5, np.arange(NUM_SAMPLES), rng, 200)
    assert noise[0].in_common == pytest.approx(0.5, abs=0.02)
    assert noise[0].reliability[1] < 0 < noise[0].reliability[2]


def test_kept_in_common_by_hand():
    half_BS2 = np.array([[4.0, 4.0], [3.0, 1.0], [2.0, 3.0], [1.0, 2.0], [np.nan, np.nan]])[:, None]
    assert reliability.kept_in_common(half_BS2, 0.5) == 0.5
    assert reliability.kept_in_common(half_BS2, 1) == 1
    assert np.isnan(reliability.kept_in_common(half_BS2, 0.1))


def test_what_few_samples_of_noise_correlate_by_stops_nothing():
    """Of five samples many a resample lies below -1/3, where four nonces have no Spearman-Brown."""
    drop_PT = simulate(0, 1)[: 5 * PHRASES]
    found = reliability.measure_retest(
        drop_PT, OFFSETS[:6], (1, 4), 0.5, np.arange(5), np.random.default_rng(0), 200
    )
    assert [np.isnan(each.predicted[1]) for each in found] == [False, True]


def test_variance_of_phrases_and_of_nonces():
    between, within = reliability.split_variance(simulate(2, 3))
    assert (between, within) == pytest.approx((2, 3), rel=0.03)
    gaps = simulate(2, 3)
    gaps[::2, 3:] = np.nan
    assert reliability.split_variance(gaps) == pytest.approx((2, 3), rel=0.05)
    assert reliability.split_variance(simulate(0, 1))[0] < 0.1
