"""Intervals of the AUC and of a draw, and the held-out R^2, against definitions and limits."""

import itertools
import math

import numpy as np
import pytest

from lab import statistics


def test_an_auc_without_spread_has_no_interval():
    low, high = np.arange(5.0), np.arange(10.0, 13.0)
    for positive, negative in ((high, low), (np.zeros(3), np.zeros(4)), (low[:1], high)):
        assert all(map(math.isnan, statistics.auc_interval(positive, negative)))


def test_auc_interval_is_delong():
    """DeLong's variance from its definition, pair by pair."""
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(2, 9, 25), rng.integers(0, 7, 31)
    kernel = (positive[:, None] > negative) + (positive[:, None] == negative) / 2
    variance = kernel.mean(axis=1).var(ddof=1) / 25 + kernel.mean(axis=0).var(ddof=1) / 31
    low, high = statistics.auc_interval(positive, negative)
    assert (low + high) / 2 == pytest.approx(kernel.mean(), abs=1e-12)
    assert high - low == pytest.approx(2 * 1.959964 * variance**0.5, abs=1e-12)


def test_auc_interval_covers_the_truth_95_times_of_100():
    """Two normals one apart: AUC = Phi(1 / sqrt 2). 5 standard errors of 1000 trials are 0.034."""
    truth = 0.5 * (1 + math.erf(0.5))
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        low, high = statistics.auc_interval(rng.standard_normal(80) + 1, rng.standard_normal(80))
        hits += low <= truth <= high
    assert abs(hits / 1000 - 0.95) < 0.034


def test_drawn_interval_equals_every_draw():
    for num_rows, num_marked, num_drawn in [(9, 4, 5), (8, 7, 6), (6, 0, 3), (5, 5, 5)]:
        draws = itertools.combinations(range(num_rows), num_drawn)
        counts = sorted(sum(row < num_marked for row in draw) for draw in draws)
        mean, low, high = statistics.drawn_interval(num_rows, num_marked, num_drawn)
        assert mean == pytest.approx(np.mean(counts))
        assert low == min(c for c in counts if sum(d <= c for d in counts) >= 0.025 * len(counts))
        assert high == min(c for c in counts if sum(d <= c for d in counts) >= 0.975 * len(counts))


def test_drawn_interval_of_thousands_is_near_the_normal():
    mean, low, high = statistics.drawn_interval(3000, 400, 1500)
    deviation = (1500 * (400 / 3000) * (2600 / 3000) * (1500 / 2999)) ** 0.5
    assert mean == 200 and high - low == pytest.approx(2 * 1.96 * deviation, abs=1)
    assert statistics.drawn_interval(0, 0, 0) == (0, 0, 0)
    with pytest.raises(ValueError, match="num_drawn=4: must be between 0 and num_rows=3"):
        statistics.drawn_interval(3, 1, 4)


def test_r2_of_a_determined_and_of_a_foreign_latent():
    rng = np.random.default_rng(10)
    latent = rng.uniform(-1, 1, (600, 2))
    embedding = np.stack([latent[:, 0], latent[:, 1] ** 3, latent[:, 0] * latent[:, 1]], axis=1)
    assert statistics.held_out_r2(embedding, latent, np.arange(600), rng) > 0.95
    assert abs(statistics.held_out_r2(embedding, rng.standard_normal((600, 3)), np.arange(600), rng)) < 0.05
    half = np.concatenate([latent[:, :1], rng.uniform(-1, 1, (600, 1))], axis=1)
    assert statistics.held_out_r2(embedding[:, :1], half, np.arange(600), rng) == pytest.approx(0.5, abs=0.1)


def test_r2_is_of_groups_not_seen():
    """A latent that is a lookup of the group: known to whoever saw the group, nothing to say of others."""
    rng = np.random.default_rng(11)
    group_N = np.repeat(np.arange(60), 10)
    embedding, latent = rng.standard_normal((60, 5))[group_N], rng.standard_normal((60, 2))[group_N]
    assert statistics.held_out_r2(embedding, latent, group_N, rng) < 0.15
    assert statistics.held_out_r2(embedding, latent, np.arange(600), rng) > 0.9
