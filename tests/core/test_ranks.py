"""Ranks against slow loops, and against CLIP_benchmark's definitions where nothing ties."""

from itertools import combinations

import numpy as np
import pytest
import torch

from raycomp.core import intervals
from raycomp.core.intervals import chance_of_hit, count_hits, mean_directions, number_duplicates, rank_items


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
    # Each template counts alike, and opposite ones leave no direction.
    assert (mean_directions(np.array([[[1.0, 0], [-1, 0]]])) == 0).all()


def test_equal_inputs_are_equal_to_the_last_bit():
    row_ND = np.array([[1, 2], [1, 2 + 2e-7], [1, 2], [3, 4]], np.float32)
    assert number_duplicates(row_ND).tolist() == [0, 1, 0, 2]


def clip_benchmark_recall(score_QK, positive_QK, k):
    """LAION's CLIP_benchmark, zeroshot_retrieval.py: a query is right if a positive is among its top k."""
    top_Qk = torch.topk(torch.from_numpy(score_QK), k, dim=1)[1].numpy()
    pairs = zip(positive_QK, top_Qk, strict=True)
    return np.mean([positive_K[top_k].sum() > 0 for positive_K, top_k in pairs])


def test_recalls_are_those_of_clip_benchmark_where_nothing_ties():
    rng = np.random.default_rng(1)
    own_T = np.repeat(np.arange(40), rng.integers(1, 6, 40))
    image_MD = rng.normal(size=(40, 8)).astype(np.float32)
    text_TD = (image_MD[own_T] + 2 * rng.normal(size=(len(own_T), 8))).astype(np.float32)
    positive_TM = own_T[:, None] == np.arange(40)
    by_text = rank_items(text_TD, image_MD, own_T, np.arange(40))
    by_image = rank_items(image_MD, text_TD, np.arange(40), own_T)
    for k in (1, 5, 10):
        image_retrieval = clip_benchmark_recall(text_TD @ image_MD.T, positive_TM, k)
        text_retrieval = clip_benchmark_recall(image_MD @ text_TD.T, positive_TM.T, k)
        assert 0.05 < image_retrieval < 1
        assert count_hits(by_text.rank_Q, by_text.ties_Q, k)[0].mean() == image_retrieval
        assert count_hits(by_image.rank_Q, by_image.ties_Q, k)[0].mean() == text_retrieval
