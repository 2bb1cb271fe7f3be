"""Questions have one right answer, which the picture is needed for."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from lab.words import FUNCTION, SCENE
from lab.worlds.captions import name_thing, read, say_thing
from lab.worlds.questions import ASKED, RELATION, THERE, draw_question
from lab.worlds.scenes import Claim, Scene, Thing, diagonal, is_true
from lab.worlds.tasks import WorldTask, draw_scenes, list_tasks
from raycomp.core.continual import score_by_prior


def is_right(text: str, scene: Scene) -> bool:
    """Whether an answer, one thing or two of them related, is true of a scene, seen from outside."""
    claim = read(text)
    if claim is not None:
        return is_true(claim, scene)
    bare = {say_thing(replace(thing, size=None)) for thing in scene.things}
    return text in bare | {say_thing(thing) for thing in scene.things}


@pytest.mark.parametrize("asked", ASKED)
def test_one_answer_is_right_and_says_nothing_of_its_place(asked):
    task = WorldTask("it", list_tasks(FUNCTION)[0][0].pairs, asked=(asked,))
    places = Counter()
    for drawn in draw_scenes(task, 200, [5]):
        question = drawn.question
        assert question is not None and question.kind.split()[0] == asked
        assert [one for one in question.candidates if is_right(one, drawn.scene)] == [question.answer]
        assert drawn.caption == question.answer and len(set(question.candidates)) == len(question.candidates)
        own = question.primitives[question.candidates.index(question.answer)]
        assert drawn.primitives == own and all(name in question.answer for name in own)
        assert (len(set(question.primitives)) == 1) == (asked == RELATION)
        assert set(own) <= {name_thing(replace(one, size=None)) for one in drawn.scene.things} | {
            name_thing(one) for one in drawn.scene.things
        }
        places[question.candidates.index(question.answer)] += 1
    num = {"colour": 8, "shape": 8, "relation": 4, "size": 2, "there": 4}[asked]
    assert len(places) == num and max(places.values()) < 2 * 200 / num


def test_what_cannot_be_asked_is_not():
    alike = Scene((Thing("small", "red", "star"), Thing("large", "blue", "star")), ("above",), 0, 0)
    rng = np.random.default_rng(0)
    pairs = {("red", "star"), ("blue", "star"), ("red", "moon"), ("pink", "moon")}
    assert (
        draw_question(alike, "colour", pairs, rng) is None and draw_question(alike, THERE, pairs, rng) is None
    )
    assert draw_question(alike, "shape", pairs, rng) is not None
    assert draw_question(alike, THERE, pairs | {("pink", "fish")}, rng) is not None


def find_text_only(train: list, test: list) -> dict[str, float]:
    """Return by what is asked how often the commonest answer of the same kind is right, ties shared."""
    answers = {
        text: i for i, text in enumerate(sorted({t for one in train + test for t in one.question.candidates}))
    }
    kinds = {kind: i for i, kind in enumerate(sorted({one.question.kind for one in train + test}))}
    right = defaultdict(list)
    for one in test:
        score_1K = score_by_prior(
            np.array([answers[other.caption] for other in train]),
            np.array([kinds[other.question.kind] for other in train]),
            np.array([kinds[one.question.kind]]),
            np.array([[answers[text] for text in one.question.candidates]]),
        )
        best_K = score_1K[0] == score_1K.max()
        own = one.question.candidates.index(one.caption)
        right[one.question.kind.split()[0]].append(best_K[own] / best_K.sum())
    return {asked: float(np.mean(shares)) for asked, shares in right.items()}


@pytest.mark.parametrize("stream", [SCENE, FUNCTION])
def test_who_knows_the_answers_but_not_the_picture_stays_far_from_right(stream):
    for number, task in enumerate(list_tasks(stream)[0]):
        train, test = (list(draw_scenes(task, num, [7, number, part])) for part, num in ((0, 400), (1, 800)))
        blind = find_text_only(train, test)
        assert set(blind) == set(task.asked)
        assert all(share < (0.6 if asked == "size" else 0.45) for asked, share in blind.items()), blind


def test_one_colour_for_every_shape_would_need_no_picture():
    """Why tasks of questions are no diagonals, as those of captions are."""
    task = WorldTask("diagonal", diagonal(2), asked=("colour",))
    train, test = (list(draw_scenes(task, num, [7, part])) for part, num in ((0, 200), (1, 50)))
    assert find_text_only(train, test) == {"colour": 1.0}


def test_a_relation_is_between_neighbours():
    claim = Claim((Thing(None, "red", "star"), Thing(None, "blue", "fish")), ("above",))
    scene = Scene(tuple(replace(one, size="small") for one in claim.things), claim.relations, 0, 0)
    question = draw_question(scene, RELATION, set(), np.random.default_rng(0))
    assert question is not None and question.answer == "a red star above a blue fish"
    assert question.primitives == (("red star", "blue fish"),) * 4
