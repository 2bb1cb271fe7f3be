"""What is right of a task, against loops and by hand."""

import sys

import numpy as np
import pytest

from raycomp.continual.data import Keys, Split, join_splits
from raycomp.continual.scoring import (
    answer,
    gather_questions,
    judge_tasks,
    list_attributes,
    list_objects,
    score_pairs,
    search,
)
from tests.continual.streams import make_stream, unit


def make_keys(num: int, num_texts: int, experts: int = 1, seed: int = 0) -> Keys:
    rng = np.random.default_rng(seed)
    composed_ETD = unit(rng.standard_normal((experts, num_texts, 8)))
    expert_N = rng.integers(experts, size=num) if experts > 1 else None
    return Keys(
        unit(rng.standard_normal((num, 8))), unit(rng.standard_normal((num_texts, 8))), composed_ETD, expert_N
    )


def make_asked(own: list[int], num_texts: int, **more: np.ndarray) -> Split:
    return Split(
        np.zeros((len(own), 8), np.float32),
        np.array(own),
        tuple(f"text {i}" for i in range(num_texts)),
        np.zeros((num_texts, 8), np.float32),
        (("red square",),) * num_texts,
        **more,
    )


def test_the_score_is_that_of_a_loop_over_pairs():
    for experts in [1, 3]:
        for weight in [0.0, 0.5, 1.0]:
            keys = make_keys(7, 5, experts)
            found = score_pairs(keys, weight, np.arange(7), np.arange(5))
            for n in range(7):
                composed_TD = keys.composed_ETD[keys.expert_N[n] if keys.expert_N is not None else 0]
                for t in range(5):
                    by_text, composed = keys.image_ND[n] @ keys.text_TD[t], keys.image_ND[n] @ composed_TD[t]
                    assert found[n, t] == pytest.approx((1 - weight) * by_text + weight * composed, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_search_is_that_of_a_loop(seed, monkeypatch):
    monkeypatch.setattr(sys.modules["raycomp.continual.scoring"], "_IMAGES_AT_ONCE", 4)
    rng = np.random.default_rng(seed)
    own = rng.integers(6, size=11).tolist()
    keys, split = make_keys(11, 6, seed=seed), make_asked(own, 6)
    found = search(split, keys, 0.5, np.arange(11), np.arange(6))
    score_NT = score_pairs(keys, 0.5, np.arange(11), np.arange(6))
    for n in range(11):
        assert found.right_N[n] == all(score_NT[n, own[n]] > score_NT[n, t] for t in range(6) if t != own[n])
        assert found.first_N[n] == score_NT[n].argmax()
    for t in range(6):
        mine = [score_NT[n, t] for n in range(11) if own[n] == t]
        others = [score_NT[n, t] for n in range(11) if own[n] != t]
        assert found.right_T[t] == (bool(mine) and max(mine) > max(others))


def test_a_tie_is_wrong_both_ways():
    keys = Keys(np.ones((2, 1), np.float32), np.ones((2, 1), np.float32))
    found = search(make_asked([0, 1], 2), keys, 0.0, np.arange(2), np.arange(2))
    assert not found.right_N.any() and not found.right_T.any()


def test_a_part_of_the_gallery_is_a_search_of_its_own():
    keys, split = make_keys(6, 6), make_asked([0, 1, 2, 3, 4, 5], 6)
    part = search(split, keys, 0.5, np.array([3, 5]), np.array([5, 3, 2]))
    small = Keys(keys.image_ND[[3, 5]], keys.text_TD[[5, 3, 2]], keys.composed_ETD[:, [5, 3, 2]])
    alone = search(make_asked([1, 0], 3), small, 0.5, np.arange(2), np.arange(3))
    assert (part.right_N == alone.right_N).all() and (part.right_T == alone.right_T).all()
    assert (np.array([5, 3, 2])[alone.first_N] == part.first_N).all()


def test_an_answer_is_right_above_all_other_candidates_and_padding_is_none():
    candidate_NK = np.array([[0, 1, -1], [2, 3, 1], [4, 0, -1]])
    split, keys = make_asked([0, 3, 4], 5, candidate_NK=candidate_NK), make_keys(3, 5)
    score_NT = score_pairs(keys, 0.5, np.arange(3), np.arange(5))
    expected = [
        score_NT[0, 0] > score_NT[0, 1],
        score_NT[1, 3] > max(score_NT[1, 2], score_NT[1, 1]),
        score_NT[2, 4] > score_NT[2, 0],
    ]
    assert answer(split, keys, 0.5).tolist() == expected


def test_what_is_found_is_bound_as_it_is_or_not():
    own = ("large red circle", "small blue star")
    swapped = ("large blue circle", "small red star")
    assert list_attributes(own) == list_attributes(swapped) == ["blue", "large", "red", "small"]
    assert list_objects(own) == ["circle", "star"]
    assert list_attributes(("circle",)) == []


def test_binding_by_hand():
    sets = (("red circle",), ("blue circle",), ("red star",), ("blue star",))
    split = Split(np.eye(4, dtype=np.float32), np.arange(4), tuple("abcd"), np.eye(4, dtype=np.float32), sets)
    # a finds itself; b a, whose object is the same; c a, whose attribute is; d c, whose object is.
    text_TD = np.eye(4, dtype=np.float32)[[0, 0, 0, 2]].T.copy()
    figures = {
        (one.name, one.task): one.value
        for one in judge_tasks(gather_questions([split]), Keys(split.image_ND, text_TD), 0.5)
    }
    assert figures["text a_pair", 0] == 0.25
    assert figures["text a_attribute", 0] == 0.5 and figures["text a_object", 0] == 0.75
    assert figures["text crr", 0] == pytest.approx(0.25 / (0.5 * 0.75))


def test_splits_are_joined_with_every_text_once():
    first, second = (task.test for task in make_stream().tasks[:2])
    joined = join_splits([first, second, first])
    assert len(joined) == 60 and len(joined.texts) == len(set(joined.texts)) <= 40
    for row, split in [(3, first), (25, second), (43, first)]:
        place = joined.own_N[row]
        there = split.own_N[row % 20]
        assert joined.texts[place] == split.texts[there]
        assert joined.primitives[place] == split.primitives[there]
        assert (joined.text_TD[place] == split.text_TD[there]).all()


def test_joined_candidates_are_the_same_texts_and_a_mix_is_refused():
    some = [task.test for task in make_stream(questions=True).tasks]
    joined = join_splits(some)
    for row in (0, 21, 45):
        own, there = joined.candidate_NK[row], some[row // 20].candidate_NK[row % 20]
        assert [joined.texts[i] for i in own if i >= 0] == [some[row // 20].texts[i] for i in there if i >= 0]
    with pytest.raises(ValueError, match="tasks: must all have candidates or none of them"):
        join_splits([some[0], make_stream().tasks[0].test])
