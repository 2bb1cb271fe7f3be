"""Refinement of negatives: convexity's derivative by differences, sums of 0, draws, mirrored bins."""

import numpy as np
from scipy.sparse import csr_array

from raycomp.core.refine import (
    Candidate,
    assign_bins,
    balance,
    choose_hardest,
    compare_calls,
    compute_edges,
    draw_one,
    fit_tilting,
    spread_gaps,
    tilt,
)


def make_candidates(seed: int = 0, captions: int = 300, each: int = 6, features: int = 8):
    """Return features that a linear judge could learn from: their mean is not 0."""
    rng = np.random.default_rng(seed)
    row_T = np.repeat(np.arange(captions), each)
    feature_TF = rng.normal(0.5, 1, (len(row_T), features))
    return csr_array(feature_TF), row_T, rng


def test_the_expected_sums_are_minus_the_ridge():
    feature_TF, row_T, _ = make_candidates()
    prior_T = np.zeros(len(row_T))
    weight_F = fit_tilting(feature_TF, row_T, prior_T, 1.0, penalty=1e-3)
    share_T = tilt(feature_TF, row_T, prior_T, 1.0, weight_F)
    assert np.abs(feature_TF.T @ share_T + 300 * 1e-3 * weight_F).max() < 0.05
    assert np.abs(feature_TF.T @ share_T).max() < 0.02 * np.abs(feature_TF.sum(0)).max()


def test_shares_are_a_softmax_with_an_option_of_none():
    feature_TF, row_T, rng = make_candidates(captions=5, each=3)
    prior_T, weight_F = rng.normal(size=15), rng.normal(size=8)
    share_T = tilt(feature_TF, row_T, prior_T, 0.7, weight_F)
    for row in range(5):
        own = row_T == row
        logits = feature_TF.toarray()[own] @ weight_F + prior_T[own] + 0.7
        wanted = np.exp(logits) / (1 + np.exp(logits).sum())
        np.testing.assert_allclose(share_T[own], wanted, rtol=1e-12)
    large = tilt(csr_array(np.array([[1.0], [-1.0]])), np.zeros(2, int), np.zeros(2), 0.0, np.array([1e6]))
    np.testing.assert_array_equal(large, [1.0, 0.0])
    none = np.zeros(0)
    weight_F = fit_tilting(csr_array((0, 4)), none.astype(int), none, 2.0)
    assert tilt(csr_array((0, 4)), none.astype(int), none, 2.0, weight_F).shape == (0,)
    assert draw_one(none, none.astype(int), np.zeros(3)).shape == (0,)


def test_a_draw_takes_at_most_one_by_its_probability():
    share_T, row_T = np.array([0.2, 0.3, 0.5, 0.1]), np.array([0, 0, 1, 1])
    uniform = (np.arange(1000) + 0.5) / 1000
    counts = np.zeros(4)
    for u in uniform:
        drawn_T = draw_one(share_T, row_T, np.array([u, u]))
        assert max(np.bincount(row_T[drawn_T], minlength=2)) <= 1
        counts += drawn_T
    np.testing.assert_allclose(counts / 1000, share_T, atol=0.0011)


def test_exchanging_caption_and_negative_mirrors_the_cell():
    rng = np.random.default_rng(1)
    gap_T, longer_T = np.append(rng.normal(size=200), 0), np.append(rng.integers(-6, 7, 200), 0)
    edge_B = compute_edges(gap_T)
    bin_T = assign_bins(gap_T, longer_T, edge_B, 3)
    np.testing.assert_array_equal(assign_bins(-gap_T, -longer_T, edge_B, 3), -bin_T)
    assert bin_T[-1] == 0
    whole = {(abs(g), min(abs(n), 3)) for g, n in zip(np.digitize(gap_T, edge_B), longer_T, strict=True)}
    assert len(np.unique(bin_T)) >= len(whole)
    spread = spread_gaps(np.array([0.5, -0.5, 2.0, -2.0, 0.0]), np.array([1.0]))
    np.testing.assert_array_equal(spread, [[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]])


def test_mirrored_cells_hold_equally_many():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        group_T, bin_T = rng.integers(0, 3, 400), rng.integers(-4, 5, 400)
        order_T = rng.permutation(400).astype(float)
        kept_T = balance(group_T, bin_T, order_T)
        for group in range(3):
            for bin in range(-4, 5):
                mine = (group_T == group) & (bin_T == bin)
                other = (group_T == group) & (bin_T == -bin)
                assert kept_T[mine].sum() == (min(mine.sum(), other.sum()) if bin else mine.sum())
                if 0 < kept_T[mine].sum() < mine.sum():
                    assert order_T[mine & kept_T].max() < order_T[mine & ~kept_T].min()


def candidate(text: str, op: str, similarity: float | None = None) -> Candidate:
    return Candidate(text, op, "object", op.count("+") + 1, (), similarity)


def texts(chosen: list[Candidate]) -> list[str]:
    return [c.text for c in chosen]


def test_operations_take_turns_hardest_first():
    pool = [
        candidate("a", "SWAP", 0.2),
        candidate("b", "SWAP", 0.9),
        candidate("c", "ADD", 0.5),
        candidate("d", "ADD", 0.95),
        candidate("e", "REPLACE", 0.1),
    ]
    assert texts(choose_hardest(pool, 10)) == ["d", "b", "e", "c", "a"]
    assert texts(choose_hardest(pool, 2)) == ["d", "b"]


def test_each_number_of_calls_is_chosen_by_itself_and_keeps_no_text_of_fewer_calls():
    pool = [
        candidate("x", "SWAP+ADD", 0.9),
        candidate("a", "SWAP+SWAP", 0.8),
        candidate("a", "SWAP", 0.1),
        candidate("b", "SWAP", 0.5),
    ]
    assert texts(choose_hardest(pool, 1)) == ["b", "x"]
    assert texts(choose_hardest(pool, 2)) == ["b", "a", "x"]


def test_a_comparison_spends_the_same_operations_three_ways():
    pool = [
        Candidate("far", "SWAP", "object", 1, ("dog", "cat"), 0.2),
        Candidate("near", "SWAP", "object", 1, ("dog", "man"), 0.8),
        Candidate("added", "ADD", "object", 1, ("car",), 0.5),
        Candidate("both, but its ADD is not valid alone", "SWAP+ADD", "x", 2, ("dog", "cat", "bus"), 0.9),
        Candidate("both", "SWAP+ADD", "x", 2, ("dog", "cat", "car"), 0.3),
    ]
    both = ("both", "both, but its ADD is not valid alone")
    assert compare_calls(pool) == ("SWAP+ADD", ("near", "added"), both, ("far", "added"))
    assert compare_calls(pool[:4]) is None
    other = Candidate("other order", "ADD+SWAP", "x", 2, ("bus", "dog", "cat"), 0.1)
    assert compare_calls([pool[0], pool[2], pool[4]]) is None
    assert compare_calls([pool[0], pool[2], pool[4], other]).two_calls == ("both", "other order")
