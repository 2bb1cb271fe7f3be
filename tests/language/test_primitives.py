"""Primitives of captions as the packaged parser reads them; the little world knows what they are."""

import json

import numpy as np
import pytest
from test_concepts import MAN_UD
from test_phrases import read_tree

from raycomp.language.concepts import PHRASE, PRIMITIVE_WORD, Parsed, find_primitives, parse_concepts
from raycomp.language.phrases import UD
from raycomp.models.parser import load_lexicon, load_parser
from tests.drawn import TEMPLATES, claim_of, describe, draw_scene, phrases


@pytest.fixture(scope="module")
def read_captions():
    parser = load_parser()

    def read(texts: list[str]) -> list[Parsed]:
        pairs = zip(texts, parser.tokens(texts), strict=True)
        return [parse_concepts(text, tokens, load_lexicon(), parser.labels) for text, tokens in pairs]

    return read


def test_objects_have_their_attributes_and_relations_are_left_out():
    text, tokens = read_tree(MAN_UD)
    parsed = parse_concepts(text, tokens, load_lexicon(), UD)
    assert find_primitives(parsed) == ("young man", "red hat", "two big traffic lights")
    words = ("young", "man", "red", "hat", "two", "big", "traffic light")
    assert find_primitives(parsed, PRIMITIVE_WORD) == words


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("the car is red", ("red car",)),
        ("A black and white DOG catches a frisbee .", ("black white dog", "frisbee")),
        ("a red cube left of a red cube", ("red cube",)),
        ("a large red cube and a small red ball", ("large red cube", "small red ball")),
        ("", ()),
        ("running quickly", ()),
    ],
)
def test_phrases_of_captions(read_captions, caption: str, expected: tuple[str, ...]):
    assert find_primitives(*read_captions([caption])) == expected


def test_swapped_attributes_show_in_phrases_alone(read_captions):
    first, second = read_captions(["a red cube above a blue ball", "a blue cube above a red ball"])
    assert {*find_primitives(first, PRIMITIVE_WORD)} == {*find_primitives(second, PRIMITIVE_WORD)}
    assert {*find_primitives(first, PHRASE)} != {*find_primitives(second, PHRASE)}


def test_order_and_relations_show_in_neither(read_captions):
    captions = [
        "a red cube above a blue ball",
        "a blue ball below a red cube",
        "a red cube below a blue ball",
    ]
    for form in (PHRASE, PRIMITIVE_WORD):
        assert len({frozenset(find_primitives(one, form)) for one in read_captions(captions)}) == 1


def test_the_little_world_is_read_as_it_was_drawn(read_captions):
    scenes = [draw_scene(np.random.default_rng([0, i])) for i in range(200)]
    templates = [i % len(TEMPLATES) for i in range(200)]
    captions = [describe(scene, template) for scene, template in zip(scenes, templates, strict=True)]
    found = [find_primitives(parsed) for parsed in read_captions(captions)]
    drawn = [phrases(claim_of(scene, template)) for scene, template in zip(scenes, templates, strict=True)]
    assert found == drawn


def test_photos_captions_mostly_have_some(read_captions, shared):
    lines = (shared / "data" / "flickr8k_800" / "captions.jsonl").read_text(encoding="utf-8").splitlines()
    found = [
        find_primitives(one) for one in read_captions([json.loads(line)["captions"][0] for line in lines])
    ]
    assert np.mean([bool(one) for one in found]) > 0.97
    assert all(len({*one}) == len(one) and "" not in one for one in found)


def test_forms_have_names(read_captions):
    with pytest.raises(ValueError, match="form='noun': must be one of phrase, word"):
        find_primitives(*read_captions(["a dog"]), form="noun")
