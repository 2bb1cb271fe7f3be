"""What stands beside the main figures: blind answers and margins, by hand and against loops."""

from dataclasses import replace

import numpy as np
import pytest

from raycomp.continual.data import Edits, Keys, Split
from raycomp.continual.scoring import (
    answer_by_prior,
    gather_questions,
    judge_margins,
    judge_text_only,
    number_answers,
)
from tests.continual.streams import unit


def ask(own: list[int], kinds: list[int], candidates: list[list[int]]) -> Split:
    texts = ("red", "blue", "green", "circle")
    zero = np.zeros((len(texts), 4), np.float32)
    return Split(
        np.zeros((len(own), 4), np.float32),
        np.array(own),
        texts,
        zero,
        (("a",),) * len(texts),
        np.array(candidates),
        np.array(kinds),
    )


def test_the_prior_answers_what_was_right_most_often_to_such_questions_and_guesses_among_equals():
    seen = ask([0, 0, 1, 3, 2, 1], [0, 0, 0, 1, 1, 1], [[0, 1, 2, 3]] * 6)
    # Of kind 0: red twice, blue once. Of kind 1: circle, green and blue once each.
    asked = ask([0, 1, 2, 3, 0], [0, 0, 0, 1, 1], [[0, 1, 2], [0, 1, 2], [2, 3, -1], [3, 2, -1], [0, 3, -1]])
    assert answer_by_prior(asked, [seen]).tolist() == [1, 0, 0.5, 0.5, 0]
    assert answer_by_prior(ask([3], [1], [[3, 0, -1]]), [seen]).tolist() == [1]
    assert answer_by_prior(ask([3], [7], [[3, 0, 1]]), [seen]).tolist() == [1 / 3]


def test_the_prior_knows_answers_by_their_text_in_whatever_order_they_stand():
    seen = ask([0, 0, 1], [0, 0, 0], [[0, 1, 2]] * 3)
    turned = replace(seen, texts=seen.texts[::-1], own_N=3 - seen.own_N, candidate_NK=3 - seen.candidate_NK)
    asked = ask([0, 1], [0, 0], [[0, 1, -1], [1, 2, -1]])
    assert (answer_by_prior(asked, [seen]) == answer_by_prior(asked, [turned])).all()


def test_an_answer_is_the_same_behind_another_question():
    texts = ("what is it? a dog", "what is it? a cat", "what is that? a dog", "what is that? a cat", "dog")
    places: dict[str, int] = {}
    asked = replace(ask([1, 2], [0, 0], [[1, 0, -1], [3, 2, 4]]), texts=texts)
    assert number_answers(asked, places).tolist() == [[0, 1, -1], [2, 3, 4]]
    assert list(places) == ["a cat", "a dog", "what is that? a cat", "what is that? a dog", "dog"]
    seen = replace(ask([0, 0, 1], [5, 5, 5], [[0, 1, -1]] * 3), texts=texts)
    new = replace(ask([2, 3], [5, 5], [[3, 2, -1]] * 2), texts=texts)
    assert answer_by_prior(new, [seen]).tolist() == [1, 0]
    # Of answers without a question before them nothing is cut, whatever others stand beside them.
    plain = replace(asked, texts=("a red cat", "a red dog", "a blue dog", "red", "dog"))
    places = {}
    number_answers(plain, places)
    assert list(places) == ["a red dog", "a red cat", "red", "a blue dog", "dog"]


def test_shuffled_pictures_answer_by_chance():
    rng = np.random.default_rng(0)
    num = 400
    text_TD = unit(rng.standard_normal((2 * num, 16)))
    candidates = np.stack([np.arange(num), np.arange(num) + num], 1)
    split = Split(
        text_TD[:num],
        np.arange(num),
        tuple(map(str, range(2 * num))),
        text_TD,
        (("a",),) * 2 * num,
        candidates,
        np.zeros(num, np.int64),
    )
    found = {
        one.name: one.value
        for one in judge_text_only(gather_questions([split]), Keys(text_TD[:num], text_TD), 0.5, [split])
    }
    assert found["shuffled answers"] == pytest.approx(0.5, abs=0.08)


def test_margins_are_those_of_a_loop_and_equal_compositions_have_none():
    rng = np.random.default_rng(1)
    image, text, composed = (unit(rng.standard_normal((3, 8))) for _ in range(3))
    wrong_text = unit(rng.standard_normal((2, 8)))
    wrong_composed = np.stack([composed[0], unit(rng.standard_normal(8))])
    test = Split(image, np.array([2, 0, 1]), tuple("abc"), text, (("a",),) * 3)
    edited = Split(image[:0], np.zeros(0, np.int64), tuple("de"), wrong_text, (("a",),) * 2)
    edits = Edits(edited, np.array([1, 2]), np.array([0, 1]), np.array(["REPLACE relation", "SWAP object"]))
    keys = Keys(image, text, composed[None]), Keys(image[:0], wrong_text, wrong_composed[None])
    found = {one.name: one.value for one in judge_margins([test], [edits], [keys], 0.5)}
    assert (
        found["composed margin REPLACE relation"] == 0 and found["composed margin REPLACE relation zero"] == 1
    )
    assert found["composed margin REPLACE relation p"] == 1
    assert found["text margin SWAP object"] == pytest.approx(
        image[2] @ text[1] - image[2] @ wrong_text[1], abs=1e-6
    )
    half = image[2] @ (text[1] + composed[1] - wrong_text[1] - wrong_composed[1]) / 2
    assert found["fused margin SWAP object"] == pytest.approx(half, abs=1e-6)
