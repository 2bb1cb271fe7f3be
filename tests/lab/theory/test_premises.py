"""What the toy world fulfils of the theorems, against slow loops over every edit."""

from itertools import product

import numpy as np
import pytest

from lab.theory import scm
from lab.theory.premises import check_premises, list_edits
from raycomp.words import ADD, OPERATIONS, REPLACE, SWAP

ATTRIBUTES, OBJECTS = scm.NUM_ATTRIBUTES, scm.NUM_ATTRIBUTES + scm.NUM_OBJECTS
CLASSES = (range(ATTRIBUTES), range(ATTRIBUTES, OBJECTS), range(OBJECTS, scm.NUM_CONCEPTS))


def edit_slowly(scene: list[int], op: str) -> list[list[int]]:
    """Return every edit of one caption, by hand."""
    a, x, r, b, y = scene
    if op == SWAP:
        return [[b, x, r, a, y], [a, y, r, b, x], [b, y, r, a, x]]
    if op == ADD:
        return [
            [*scene[:at], word, *scene[at:]] for at, word in product((0, 3), CLASSES[0]) if word not in scene
        ]
    found = []
    for at, old in enumerate(scene):
        words = next(words for words in CLASSES if old in words)
        found += [[*scene[:at], word, *scene[at + 1 :]] for word in words if word not in scene]
    return found


def read_slowly(world: scm.World, text: list[int]) -> np.ndarray:
    side, total = 0, np.zeros(world.meaning_2VZ.shape[2])
    for concept in text:
        total = total + world.meaning_2VZ[side, concept]
        side = 1 if concept >= OBJECTS else side
    return total


@pytest.mark.parametrize("mirrored", (0.0, 1.0))
@pytest.mark.parametrize("op", OPERATIONS)
def test_every_premise_equals_a_slow_count(op, mirrored):
    world = scm.draw_world(7, 12, mirrored)
    scenes = world.support_S5.tolist()
    pairs = [(scene, text) for scene in scenes for text in edit_slowly(scene, op)]
    gaps = [np.linalg.norm(read_slowly(world, text) - read_slowly(world, scene)) for scene, text in pairs]
    common = [sum(set(text) <= set(scene) for scene in scenes) for _, text in pairs]
    found = check_premises(world)[op]
    assert found.nearest == pytest.approx(min(gaps))
    assert found.single == pytest.approx(np.mean([count == 1 for count in common]))
    assert found.same == 1


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_edits_are_all_that_the_operator_draws(op):
    world = scm.draw_world(7, 4)
    captions = np.pad(world.support_S5, ((0, 0), (0, 1)), constant_values=-1)
    listed = {
        (i, *text)
        for scenes, texts in list_edits(captions, op)
        for i, text in zip(scenes, texts.tolist(), strict=True)
    }
    rng = np.random.default_rng(0)
    drawn = set()
    for _ in range(3000):
        edited = scm.OPERATORS[op](scm.Texts(captions, np.zeros((4, 6, 2))), rng)
        drawn |= {(i, *text) for i, text in enumerate(edited.concept_NK.tolist())}
    assert listed == drawn


def test_the_premise_of_add_is_the_smallest_step_of_one_attribute():
    """An added word moves z_inv by its own meaning, so the smallest step is that of the least attribute."""
    world = scm.draw_world(0)
    steps = np.linalg.norm(world.meaning_2VZ[:, :ATTRIBUTES], axis=2)
    found = check_premises(world)
    assert found[ADD].nearest == pytest.approx(steps.min()) and steps.min() > 0.3
    assert (found[SWAP].single, found[REPLACE].single, found[ADD].single) == (1, 0, 0)
