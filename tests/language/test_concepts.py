"""Concepts of hand-made trees in both label schemes, and of captions parsed by the packaged parser."""

import numpy as np
from test_phrases import read_tree

from raycomp.language.concepts import PRIMITIVE_WORD, Parsed, find_primitives, parse_concepts, swap_conjuncts
from raycomp.language.phrases import CLEAR_NLP, UD
from raycomp.models.parser import load_lexicon
from raycomp.words import ATTRIBUTE, OBJECT, RELATION
from tests.corpus import read_captions
from tests.drawn import TEMPLATES, claim_of, describe, draw_scene, phrases
from tests.language.reading import parse

MAN_UD = (
    "A|DT|det|3 young|JJ|amod|3 man|NN|nsubj|5 is|VBZ|aux|5 wearing|VBG|ROOT|0 a|DT|det|8 red|JJ|amod|8 "
    "hat|NN|obj|5 in|IN|case|10 front|NN|obl|5 of|IN|case|15 two|CD|nummod|15 big|JJ|amod|15 "
    "traffic|NN|compound|15 lights|NNS|nmod|10"
)
MAN_CLEAR = (
    "A|DT|det|3 young|JJ|amod|3 man|NN|nsubj|5 is|VBZ|aux|5 wearing|VBG|ROOT|0 a|DT|det|8 red|JJ|amod|8 "
    "hat|NN|dobj|5 in|IN|prep|5 front|NN|pobj|9 of|IN|prep|10 two|CD|nummod|15 big|JJ|amod|15 "
    "traffic|NN|compound|15 lights|NNS|pobj|11"
)
CAR_UD = (
    "The|DT|det|2 car|NN|nsubj|4 is|VBZ|cop|4 red|JJ|ROOT|0 and|CC|cc|7 a|DT|det|7 group|NN|conj|4 "
    "of|IN|case|9 dogs|NNS|nmod|7 is|VBZ|cop|14 on|IN|case|14 top|NN|nmod|14 of|IN|fixed|12 it|PRP|conj|4"
)
CAR_CLEAR = (
    "The|DT|det|2 car|NN|nsubj|3 is|VBZ|ROOT|0 red|JJ|acomp|3 and|CC|cc|3 a|DT|det|7 group|NN|nsubj|10 "
    "of|IN|prep|7 dogs|NNS|pobj|8 is|VBZ|conj|3 on|IN|prep|10 top|NN|pobj|11 of|IN|prep|12 it|PRP|pobj|13"
)


def show(parsed: Parsed) -> list[tuple]:
    """Return (text, kind, word, category, what it belongs to) of every concept."""
    said = [parsed.text[one.start : one.end] for one in parsed.concepts]
    rows = []
    for one, text in zip(parsed.concepts, said, strict=True):
        link = () if one.owner is None else (said[one.owner],)
        rows.append((text, one.kind, one.word, one.category, tuple(said[i] for i in one.sides or ()) or link))
    return rows


def test_both_label_schemes_give_the_same_concepts():
    for universal, clear, num in ((MAN_UD, MAN_CLEAR, 9), (CAR_UD, CAR_CLEAR, 3)):
        found = [
            parse_concepts(*read_tree(tree), load_lexicon(), labels).concepts
            for tree, labels in ((universal, UD), (clear, CLEAR_NLP))
        ]
        assert found[0] == found[1] and len(found[0]) == num


def test_attributes_have_owners_and_relations_sides():
    text, tokens = read_tree(MAN_UD)
    assert show(parse_concepts(text, tokens, load_lexicon(), UD)) == [
        ("young", ATTRIBUTE, "young", "age", ("man",)),
        ("man", OBJECT, "man", "person", ()),
        ("wearing", RELATION, "wear", "verb", ("man", "hat")),
        ("red", ATTRIBUTE, "red", "colour", ("hat",)),
        ("hat", OBJECT, "hat", "headwear", ()),
        ("in front of", RELATION, "in front of", "spatial", ("man", "traffic lights")),
        ("two", ATTRIBUTE, "two", "number", ("traffic lights",)),
        ("big", ATTRIBUTE, "big", "size", ("traffic lights",)),
        ("traffic lights", OBJECT, "traffic light", "street object", ()),
    ]


def test_concepts_are_sorted_and_apart_and_point_at_their_kinds(shared):
    for parsed in parse(*(texts[0] for texts in read_captions(shared, "cc_web_400"))):
        ends = [0, *(one.end for one in parsed.concepts)]
        for end, one in zip(ends, parsed.concepts, strict=False):
            assert end <= one.start < one.end <= len(parsed.text)
            assert one.kind == ATTRIBUTE or one.owner is None
            assert one.kind == RELATION or one.sides is None
            linked = [one.owner] if one.owner is not None else one.sides or ()
            assert all(parsed.concepts[i].kind == OBJECT for i in linked)


def test_captions():
    red_car = (
        "red=red/colour car=car/road_vehicle next_to=next_to/spatial wooden=wooden/material bench=bench/seat"
    )
    dog = "black=black/colour white=white/colour dog=dog/pet catches=catch/verb frisbee=frisbee/ball"
    man = "man=man/person holds=hold/verb light_blue=light_blue/colour t-shirt=t-shirt/upper_clothing"
    for caption, expected in [
        ("a red car is next to a wooden bench", red_car),
        ("A black and white dog catches a frisbee .", dog),
        ("A man holds a light blue t-shirt", man),
        ("a glorp on a sunny day .", "glorp=glorp/ sunny=sunny/condition"),
        ("A dog plays in spite of the rain because of a ball .", "dog=dog/pet ball=ball/ball"),
    ]:
        [parsed] = parse(caption)
        rows = [(parsed.text[one.start : one.end], one.word, one.category) for one in parsed.concepts]
        said = ("{}={}/{}".format(*(cell.replace(" ", "_") for cell in row)) for row in rows)
        assert " ".join(said) == expected
    assert show(parse("A black and white dog catches a frisbee .")[0])[3][4] == ("dog", "frisbee")
    assert show(parse("the car is red")[0])[1][4] == ("car",)


def test_primitives_are_objects_with_their_attributes():
    text, tokens = read_tree(MAN_UD)
    parsed = parse_concepts(text, tokens, load_lexicon(), UD)
    assert find_primitives(parsed) == ("young man", "red hat", "two big traffic lights")
    words = ("young", "man", "red", "hat", "two", "big", "traffic light")
    assert find_primitives(parsed, PRIMITIVE_WORD) == words
    for caption, expected in [
        ("the car is red", ("red car",)),
        ("A black and white DOG catches a frisbee .", ("black white dog", "frisbee")),
        ("a red cube left of a red cube", ("red cube",)),
        ("running quickly", ()),
    ]:
        assert find_primitives(*parse(caption)) == expected


def test_the_little_world_is_read_as_it_was_drawn():
    scenes = [draw_scene(np.random.default_rng([0, i])) for i in range(100)]
    templates = [i % len(TEMPLATES) for i in range(100)]
    captions = [describe(scene, template) for scene, template in zip(scenes, templates, strict=True)]
    found = [find_primitives(parsed) for parsed in parse(*captions)]
    drawn = [phrases(claim_of(scene, template)) for scene, template in zip(scenes, templates, strict=True)]
    assert found == drawn


def test_conjuncts_change_places_where_the_meaning_stays():
    for caption, swapped in [
        ("A black dog and a brown dog .", "A brown dog and a black dog ."),
        ("Children and adults play with a sprinkler .", "Adults and children play with a sprinkler ."),
        ("two women and a child are by a cart", "a child and two women are by a cart"),
    ]:
        assert swap_conjuncts(caption, parse(caption)[0].tokens) == swapped
        assert swap_conjuncts(swapped, parse(swapped)[0].tokens) == caption, "twice is none"
    for caption in [
        # What follows might belong to the second alone, what precedes the first to both.
        "A lady and a man with no shirt sit on a dock .",
        "A small dog and a large dog carrying a stick in its mouth run outside .",
        "A red hat and shirt",
        "A white and a gray dog walking",
        "Two dogs and cats play",
        # Pronouns say who was meant.
        "A man and his dog are in the mountains .",
        "A man and another man are here .",
        "A man and a woman are here , the latter in red .",
        # No plural verb, no list.
        "A mother and children is fishing on a boardwalk .",
        "A black dog and a tan dog fighting .",
        "A dog or a cat",
        "A tent on the shore and a man",
        *("A dog and", "and a dog", "dogs", ""),
    ]:
        assert swap_conjuncts(caption, parse(caption)[0].tokens) is None, caption
