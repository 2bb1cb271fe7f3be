"""What rules keep of planted faults, against slow counting, every draw, and other worlds."""

import itertools

import numpy as np
import pytest

from lab.worlds.captions import TEMPLATES, describe
from lab.worlds.faults import ALL_FAULTS, compare_kept, count_kept, group_faults, group_traits
from lab.worlds.scenes import draw_scene


def test_counts_equal_a_slow_loop_and_draws_equal_all_draws():
    faults = ["none", "tail", "tail", "wrong", "none", "tail", "wrong", "none"]
    pool = [True, True, False, True, True, True, False, False]
    cpi = [True, False, False, True, False, True, False, False]
    rows = count_kept(group_faults(faults), {"cpi": np.array(cpi)}, np.array(pool), num_drawn=3)
    assert [row.what for row in rows] == ["tail", "wrong", ALL_FAULTS]
    pooled = [i for i in range(8) if pool[i]]
    members = {"tail": [1, 2, 5], "wrong": [3, 6], ALL_FAULTS: [1, 2, 3, 5, 6]}
    for row in rows:
        mine = members[row.what]
        share = row.by_rule["cpi"]
        assert (row.num_rows, row.num_pooled) == (len(mine), sum(pool[i] for i in mine))
        assert (share.part, share.whole) == (sum(cpi[i] for i in mine), len(mine))
        assert share.low < share.value < share.high
        draws = [sum(i in mine for i in draw) for draw in itertools.combinations(pooled, 3)]
        assert row.drawn.part == pytest.approx(np.mean(draws))
        assert (row.drawn.low, row.drawn.high) == (min(draws) / len(mine), max(draws) / len(mine))


def test_more_drawn_than_the_pool_has_is_refused():
    with pytest.raises(ValueError, match="num_drawn=2: must be between 0 and num_rows=1"):
        count_kept({"x": np.array([True, True])}, {}, np.array([True, False]), 2)


def test_paired_difference_is_that_of_discordant_pairs():
    """McNemar: b rows only of the first, c only of the second: b - c, variance b + c - (b - c)^2 / n."""
    first, second = np.array([1] * 9 + [0] * 4 + [1] * 20 + [0] * 67), np.array([0] * 9 + [1] * 24 + [0] * 67)
    more, low, high = compare_kept(first.astype(bool), second.astype(bool))
    half = 1.959964 * ((13 - 25 / 100) * 100 / 99) ** 0.5
    assert (more, low, high) == pytest.approx((5, 5 - half, 5 + half))
    assert compare_kept(first, first) == (0, 0, 0)
    assert np.isnan(compare_kept(first[:1], second[:1])[1:]).all()


def test_the_paired_interval_covers_the_truth_95_times_of_100():
    """Two choices that agree on most rows: unpaired, the interval would be far too wide."""
    rng, hits, widths = np.random.default_rng(0), 0, []
    for _ in range(1000):
        liked_N = rng.random(300)
        first_N = liked_N + 0.1 * rng.random(300) > 0.6
        second_N = 0.4 * (liked_N > 0.5)
        # P(first) = 0.45 whatever the rest; the second's chances add up to 0.2 of the rows.
        _, low, high = compare_kept(first_N, second_N)
        hits += low <= 300 * (0.45 - 0.2) <= high
        widths.append(high - low)
    assert abs(hits / 1000 - 0.95) < 0.034
    assert np.mean(widths) < 0.8 * 2 * 1.96 * (300 * (0.45 * 0.55 + 0.16 * 0.25)) ** 0.5


def test_traits_are_those_of_the_scenes():
    rng = np.random.default_rng(0)
    scenes = [draw_scene(rng) for _ in range(60)]
    captions = [describe(scene, i % len(TEMPLATES)) for i, scene in enumerate(scenes)]
    groups = group_traits(captions, np.arange(60) % 8)
    for count in (2, 3):
        assert groups[f"{count} things"].tolist() == [len(scene.things) == count for scene in scenes]
    for shape in ("circle", "fish"):
        known = [shape in {thing.shape for thing in scene.things} for scene in scenes]
        assert 0 < sum(known) < 60 and groups[f"a {shape}"].tolist() == known
    assert groups["3 phrases"].tolist() == [i % 8 == 3 for i in range(60)]
    assert groups["5 phrases or more"].tolist() == [i % 8 >= 5 for i in range(60)]
    assert "a fish" not in group_traits(["a red circle above a blue star"], np.array([2]))
