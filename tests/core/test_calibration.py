"""Paired drops whose means and intervals are known, and pairs of pictures by a plain search."""

import math

import numpy as np
import pytest

from raycomp.core import reliability
from raycomp.core.reliability import (
    ALL,
    CONDITIONS,
    CROSS,
    DIFFERENCES,
    NONCE,
    SAME,
    WRONG,
    calibrate,
    describe_order,
    describe_picture,
    draw_others,
    get_sign,
    spread_over,
)
from raycomp.words import OBJECT, RELATION


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
    assert get_sign(line, "nonce_over_same") == get_sign(line, "cross_over_nonce") == 1
    # The mean of 400 differences of variance 2 * 0.1^2, twice 1.96 standard errors.
    assert widths["nonce_over_same"] == pytest.approx(2 * 1.96 * 0.1 * math.sqrt(2 / 400), rel=0.2)


@pytest.mark.slow
def test_what_a_few_nonces_happen_to_cost_is_no_order(monkeypatch):
    """300 words, but each of 14 nonces costs something of its own, and every word has two of them."""
    monkeypatch.setattr(reliability, "NUM_DRAWS", 100)
    found, of_words = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        word_P, own_14 = rng.integers(300, size=1500), 0.03 * rng.standard_normal(14)
        pair_W2 = np.array([rng.permutation(14)[:2] for _ in range(300)])
        drops = {name: 0.02 * rng.standard_normal(300)[word_P] for name in CONDITIONS}
        drops[NONCE] = drops[NONCE] + own_14[pair_W2].mean(axis=1)[word_P]
        [total, *_] = calibrate(
            drops, np.full(1500, OBJECT), np.arange(1500), word_P, pair_W2[word_P].tolist(), seed
        )
        found.append(get_sign(total, "nonce_over_same"))
        of_words.append(total["nonce_over_same_words_low"] > 0 or total["nonce_over_same_words_high"] < 0)
    assert sum(map(abs, found)) <= 3 < 8 <= sum(of_words)


def test_equal_groups_have_students_interval_of_their_means():
    mean_G, half = np.array([1.0, 2.0, 4.0]), 4.303 * np.std([1.0, 2.0, 4.0], ddof=1) / math.sqrt(3)
    low, high = spread_over(np.repeat(mean_G, 10), [[i // 10] for i in range(30)])
    assert (low, high) == pytest.approx((7 / 3 - half, 7 / 3 + half), rel=1e-3)
    assert np.isnan(spread_over(np.ones(5), [["a"]] * 5)).all()


def line(same, nonce, cross, wrong=0.0, half=0.0005):
    found = {SAME: same, NONCE: nonce, CROSS: cross, WRONG: wrong, "num_words": 50}
    for name, (a, b) in DIFFERENCES.items():
        found[name] = found[a] - found[b]
        for over, times in (("", 1), ("_words", 2), ("_nonces", 3)):
            found[f"{name}{over}_low"] = found[name] - times * half
            found[f"{name}{over}_high"] = found[name] + times * half
    return found


def test_the_sentence_says_what_the_intervals_say():
    for values, reported in [
        ((0.0177, 0.0227, 0.0257), ["0.0177 < nonce 0.0227", ", the paper's", "costs more than a word"]),
        ((0.03, 0.02, 0.04), ["nonce 0.0200 < same category", "not the paper's", "costs less than a word"]),
        ((0.03, 0.0301, 0.02), ["not the paper's", "not measurably more", "costs less than a n"]),
    ]:
        said = describe_order(line(*values))
        assert all(part in said for part in reported), said
        assert "the 19 words that take part are too few" in describe_order(line(*values) | {"num_words": 19})


def test_the_sentence_on_the_picture():
    assert "is above" in describe_picture(line(0, 0.02, 0, wrong=0.01))
    assert "does not differ measurably" in describe_picture(line(0, 0.02, 0, wrong=0.0193))
    for end in ("low", "words_low", "nonces_low"):
        alone = line(0, 0.02, 0, wrong=0.01) | {f"right_over_wrong_{end}": math.nan}
        assert "does not differ measurably" in describe_picture(alone), "one sample has no interval"


def test_nothing_to_compare_has_no_lines():
    assert calibrate({name: np.array([]) for name in CONDITIONS}, *[np.array([])] * 3, [], 0) == []


def test_another_picture_is_the_next_that_differs():
    image, caption = [1, 1, 2, 3, 3], ["a", "b", "b", "c", "a"]
    hash_N = np.array([3, 1, 4, 0, 2], np.uint64)  # in order: 3, 1, 4, 0, 2
    none = [()] * 5
    assert draw_others(image, caption, none, none, hash_N).tolist() == [2, 4, 3, 1, 2]
    assert draw_others([1, 1], ["a", "b"], none, none, hash_N[:2]).tolist() == [-1, -1]
    assert draw_others([1, 2], ["a", "a"], none, none, hash_N[:2]).tolist() == [-1, -1]


def test_a_picture_whose_caption_says_the_target_is_no_wrong_one():
    captions = ["a dog", "a dog and a cat", "a cat", "a dog sleeps"]
    said = [caption.split() for caption in captions]
    hash_N = np.arange(4, dtype=np.uint64)
    targets = [{"dog"}, {"dog", "cat"}, {"cat"}, {"dog"}]
    assert draw_others(range(4), captions, targets, said, hash_N).tolist() == [2, -1, 3, 2]


def test_of_equal_pictures_no_more_than_a_bound_are_tried(monkeypatch):
    monkeypatch.setattr(reliability, "MOST_TRIES", 3)
    images, captions, none = [0] * 5 + [1], list("abcdef"), [()] * 6
    hash_N = np.arange(6, dtype=np.uint64)
    assert draw_others(images, captions, none, none, hash_N).tolist() == [-1, -1, 5, 5, 5, 0]
