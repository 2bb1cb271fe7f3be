"""Primitives of captions as the packaged parser reads them; the little world knows what they are."""

import numpy as np
from test_concepts import MAN_UD
from test_phrases import read_tree

from raycomp.language.concepts import PRIMITIVE_WORD, find_primitives, parse_concepts
from raycomp.language.phrases import UD
from raycomp.models.parser import load_lexicon
from tests.drawn import TEMPLATES, claim_of, describe, draw_scene, phrases
from tests.language.reading import parse


def test_objects_have_their_attributes_and_relations_are_left_out():
    text, tokens = read_tree(MAN_UD)
    parsed = parse_concepts(text, tokens, load_lexicon(), UD)
    assert find_primitives(parsed) == ("young man", "red hat", "two big traffic lights")
    words = ("young", "man", "red", "hat", "two", "big", "traffic light")
    assert find_primitives(parsed, PRIMITIVE_WORD) == words


def test_phrases_of_captions():
    for caption, expected in [
        ("the car is red", ("red car",)),
        ("A black and white DOG catches a frisbee .", ("black white dog", "frisbee")),
        ("a red cube left of a red cube", ("red cube",)),
        ("running quickly", ()),
        ("", ()),
    ]:
        assert find_primitives(*parse(caption)) == expected


def test_the_little_world_is_read_as_it_was_drawn():
    scenes = [draw_scene(np.random.default_rng([0, i])) for i in range(200)]
    templates = [i % len(TEMPLATES) for i in range(200)]
    captions = [describe(scene, template) for scene, template in zip(scenes, templates, strict=True)]
    found = [find_primitives(parsed) for parsed in parse(*captions)]
    drawn = [phrases(claim_of(scene, template)) for scene, template in zip(scenes, templates, strict=True)]
    assert found == drawn
