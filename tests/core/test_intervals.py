"""Intervals against draws, limits, and tables of known tests."""

import itertools
import math
from itertools import combinations

import numpy as np
import pytest
import torch

from raycomp.core import intervals
from raycomp.core.intervals import (
    Pair,
    chance_of_hit,
    compare_paired,
    compute_share,
    contrast,
    count_hits,
    holm,
    judge_choices,
    judge_pairs,
    judge_texts,
    mcnemar,
    mean_by,
    mean_directions,
    number_duplicates,
    rank_items,
    wilcoxon,
)
from raycomp.core.metrics import share_interval


def test_examples_of_their_own_images_have_wilsons_interval():
    right_N = np.array([1.0] * 30 + [0.0] * 10)
    found = compute_share(right_N, np.arange(40))
    assert found.value == 0.75
    assert (found.low, found.high) == pytest.approx(share_interval(30, 40), abs=0.005)
    split_N = np.array(["a"] * 10 + ["b"] * 30)
    assert compute_share(right_N, np.arange(40), split_N).value == pytest.approx((1 + 2 / 3) / 2)
    assert all(math.isnan(value) for value in compute_share(np.zeros(0), np.zeros(0)))


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
    first_N, second_N = np.array([1.0, 0, 0, 1, 1, 0]), np.array([1.0, 1, 1, 1, 0, 1])
    found, back = (compare_paired(*both, np.arange(6)) for both in ((first_N, second_N), (second_N, first_N)))
    assert (found.only_first, found.only_second, found.p) == (1, 3, pytest.approx(mcnemar(1, 3)))
    assert found.difference == pytest.approx(1 / 3) and found.low < 1 / 3 < found.high
    assert (back.difference, back.p, back.p_units) == pytest.approx((-1 / 3, found.p, found.p_units))
    shared = compare_paired(first_N, second_N, np.array([0, 1, 2, 3, 4, 4]))
    assert math.isnan(shared.p) and shared.difference == found.difference
    same = compare_paired(first_N, first_N, np.arange(6))
    assert (same.difference, same.p, same.p_units) == (0, 1, 1) and math.isnan(same.low)


def test_what_splits_share_an_image_is_counted_together():
    right_N, unit_N = np.tile(np.repeat([1.0, 0.0], 50), 2), np.tile(np.arange(100), 2)
    split_N = np.repeat([0, 1], 100)
    shared, apart = compute_share(right_N, unit_N, split_N), compute_share(right_N, np.arange(200), split_N)
    assert shared.high - shared.low == pytest.approx(math.sqrt(2) * (apart.high - apart.low), rel=0.02)


def test_intervals_and_p_against_tables() -> None:
    for num, t, power in [
        (2, 12.7062, 1.3764),
        (4, 3.1824, 0.9785),
        (16, 2.1314, 0.8662),
        (101, 1.9840, 0.8452),
    ]:
        drawn_S = np.random.default_rng(num).standard_normal(num)
        unit_S = (drawn_S - drawn_S.mean()) / drawn_S.std(ddof=1) * math.sqrt(num)
        found = contrast(unit_S + t)
        assert (found.low, found.high) == pytest.approx((0, 2 * t), abs=1e-4)
        assert found.p == pytest.approx(0.05, rel=1e-4)
        assert found.detectable == pytest.approx(t + power, abs=1e-4)


def test_a_contrast_that_cannot_be_tested_and_one_that_cannot_vary() -> None:
    assert math.isnan(contrast([1.0]).p) and contrast([1.0]).value == 1
    assert math.isnan(contrast([]).value)
    assert contrast([0.0, 0.0]).p == 1 and contrast([1.0, 1.0]).p == 0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert mean_by(np.array([1.0, 5.0, 3.0, 7.0]), np.array([2, 0, 2, 0])).tolist() == [6.0, 2.0]
    assert wilcoxon([0.0, 0.0]) == wilcoxon([]) == 1.0
    with pytest.raises(ValueError, match=r"difference\[1\]=nan"):
        wilcoxon([1.0, math.nan])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def slow_wilcoxon(moved: list[float]) -> float:
    """Return p by signing the ranks in every way."""
    sizes = [abs(one) for one in moved]
    ranks = [sum(b < a for b in sizes) + (1 + sum(b == a for b in sizes)) / 2 for a in sizes]
    total = sum(rank for rank, one in zip(ranks, moved, strict=True) if one > 0)
    ways = [sum(way) for way in itertools.product(*((0, rank) for rank in ranks))]
    tails = sum(way <= total for way in ways), sum(way >= total for way in ways)
    return min(1.0, 2 * min(tails) / len(ways))


def test_signed_ranks_equal_every_way_of_signing() -> None:
    for moved in [
        [1.0, 2.0, 3.0, 4.0, 5.0],
        [0.5, -0.5, 0.5, 0.5, -2.0, 3.0, 3.0],
        [-1.0, -1.0, -1.0, 2.0, 2.0, -7.0, 0.1, 0.2, 0.3, 9.0],
        [3.0],
        [1.0, -1.0],
    ]:
        p = slow_wilcoxon(moved)
        assert wilcoxon([0.0, *moved, 0.0]) == pytest.approx(p, rel=1e-12)
        assert wilcoxon([-one for one in moved]) == pytest.approx(p, rel=1e-12)


def test_signed_ranks_of_many_are_those_of_the_normal_limit() -> None:
    rng = np.random.default_rng(3)
    moved_N = np.round(rng.normal(0.1, 1.0, 401), 1)
    moved_N = moved_N[moved_N != 0][:300]
    exact, more = wilcoxon(moved_N), wilcoxon(np.concatenate([moved_N, moved_N]))
    size_N = np.abs(moved_N)
    rank_N = np.array([(size_N < one).sum() + (1 + (size_N == one).sum()) / 2 for one in size_N])
    z = abs(rank_N[moved_N > 0].sum() - rank_N.sum() / 2) / math.sqrt((rank_N**2).sum() / 4)
    assert exact == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.02)
    assert more < exact


def slow_ranks(score_QK, item_Q, item_K):
    """Return rank, ties, margin and rival of every query, one by one."""
    found = []
    for score_K, item in zip(score_QK, item_Q, strict=True):
        best = max(score for score, own in zip(score_K, item_K, strict=True) if own == item)
        others = [(score, -k) for k, score in enumerate(score_K) if item_K[k] != item]
        at_least = sum(score >= best for score, _ in others)
        same = sum(score == best for score, _ in others)
        top, place = max(others)
        found.append((1 + at_least, same, best - top, -place))
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("tile", [1, 40, 1 << 22])
def test_ranks_are_those_of_a_slow_loop(monkeypatch, tile):
    monkeypatch.setattr(intervals, "_TILE", tile)
    rng = np.random.default_rng(0)
    # Whole numbers: exact products and many ties. Three to six texts an image.
    image_QD = rng.integers(-2, 3, (23, 4)).astype(np.float32)
    item_K = np.repeat(np.arange(23), rng.integers(3, 7, 23))
    text_KD = rng.integers(-2, 3, (len(item_K), 4)).astype(np.float32)
    for query, target, own_Q, own_K in (
        (image_QD, text_KD, np.arange(23), item_K),
        (text_KD, image_QD, item_K, np.arange(23)),
    ):
        found = rank_items(query, target, own_Q, own_K)
        wanted = slow_ranks((query @ target.T).tolist(), own_Q, own_K)
        for part, slow in zip(found, wanted, strict=True):
            assert part.tolist() == list(slow)
        assert (found.ties_Q > 0).any() and (found.rank_Q == 1).any()


def test_equal_embeddings_tie_wherever_they_stand():
    """A product's last bit may hang on its column; that must not let one of equal targets win."""
    for num_targets in [5, 13, 37, 53]:
        rng = np.random.default_rng(2)
        target_KD = rng.normal(size=(num_targets, 300)).astype(np.float32)
        target_KD[[1, num_targets // 2, num_targets - 1]] = target_KD[0]
        for num in (1, 2, 3, 7, 500):
            query_QD = rng.normal(size=(num, 300)).astype(np.float32) + 9 * target_KD[0]
            found = rank_items(query_QD, target_KD, np.zeros(num, int), np.arange(num_targets))
            assert (found.rank_Q == 4).all() and (found.ties_Q == 3).all() and (found.margin_Q == 0).all()


def test_the_chance_of_a_hit_is_counted():
    for num_own, num_targets, k in ((1, 7, 3), (2, 7, 3), (4, 6, 2), (3, 5, 4), (1, 9, 1)):
        draws = list(combinations(range(num_targets), k))
        hits = sum(min(draw) < num_own for draw in draws) / len(draws)
        assert chance_of_hit(num_own, num_targets, k) == pytest.approx(hits, abs=1e-12)


def test_weights_of_classes_are_means_of_templates_on_the_sphere():
    text_CKD = np.array([[[1, 0], [0, 1]], [[0, 1], [0, 1]]], np.float32)
    half = np.sqrt(0.5)
    assert mean_directions(text_CKD) == pytest.approx(np.array([[half, half], [0, 1]]))
    row_ND = np.array([[1, 2], [1, 2 + 2e-7], [1, 2], [3, 4]], np.float32)
    assert number_duplicates(row_ND).tolist() == [0, 1, 0, 2], "equal to the last bit"
    # Each template counts alike, and opposite ones leave no direction.
    assert (mean_directions(np.array([[[1.0, 0], [-1, 0]]])) == 0).all()


def test_recalls_are_those_of_clip_benchmark_where_nothing_ties():
    """LAION's CLIP_benchmark, zeroshot_retrieval.py: a query is right if a positive is among its top k."""
    rng = np.random.default_rng(1)
    own_T = np.repeat(np.arange(40), rng.integers(1, 6, 40))
    image_MD = rng.normal(size=(40, 8)).astype(np.float32)
    text_TD = (image_MD[own_T] + 2 * rng.normal(size=(len(own_T), 8))).astype(np.float32)
    for query, target, own_Q, own_K in (
        (text_TD, image_MD, own_T, np.arange(40)),
        (image_MD, text_TD, np.arange(40), own_T),
    ):
        found = rank_items(query, target, own_Q, own_K)
        for k in (1, 5, 10):
            top_Qk = torch.topk(torch.from_numpy(query @ target.T), k, dim=1)[1].numpy()
            recall = (own_K[top_Qk] == own_Q[:, None]).any(1).mean()
            assert 0.05 < recall < 1 and count_hits(found.rank_Q, found.ties_Q, k)[0].mean() == recall


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
    orders = np.array(list(itertools.permutations(range(4))), float)
    positives, negatives = orders[:, [0, 3]].reshape(-1, 1), orders[:, [1, 2]].reshape(-1, 1)
    pairs = [Pair(2 * i, 2 * i + 1) for i in range(len(orders))]
    for verdict in judge_pairs(positives, negatives, pairs).values():
        assert verdict.right_N.mean() == pytest.approx(verdict.chance_N[0])
