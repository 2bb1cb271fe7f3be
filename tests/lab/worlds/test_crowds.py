"""Crowds: a fault changes the picture in one point, its caption is false of it, and nothing else tells."""

import numpy as np
import pytest

from lab.words import NOUN, PARTICIPLE
from lab.worlds.crowds import (
    CURATED_TEMPLATES,
    KINDS,
    MISSING_STAMP,
    MOST_THINGS,
    PHANTOM_OBJECT,
    SCORER_TEMPLATES,
    SIDE,
    STAMPS,
    WRONG_ATTRIBUTE,
    WRONG_OBJECT,
    WRONG_RELATION,
    Crowd,
    draw_crowd,
    draw_pair,
    least_things,
    say_crowd,
    show_crowd,
    spoil,
)
from lab.worlds.faults import NO_FAULT
from lab.worlds.scenes import RELATIONS, Thing

STAR, DONUT, MOON = Thing(None, "red", "star"), Thing(None, "blue", "donut"), Thing(None, "green", "moon")


@pytest.mark.parametrize(
    ("crowd", "said"),
    [
        (Crowd((STAR,), None), "there is a red star"),
        (Crowd((STAR, DONUT), "above"), "there is a red star above a blue donut"),
        (
            Crowd((STAR, DONUT, MOON), "to the left of", stamp="key"),
            "there is a red star to the left of a blue donut and a green moon, with a key stamp",
        ),
        (Crowd((STAR,), None, logo=True), "there is a red star, with a logo"),
    ],
)
def test_a_crowd_in_words(crowd, said):
    assert say_crowd(crowd, "there is {}") == said
    assert say_crowd(Crowd((STAR,), None, logo=True), "{}", PARTICIPLE) == "a red star, branded"


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_changes_one_point_of_the_picture(kind):
    rng = np.random.default_rng(0)
    for _ in range(300):
        said = draw_crowd(rng, least_things(kind), logo=0.5, stamp=float(kind == MISSING_STAMP))
        shown = spoil(said, kind, rng)
        lost = [thing for thing in said.things if thing not in shown.things]
        new = [thing for thing in shown.things if thing not in said.things]
        assert (len(lost), len(new)) == {
            WRONG_OBJECT: (1, 1),
            WRONG_ATTRIBUTE: (1, 1),
            PHANTOM_OBJECT: (1, 0),
        }.get(kind, (0, 0))
        if kind == WRONG_OBJECT:
            assert lost[0].colour == new[0].colour and lost[0].shape != new[0].shape
        if kind == WRONG_ATTRIBUTE:
            assert lost[0].colour != new[0].colour and lost[0].shape == new[0].shape
        assert (shown.relation != said.relation) == (kind == WRONG_RELATION)
        assert (shown.stamp != said.stamp) == (kind == MISSING_STAMP) and shown.logo == said.logo
        assert len(set(shown.things)) == len(shown.things), "no two are alike"
    with pytest.raises(ValueError, match=r"^kind='typo': must be one of wrong_object"):
        spoil(said, "typo", rng)


@pytest.mark.parametrize("kind", KINDS)
def test_a_caption_is_drawn_as_if_there_were_no_fault(kind):
    for seed in range(50):
        options = {"least": least_things(kind), "logo": 0.5, "stamp": 1.0, "junk": 0.5}
        faulty = draw_pair(np.random.default_rng(seed), kind, **options)
        sound = draw_pair(np.random.default_rng(seed), NO_FAULT, **options)
        assert (faulty.caption, faulty.said, faulty.template) == (sound.caption, sound.said, sound.template)
        assert sound.shown == sound.said != faulty.shown


def test_numbers_of_things_relations_and_cues_are_drawn_evenly():
    rng = np.random.default_rng(1)
    crowds = [draw_crowd(rng, logo=0.25, stamp=0.5) for _ in range(6000)]
    sizes = np.bincount([len(crowd.things) for crowd in crowds])
    assert sizes[0] == 0 and abs(sizes[1:] - 1000).max() < 130 and len(sizes) == MOST_THINGS + 1
    related = [crowd.relation for crowd in crowds if crowd.relation]
    assert len(related) == sizes[2:].sum() and {*related} == {*RELATIONS}
    assert abs(np.mean([crowd.logo for crowd in crowds]) - 0.25) < 0.03
    stamps = [crowd.stamp for crowd in crowds if crowd.stamp]
    assert abs(len(stamps) - 3000) < 150 and {*stamps} == {*STAMPS}


def test_a_picture_shows_what_it_is_of():
    for seed in range(40):
        crowd = draw_crowd(np.random.default_rng(seed), logo=1.0, stamp=1.0)
        picture = show_crowd(crowd, np.random.default_rng(seed))
        assert picture.shape == (SIDE, SIDE, 3) and picture.dtype == np.uint8
        assert np.array_equal(picture, show_crowd(crowd, np.random.default_rng(seed)))
        cells = picture.reshape(3, SIDE // 3, 3, SIDE // 3, 3).astype(int).swapaxes(1, 2)
        taken = (np.ptp(cells, axis=(2, 3)).max(-1) > 60).sum()
        assert taken == len(crowd.things) + 2, "each in a cell of its own"


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_first_thing_stands_so_to_the_second(relation):
    """By the middle of what is red and of what is blue."""
    crowd = Crowd((STAR, Thing(None, "blue", "square")), relation)
    for seed in range(20):
        picture = show_crowd(crowd, np.random.default_rng(seed)).astype(int)
        red = np.argwhere(picture[..., 0] - picture[..., 2] > 90).mean(0)
        blue = np.argwhere(picture[..., 2] - picture[..., 0] > 90).mean(0)
        down, right = red - blue
        found = {"to the left of": -right, "to the right of": right, "above": -down, "below": down}
        assert max(found, key=found.__getitem__) == relation and found[relation] > SIDE / 4


def test_scorers_read_other_templates():
    assert not {*CURATED_TEMPLATES} & {*SCORER_TEMPLATES}
    assert say_crowd(Crowd((STAR,), None, logo=True), SCORER_TEMPLATES[0], NOUN) == (
        "a red star on plain paper, with a logo"
    )
