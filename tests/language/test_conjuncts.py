"""Which conjuncts change places, on captions as the packaged parser reads them."""

from raycomp.language.concepts import swap_conjuncts
from tests.language.reading import parse


def swap(caption: str) -> str | None:
    return swap_conjuncts(caption, parse(caption)[0].tokens)


def test_conjuncts_change_places_and_the_meaning_stays():
    for caption, swapped in [
        ("A black dog and a brown dog .", "A brown dog and a black dog ."),
        ("A man and a woman are sitting on a dock", "A woman and a man are sitting on a dock"),
        ("Children and adults play with a sprinkler .", "Adults and children play with a sprinkler ."),
        ("two women and a child are by a cart", "a child and two women are by a cart"),
        ("A dog and a cat are against each other", "A cat and a dog are against each other"),
    ]:
        assert swap(caption) == swapped
        assert swap(swapped) == caption, "twice is none"


def test_no_conjuncts_change_places_where_the_meaning_might_change():
    for caption in (
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
        "A dog and",
        "and a dog",
        "dogs",
        "",
    ):
        assert swap(caption) is None, caption
