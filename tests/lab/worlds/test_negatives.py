"""Hard negatives are false for their scene and true of their own."""

from collections import Counter

import numpy as np
import pytest
from test_scenes import read

from lab.worlds.captions import TEMPLATES, claim_of, describe
from lab.worlds.negatives import hard_negatives
from lab.worlds.render import render
from lab.worlds.scenes import ABOVE, LEFT, Scene, Thing, draw_scene, is_true
from raycomp.words import (
    ADD,
    ATTRIBUTE,
    OBJECT,
    RELATION,
    REPLACE,
    SWAP,
)

SCENES = [draw_scene(np.random.default_rng([6, i])) for i in range(60)]
SIZED, UNSIZED = 0, 5


@pytest.mark.parametrize("template", (SIZED, UNSIZED))
def test_negatives_are_false_for_the_scene_and_true_of_their_own(template: int) -> None:
    for scene in SCENES:
        negatives = hard_negatives(scene, template)
        for negative in negatives:
            said = read(negative.caption)
            assert not is_true(said, scene), (negative.caption, describe(scene, template))
            assert is_true(said, negative.scene)
            # An added thing leaves the original caption true; every other edit makes it false.
            added_thing = (negative.operation, negative.kind) == (ADD, OBJECT)
            assert is_true(claim_of(scene, SIZED), negative.scene) == added_thing
        assert len({n.caption for n in negatives}) == len(negatives)


def test_every_kind_of_edit_turns_up() -> None:
    kinds = Counter(
        (n.operation, n.kind) for s in SCENES for t in (SIZED, UNSIZED) for n in hard_negatives(s, t)
    )
    assert set(kinds) == {
        (SWAP, OBJECT),
        (SWAP, ATTRIBUTE),
        (REPLACE, OBJECT),
        (REPLACE, ATTRIBUTE),
        (REPLACE, RELATION),
        (ADD, OBJECT),
        (ADD, ATTRIBUTE),
    }
    assert TEMPLATES[SIZED].names_sizes and not TEMPLATES[UNSIZED].names_sizes


def test_negatives_of_one_scene_word_for_word() -> None:
    scene = Scene((Thing("small", "red", "star"), Thing("large", "blue", "donut")), (ABOVE,), 0, 1)
    found = {(n.operation, n.kind, n.caption) for n in hard_negatives(scene, SIZED)}
    for expected in (
        (SWAP, ATTRIBUTE, "a small blue star above a large red donut"),
        (SWAP, ATTRIBUTE, "a large red star above a small blue donut"),
        (SWAP, OBJECT, "a small red donut above a large blue star"),
        (REPLACE, RELATION, "a small red star below a large blue donut"),
        (REPLACE, OBJECT, "a small red moon above a large blue donut"),
        (REPLACE, ATTRIBUTE, "a small pink star above a large blue donut"),
    ):
        assert expected in found
    unsized = {
        n.caption for n in hard_negatives(scene, UNSIZED) if n.operation == ADD and n.kind == ATTRIBUTE
    }
    assert unsized == {
        "a scene with a large red star above a blue donut",
        "a scene with a red star above a small blue donut",
    }


def test_swap_that_changes_nothing_is_left_out() -> None:
    alike = Scene((Thing("small", "red", "star"), Thing("small", "red", "moon")), (LEFT,), 0, 1)
    swaps = [n.caption for n in hard_negatives(alike, SIZED) if n.operation == SWAP]
    assert swaps == ["a small red moon to the left of a small red star"]


def test_negative_images_differ_from_the_original() -> None:
    for scene in SCENES[:10]:
        original = render(scene, 64).tobytes()
        assert all(render(n.scene, 64).tobytes() != original for n in hard_negatives(scene, SIZED))
