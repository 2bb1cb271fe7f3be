"""A world with habits: its captions are found by text alone, those of the plain world are not."""

import numpy as np
import pytest

from bench.sight import OPERATIONS, choose_negatives, make_world, text_only_share
from lab.worlds.habits import USUAL_COLOURS, draw_usual_scene
from lab.worlds.scenes import ABOVE, COLOURS, LEFT, SHAPES


@pytest.mark.parametrize(("strength", "usual"), ((0.0, USUAL_COLOURS / len(COLOURS)), (1.0, 1.0)))
def test_colours_are_usual_as_often_as_asked(strength, usual):
    scenes = [draw_usual_scene(np.random.default_rng(i), strength) for i in range(400)]
    places = [
        (COLOURS.index(thing.colour) - SHAPES.index(thing.shape)) % len(COLOURS)
        for scene in scenes
        for thing in scene.things
    ]
    assert np.mean([place < USUAL_COLOURS for place in places]) == pytest.approx(usual, abs=0.06)


def test_shapes_stand_in_their_usual_order():
    for i in range(200):
        scene = draw_usual_scene(np.random.default_rng(i), 1.0)
        for first, relation, second in zip(scene.things, scene.relations, scene.things[1:], strict=False):
            order = SHAPES.index(first.shape) - SHAPES.index(second.shape)
            assert order == 0 or (relation in (LEFT, ABOVE)) == (order < 0)


def test_text_alone_finds_captions_only_where_there_are_habits_to_break():
    """Before refinement .75 to .9 with habits, about .5 without, and about .5 after refinement."""
    usual, plain = (make_world(0, 700, strength) for strength in (0.8, 0.0))
    chosen = choose_negatives(usual, 0)
    assert 0.75 < text_only_share(usual, chosen["unrefined"]) < 0.9
    assert text_only_share(plain, choose_negatives(plain, 0)["unrefined"]) == pytest.approx(0.5, abs=0.08)
    assert text_only_share(usual, chosen["refined"]) == pytest.approx(0.5, abs=0.08)
    assert len(chosen["thinned"]) == len(chosen["refined"]) > 0.5 * len(chosen["unrefined"])
    kinds = {one: sorted(of["kind"] for of in chosen[one].values()) for one in ("refined", "thinned")}
    assert kinds["refined"] == kinds["thinned"]
    assert {op for _, op in chosen["refined"]} == {*OPERATIONS}
