"""Test-retest reliability against simulated drops whose reliability is known, and plain loops."""

import math

import numpy as np
import pytest

from raycomp.core import reliability
from raycomp.core.reliability import (
    ALL,
    CONDITIONS,
    CROSS,
    NONCE,
    SAME,
    WRONG,
    WRONG_SHARE,
    calibrate,
    draw_others,
    join_intervals,
    spread_over,
)
from raycomp.words import OBJECT, RELATION

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
    """Of another reading: the least drop per displacement, each the mean of its half's nonces."""
    drop_PT = simulate(1, 1, nonces=4)[:9]
    moved_PT = np.random.default_rng(4).uniform(0.1, 0.9, drop_PT.shape)
    offset_E = np.array([0, 2, 2, 9])
    plain, least = (
        reliability.draw_halves(drop_PT, offset_E, 2, np.random.default_rng(3), 5, *more)
        for more in ((), (moved_PT, "min"))
    )
    rng = np.random.default_rng(3)
    for split in range(5):
        order = rng.permutation(4)
        for half, columns in enumerate((order[::2], order[1::2])):
            value_P = drop_PT[:, columns].mean(1)
            want = [value_P[:2].mean(), value_P[2:].mean()]
            np.testing.assert_allclose(plain[[0, 2], split, half], want, rtol=1e-5)
            value_P = value_P / np.sqrt(2 * moved_PT[:, columns].mean(1))
            want = [value_P[:2].min(), value_P[2:].min()]
            np.testing.assert_allclose(least[[0, 2], split, half], want, rtol=1e-5)
    assert np.isnan(plain[1]).all()


def test_what_is_added_to_a_sum_does_not_vary():
    drop_PT, moved_PT = simulate(0, 1), np.ones((NUM_SAMPLES * PHRASES, NONCES))
    base_B, rng = np.random.default_rng(5).standard_normal(NUM_SAMPLES), np.random.default_rng(3)
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


def test_variance_of_phrases_and_of_nonces():
    between, within = reliability.split_variance(simulate(2, 3))
    assert (between, within) == pytest.approx((2, 3), rel=0.03)
    gaps = simulate(2, 3)
    gaps[::2, 3:] = np.nan
    assert reliability.split_variance(gaps) == pytest.approx((2, 3), rel=0.05)
    assert reliability.split_variance(simulate(0, 1))[0] < 0.1


def make(num: int, steps: tuple[float, float, float, float], noise: float, seed: int = 0):
    """Drops of ``num`` targets: one part of the target's own, wide, a step and a little noise."""
    rng = np.random.default_rng(seed)
    own_P = rng.standard_normal(num)
    drops = {
        name: own_P + step + noise * rng.standard_normal(num)
        for name, step in zip(CONDITIONS, steps, strict=True)
    }
    kind_P = np.where(np.arange(num) % 4 == 0, RELATION, OBJECT)
    return drops, kind_P, np.arange(num) // 2, np.arange(num) % 50, [(i % 30, i % 7 + 30) for i in range(num)]


def test_means_differences_and_kinds():
    drops, kind_P, *groups = make(400, (1.0, 2.0, 3.0, 1.5), 0.1)
    lines = {line["kind"]: line for line in calibrate(drops, kind_P, *groups, seed=0)}
    assert [(kind, line["num_targets"]) for kind, line in lines.items()] == [
        (ALL, 400),
        (OBJECT, 300),
        (RELATION, 100),
    ]
    assert (lines[ALL]["num_pictures"], lines[ALL]["num_words"]) == (200, 50)
    for line in lines.values():
        in_P = (kind_P == line["kind"]) | (line["kind"] == ALL)
        for name in CONDITIONS:
            assert line[name] == pytest.approx(drops[name][in_P].mean())
        assert line["nonce_over_same"] == pytest.approx((drops[NONCE] - drops[SAME])[in_P].mean())
        assert line["cross_over_nonce"] == pytest.approx((drops[CROSS] - drops[NONCE])[in_P].mean())
        assert line["right_over_wrong"] == pytest.approx((drops[NONCE] - drops[WRONG])[in_P].mean())


def test_pairing_takes_out_what_the_conditions_share():
    """Targets differ by 1, conditions of one target by 0.1: as much narrower is a difference's interval."""
    [line, *_] = calibrate(*make(400, (1.0, 1.1, 1.2, 1.0), 0.1), seed=0)
    widths = {name: line[f"{name}_high"] - line[f"{name}_low"] for name in (NONCE, "nonce_over_same")}
    assert widths["nonce_over_same"] < 0.25 * widths[NONCE]
    names = ("nonce_over_same", "cross_over_nonce", "right_over_wrong", WRONG_SHARE)
    for name in names:
        value, low, high = join_intervals(line, name)
        ends = [(line[f"{name}{over}_low"], line[f"{name}{over}_high"]) for over in ("", "_words", "_nonces")]
        assert all(low <= own_low < value < own_high <= high for own_low, own_high in ends)
        assert (low, high) == (min(low for low, _ in ends), max(high for _, high in ends))
    assert line[WRONG_SHARE] == pytest.approx(line[WRONG] / line[NONCE])
    # The mean of 400 differences of variance 2 * 0.1^2, twice 1.96 standard errors.
    assert np.isnan(join_intervals(line | {"num_words": 19}, "nonce_over_same")[1:]).all()
    assert np.isnan(reliability.kept_in_common(np.ones((5, 1, 2)), 0.5))
    assert calibrate({name: np.array([]) for name in CONDITIONS}, *[np.array([])] * 3, [], 0) == []
    assert widths["nonce_over_same"] == pytest.approx(2 * 1.96 * 0.1 * math.sqrt(2 / 400), rel=0.2)


def test_equal_groups_have_students_interval_of_their_means():
    mean_G, half = np.array([1.0, 2.0, 4.0]), 4.303 * np.std([1.0, 2.0, 4.0], ddof=1) / math.sqrt(3)
    low, high = spread_over(np.repeat(mean_G, 10), [[i // 10] for i in range(30)])
    assert (low, high) == pytest.approx((7 / 3 - half, 7 / 3 + half), rel=1e-3)
    assert np.isnan(spread_over(np.ones(5), [["a"]] * 5)).all()


def test_another_picture_is_the_next_that_differs(monkeypatch):
    image, caption = [1, 1, 2, 3, 3], ["a", "b", "b", "c", "a"]
    hash_N = np.array([3, 1, 4, 0, 2], np.uint64)  # in order: 3, 1, 4, 0, 2
    none = [()] * 5
    assert draw_others(image, caption, none, none, hash_N).tolist() == [2, 4, 3, 1, 2]
    assert draw_others([1, 1], ["a", "b"], none, none, hash_N[:2]).tolist() == [-1, -1]
    assert draw_others([1, 2], ["a", "a"], none, none, hash_N[:2]).tolist() == [-1, -1]
    # A picture whose caption says the target is no wrong one.
    captions, targets = (
        ["a dog", "a dog and a cat", "a cat", "a dog sleeps"],
        [{"dog"}, {"dog", "cat"}, {"cat"}, {"dog"}],
    )
    said = [caption.split() for caption in captions]
    found = draw_others(range(4), captions, targets, said, np.arange(4, dtype=np.uint64))
    assert found.tolist() == [2, -1, 3, 2]
    monkeypatch.setattr(reliability, "MOST_TRIES", 3)  # of equal pictures no more are tried
    found = draw_others([0] * 5 + [1], list("abcdef"), [()] * 6, [()] * 6, np.arange(6, dtype=np.uint64))
    assert found.tolist() == [-1, -1, 5, 5, 5, 0]
