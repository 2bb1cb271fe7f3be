"""A lexicon of a few rows: forms, kinds, siblings and opposites as its rows say."""

import pytest

from raycomp.language.lexicon import (
    MASS,
    OPPOSITE,
    PLURAL,
    RARE,
    Forms,
    Lexicon,
    SynonymSet,
    choose_article,
    drop_s,
    get_base_form,
)
from raycomp.words import ATTRIBUTE, OBJECT, RELATION


def row(kind, category, words, parents="", marks=(), instead="", fits=""):
    cells = (tuple(cell.split(", ")) if cell else () for cell in (words, parents, instead, fits))
    words, parents, instead, fits = cells
    return SynonymSet(kind, category, words, parents, frozenset(marks), instead, fits)


ROWS = [
    row(OBJECT, "pet", "dog, doggy", "animal"),
    row(OBJECT, "pet", "puppy, pup", "dog"),
    row(OBJECT, "pet", "cat", "animal"),
    row(OBJECT, "pet", "axolotl", "animal", [RARE]),
    row(OBJECT, "seat", "sofa, couch", "furniture"),
    row(OBJECT, "street", "traffic light"),
    row(OBJECT, "animal", "sheep"),
    row(OBJECT, "person", "woman"),
    row(OBJECT, "person", "person"),
    row(OBJECT, "ground", "snow", "", [MASS]),
    row(OBJECT, "clothing", "jeans", "", [PLURAL]),
    row(ATTRIBUTE, "size", "small, tiny", "", [OPPOSITE], "large"),
    row(ATTRIBUTE, "size", "large", "", [OPPOSITE], "small"),
    row(ATTRIBUTE, "material", "woolen", "", [], "", "animal"),
    row(RELATION, "spatial", "left of", "", [OPPOSITE], "right of"),
    row(RELATION, "spatial", "right of", "", [OPPOSITE], "left of"),
    row(RELATION, "verb", "hug", "", [], "push"),
    row(RELATION, "verb", "push", "", [], "hug"),
]
FORMS = Forms({"sheep": "sheep", "person": "people"}, {}, {}, frozenset(["hug"]))
LEXICON = Lexicon(ROWS, FORMS)


def test_articles_follow_the_sound():
    for article, words in (
        ("an", "owl, umbrella, old unicorn, hour, unimpressed cat, X-ray, honor guard, usher"),
        ("an", "8-year-old boy, 80th birthday, 11-year-old, 18 wheeler, 1800s house"),
        ("a", "dog, unicycle, uniform, one-eyed cat, 1900s house, 110 m race, US flag, ewe"),
    ):
        for word in words.split(", "):
            assert choose_article(word) == article, word


def test_a_word_in_two_sets_is_refused():
    with pytest.raises(ValueError, match="two synonym sets"):
        Lexicon([*ROWS, row(OBJECT, "toy", "stuffed toy, pup")], FORMS)
    with pytest.raises(ValueError, match="unknown marks"):
        Lexicon([row(OBJECT, "toy", "doll", "", ["loud"])], FORMS)


def test_words_are_found_in_any_form_with_their_kinds_and_siblings():
    found = "Dogs=dog, PUPS=puppy, couches=sofa, traffic  lights=traffic light, people=person, hugging=hug"
    for text, group in (pair.split("=") for pair in found.split(", ")):
        assert LEXICON.find(text).group == group
    assert LEXICON.find("ghost") is LEXICON.find("") is None
    siblings = {
        "doggy": ("cat",),
        "puppy": ("cat",),
        "cat": ("dog", "puppy"),
        "axolotl": ("dog", "puppy", "cat"),
    }
    assert {word: LEXICON.siblings(LEXICON.find(word)) for word in siblings} == siblings, (
        "neither alike nor rare"
    )
    assert LEXICON.is_kind_of("pups", "doggy") and LEXICON.is_kind_of("puppy", "animal")
    assert not LEXICON.is_kind_of("dog", "puppy") and not LEXICON.is_kind_of("cat", "dog")
    assert LEXICON.are_synonyms("sofas", "Couch") and not LEXICON.are_synonyms("dog", "puppy")
    assert LEXICON.are_synonyms("ghost", "Ghost") and not LEXICON.are_synonyms("ghost", "spook")


def test_plurals_and_bases():
    plurals = "dog dogs, fox foxes, party parties, boy boys, fireman firemen, human humans, sheep sheep"
    for word, plural in (*(pair.split() for pair in plurals.split(", ")), ("young person", "young people")):
        assert LEXICON.plural(word) == plural
        assert word == "fireman" or LEXICON.singular(plural) == word
    for words in ("parties party party", "lies ly lie", "boxes box box", "buses buse bus"):
        word, noun, base = words.split()
        assert (drop_s(word), get_base_form(word)) == (noun, base)
