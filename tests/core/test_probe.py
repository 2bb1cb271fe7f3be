"""Measures of the composition probe against known distributions, slow loops and limits."""

import math
from itertools import permutations

import numpy as np
import pytest

from raycomp.core import probe
from raycomp.core.probe import bound_a_distance


def test_a_perfect_encoder_where_swapping_is_closed():
    """All ordered pairs of 12 words, one-hot by place: every caption's swap is another's caption."""
    pairs = np.array(list(permutations(range(12), 2)))
    first = np.concatenate([np.eye(12)[pairs[:, 0]], np.eye(12)[pairs[:, 1]]], axis=1)
    second = np.concatenate([first[:, 12:], first[:, :12]], axis=1)
    got = bound_a_distance(first, second, np.random.default_rng(7), num_refits=2)
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
    for share in (0.25, 0.5, 0.75, 1.0):
        words = [f"w{i}" for i in range(20)]
        moved = probe.shuffle_words(" ".join(words), share, np.random.default_rng(0)).split()
        assert sorted(moved) == sorted(words)
        assert sum(a != b for a, b in zip(words, moved, strict=True)) == 20 * share


def test_shuffling_limits():
    rng = np.random.default_rng(0)
    assert probe.shuffle_words("two words", 0.01, rng) == "words two"
    assert probe.shuffle_words("a  b c", 0, rng) == "a  b c"
    for text in ("", "one"):
        assert probe.shuffle_words(text, 1, rng) == text
    with pytest.raises(ValueError, match=r"share=1\.5"):
        probe.shuffle_words("a b", 1.5, rng)
