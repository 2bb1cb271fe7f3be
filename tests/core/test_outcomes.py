"""Who is right: known orders, ties, and chance against a count of all orders."""

import itertools

import numpy as np
import pytest

from raycomp.core.intervals import Pair, judge_choices, judge_pairs, judge_texts


def test_only_a_strictly_better_caption_is_right():
    found = judge_choices([[0.5], [0.5], [0.4]], [[0.4], [0.5], [0.5]])
    assert set(found) == {"accuracy"}
    assert found["accuracy"].right_N.tolist() == [1, 0, 0]
    assert found["accuracy"].tie_N.tolist() == [False, True, False]


def test_chance_is_the_share_of_all_orders():
    for num_true, num_false in [(1, 1), (1, 4), (2, 1), (2, 2), (3, 2)]:
        orders = list(itertools.permutations(range(num_true + num_false)))
        found = judge_choices([order[:num_true] for order in orders], [order[num_true:] for order in orders])
        assert ("brittleness" in found) == (num_true > 1)
        for verdict in found.values():
            assert verdict.right_N.mean() == pytest.approx(verdict.chance_N.mean())
            assert not verdict.tie_N.any()


def test_hard_positives_as_defined_by_kamath():
    for caption, positive, negative, expected in [
        (3, 2, 1, (1, 1, 0)),
        (3, 1, 2, (1, 0, 1)),
        (1, 3, 2, (0, 0, 1)),
        (1, 2, 3, (0, 0, 0)),
        (2, 2, 2, (0, 0, 0)),
    ]:
        found = judge_choices([[caption, positive]], [[negative]])
        got = [found[name].right_N[0] for name in ("accuracy", "augmented_accuracy", "brittleness")]
        assert tuple(got) == expected


def test_true_captions_must_be_nearest_to_one_another():
    # Pairs: P1 P2, P1 N, P2 N.
    verdict = judge_texts([[0.9, 0.8, 0.7], [0.8, 0.7, 0.9], [0.8, 0.8, 0.1]], 2)
    assert verdict.right_N.tolist() == [1, 0, 0]
    assert verdict.tie_N.tolist() == [False, False, True]
    assert verdict.chance_N.tolist() == pytest.approx([1 / 3] * 3)


def test_pairs_of_images_as_winoground_scores_them():
    # Rows: image 0 with (c0, c1), image 1 with (c1, c0), of three items.
    positives = [[0.9], [0.8], [0.9], [0.3], [0.9], [0.9]]
    negatives = [[0.1], [0.2], [0.5], [0.2], [0.9], [0.1]]
    found = judge_pairs(positives, negatives, [Pair(0, 1), Pair(2, 3), Pair(4, 5)])
    assert found["text"].right_N.tolist() == [1, 1, 0]
    # Of the second item caption 1 is nearer to image 0 (.5) than to image 1 (.3).
    assert found["image"].right_N.tolist() == [1, 0, 0]
    assert found["group"].right_N.tolist() == [1, 0, 0]
    assert found["text"].tie_N.tolist() == [False, False, True]


def test_chance_of_pairs_is_the_share_of_all_orders():
    orders = np.array(list(itertools.permutations(range(4))), float)
    positives, negatives = orders[:, [0, 3]].reshape(-1, 1), orders[:, [1, 2]].reshape(-1, 1)
    pairs = [Pair(2 * i, 2 * i + 1) for i in range(len(orders))]
    for verdict in judge_pairs(positives, negatives, pairs).values():
        assert verdict.right_N.mean() == pytest.approx(verdict.chance_N[0])
