"""Which conjuncts change places, on captions as the packaged parser reads them."""

import pytest

from raycomp.language.concepts import swap_conjuncts
from raycomp.models.parser import Parser, load_parser


@pytest.fixture(scope="module")
def parser() -> Parser:
    return load_parser()


def swap(parser: Parser, caption: str) -> str | None:
    (tokens,) = parser.tokens([caption])
    return swap_conjuncts(caption, tokens)


@pytest.mark.parametrize(
    ("caption", "swapped"),
    [
        ("A black dog and a brown dog .", "A brown dog and a black dog ."),
        ("A man and a woman are sitting on a dock", "A woman and a man are sitting on a dock"),
        ("Children and adults play with a sprinkler .", "Adults and children play with a sprinkler ."),
        ("two women and a child are by a cart", "a child and two women are by a cart"),
        (
            "A brown dog and a black dog are standing against each other",
            "A black dog and a brown dog are standing against each other",
        ),
        ("a red cube and a blue ball", "a blue ball and a red cube"),
    ],
)
def test_conjuncts_change_places_and_the_meaning_stays(parser, caption, swapped):
    assert swap(parser, caption) == swapped
    assert swap(parser, swapped) == caption, "twice is none"


@pytest.mark.parametrize(
    "caption",
    [
        "A lady and a man with no shirt sit on a dock .",
        "A blonde horse and a blonde girl in a black sweatshirt are staring at a fire .",
        "A small dog and a large dog carrying a stick in its mouth run outside .",
        "A man and a woman sitting on a dock .",
    ],
)
def test_what_follows_might_belong_to_the_second_alone(parser, caption):
    assert swap(parser, caption) is None


@pytest.mark.parametrize(
    "caption",
    [
        "A red hat and shirt",
        "A man and young boy ride in a yellow kayak .",
        "A white and a gray dog walking",
        "Two dogs and cats play",
    ],
)
def test_what_precedes_the_first_might_belong_to_both(parser, caption):
    assert swap(parser, caption) is None


@pytest.mark.parametrize(
    "caption",
    [
        "A man and his dog are in the mountains .",
        "A girl and a man hold hands as he points to something .",
        "A man and another man are here .",
        "A man and a woman are here , the latter in red .",
    ],
)
def test_pronouns_say_who_was_meant(parser, caption):
    assert swap(parser, caption) is None


@pytest.mark.parametrize(
    "caption",
    [
        "A mother and children is fishing on a boardwalk .",
        "A black dog and a tan dog fighting .",
        "A dog near a cat",
        "A dog or a cat",
        "A tent on the shore and a man",
        "A dog and",
        "and a dog",
        "dogs",
        "",
    ],
)
def test_no_plural_verb_no_list_no_swap(parser, caption):
    assert swap(parser, caption) is None
