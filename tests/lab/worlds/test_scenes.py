"""Scenes, captions and pictures: what is said is what is drawn."""

import dataclasses
import json
import re
from collections import Counter

import numpy as np
import pytest

from lab.worlds.captions import TEMPLATES, claim_of, describe, phrases, primitives, say
from lab.worlds.captions import read as read_back
from lab.worlds.render import RGB, render
from lab.worlds.scenes import (
    ABOVE,
    BELOW,
    COLOURS,
    DIRECTIONS,
    LEFT,
    RELATIONS,
    RIGHT,
    SHAPES,
    SIZES,
    Claim,
    Scene,
    Thing,
    draw_scene,
    is_true,
    place,
    scene_to_dict,
    show,
    stands,
)
from tests.corpus import scene_from_dict

SCENES = [draw_scene(np.random.default_rng([5, i])) for i in range(400)]
# An independent reader of the captions: words in, facts out.
THING = rf"an? (?:({'|'.join(SIZES)}) )?({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
CAPTION = re.compile(
    rf"{THING}(?: is)? ({'|'.join(RELATIONS)}) {THING}(?:, which is ({'|'.join(RELATIONS)}) {THING})?$"
)


def read(caption: str) -> Claim:
    groups = CAPTION.search(caption).groups()
    things = [Thing(*groups[i : i + 3]) for i in (0, 4, 8) if groups[i + 1]]
    return Claim(tuple(things), tuple(groups[i] for i in (3, 7) if groups[i]))


@pytest.mark.parametrize("template", range(len(TEMPLATES)))
def test_caption_reads_back_as_the_scene(template: int) -> None:
    for scene in SCENES:
        claim = read(describe(scene, template))
        sizes = [thing.size if TEMPLATES[template].names_sizes else None for thing in scene.things]
        assert [(t.size, t.colour, t.shape) for t in claim.things] == [
            (size, t.colour, t.shape) for size, t in zip(sizes, scene.things, strict=True)
        ]
        assert claim.relations == scene.relations
        assert is_true(claim, scene)


@pytest.mark.parametrize("template", range(len(TEMPLATES)))
def test_reading_undoes_saying_and_shows_what_is_said(template: int) -> None:
    for i, scene in enumerate(SCENES):
        caption = describe(scene, template)
        claim = read_back(caption)
        assert claim == claim_of(scene, template) == read(caption)
        shown = show(claim, np.random.default_rng(i))
        assert is_true(claim, shown) and len(shown.things) == len(claim.things)
        assert read_back(describe(shown, 0)) == Claim(shown.things, shown.relations)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a small red star",
        "a small red star above a large blue donut ",
        "a small red star above a large blue donut and a pink moon",
        "an small red star above a large blue donut",
        "a small red star next to a large blue donut",
        "a small black star above a large blue donut",
        "a small red star is above a large blue donut, which is below a red moon",
        "there is a small red star is above a large blue donut",
    ],
)
def test_only_what_the_world_says_is_read(text: str) -> None:
    assert read_back(text) is None


def test_captions_word_for_word() -> None:
    star, donut, moon = (
        Thing("small", "orange", "star"),
        Thing("large", "blue", "donut"),
        Thing("small", "red", "moon"),
    )
    two, three = Scene((star, donut), (ABOVE,), 0, 1), Scene((star, donut, moon), (ABOVE, LEFT), 0, 1)
    assert describe(two, 0) == "a small orange star above a large blue donut"
    assert describe(two, 5) == "a scene with an orange star above a blue donut"
    assert describe(three, 1) == (
        "a small orange star is above a large blue donut, which is to the left of a small red moon"
    )
    assert primitives(three) == {
        "object": ("star", "donut", "moon"),
        "attribute": ("small", "orange", "large", "blue", "red"),
        "relation": (ABOVE, LEFT),
    }
    assert phrases(three) == ("small orange star", "large blue donut", "small red moon")
    assert phrases(claim_of(three, 5)) == ("orange star", "blue donut", "red moon")


def test_said_relations_are_clear_and_things_apart() -> None:
    for scene in SCENES:
        centres, radii = place(scene)
        assert (centres - radii[:, None] > 0).all() and (centres + radii[:, None] < 1).all()
        for i, relation in enumerate(scene.relations):
            along = (centres[i] - centres[i + 1]) @ np.array(DIRECTIONS[relation])
            across = abs((centres[i] - centres[i + 1]) @ np.array(DIRECTIONS[relation][::-1]))
            assert along > 0.39 and across < 0.06
        for i in range(len(radii)):
            for j in range(i):
                assert np.linalg.norm(centres[i] - centres[j]) > radii[i] + radii[j]


def test_truth_table_of_one_scene() -> None:
    star, donut = Thing("small", "red", "star"), Thing("large", "blue", "donut")
    scene = Scene((star, donut), (LEFT,), 0, 7)
    assert is_true(Claim((donut, star), (RIGHT,)), scene)
    assert is_true(Claim((dataclasses.replace(star, size=None), donut), (LEFT,)), scene)
    for claim in (
        Claim((donut, star), (LEFT,)),
        Claim((star, donut), (ABOVE,)),
        Claim((star, donut), (BELOW,)),
        Claim((dataclasses.replace(star, colour="blue"), donut), (LEFT,)),
        Claim((star, star), (LEFT,)),
        Claim((star, donut, Thing(None, "red", "star")), (LEFT, ABOVE)),
    ):
        assert not is_true(claim, scene), say(claim, 0)


def test_on_a_diagonal_both_relations_may_be_said() -> None:
    corner = np.array([0.3, 0.3]), np.array([0.7, 0.7])
    assert [relation for relation in RELATIONS if stands(corner[0], relation, corner[1])] == [LEFT, ABOVE]


def test_every_word_turns_up_about_equally_often() -> None:
    things = [thing for scene in SCENES for thing in scene.things]
    for name, words in (("shape", SHAPES), ("colour", COLOURS), ("size", SIZES)):
        counts = Counter(getattr(thing, name) for thing in things)
        assert set(counts) == set(words)
        assert min(counts.values()) > 0.6 * len(things) / len(words)
    relations = Counter(relation for scene in SCENES for relation in scene.relations)
    assert set(relations) == set(RELATIONS) and min(relations.values()) > 0.2 * relations.total()
    assert {len(scene.things) for scene in SCENES} == {2, 3}


def test_scenes_and_pictures_follow_from_the_seed() -> None:
    again = [draw_scene(np.random.default_rng([5, i])) for i in range(50)]
    assert again == SCENES[:50]
    assert [render(scene, 48).tobytes() for scene in again] == [render(s, 48).tobytes() for s in SCENES[:50]]
    assert len({render(scene, 48).tobytes() for scene in SCENES[:200]}) == len(set(SCENES[:200])) == 200


@pytest.mark.parametrize("shape", SHAPES)
def test_picture_shows_the_colour_where_the_thing_is(shape: str) -> None:
    for colour in COLOURS:
        scene = Scene((Thing("large", colour, shape), Thing("small", "green", "circle")), (ABOVE,), 2, 3)
        pixels = render(scene, 128).astype(int)
        assert pixels.shape == (128, 128, 3)
        centres, radii = place(scene)
        rows, columns = np.mgrid[:128, :128] / 128
        disc = np.hypot(columns - centres[0, 0], rows - centres[0, 1]) < radii[0]
        near = abs(pixels - np.array(RGB[colour])).max(axis=2) < 26
        assert near[disc].mean() > 0.2
        assert near[~disc].mean() < (0.2 if colour == "green" else 0.02)


def test_shapes_have_outlines_of_their_own() -> None:
    def silhouette(shape: str, size: str) -> np.ndarray:
        pixels = render(
            Scene((Thing(size, "brown", shape), Thing("small", "pink", "donut")), (LEFT,), 0, 3), 32
        )
        return pixels[..., 0] < 180

    for size in SIZES:
        seen = [silhouette(shape, size) for shape in SHAPES]
        for i in range(len(SHAPES)):
            for j in range(i):
                differing = (seen[i] != seen[j]).sum() / max(seen[i].sum(), seen[j].sum())
                assert differing > 0.1, (SHAPES[i], SHAPES[j], size)


def test_json_keeps_the_scene() -> None:
    for scene in SCENES[:20]:
        assert scene_from_dict(json.loads(json.dumps(scene_to_dict(scene)))) == scene


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: Thing("small", "grey", "star"), "colour='grey'"),
        (lambda: Thing("small", "red", "dog"), "shape='dog'"),
        (lambda: Claim((Thing(None, "red", "star"),), ()), "2 and 1 or 3 and 2"),
        (lambda: dataclasses.replace(SCENES[0], background=99), "background=99"),
        (lambda: render(SCENES[0], 5), "side=5"),
        (
            lambda: Claim(tuple(Thing(None, colour, "star") for colour in COLOURS[:3]), (LEFT, RIGHT)),
            "other axis",
        ),
    ],
)
def test_wrong_values_are_named(change, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        change()
