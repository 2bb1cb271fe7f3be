"""What a reader of text alone sees of a caption and its negative: antisymmetric differences, by name.

Exchanging the two changes the sign of every difference. ``core.refine`` makes their sums 0.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from raycomp.language.text_only import find_words

# Ends of the classes of a difference in words or letters: 1, 2, 3 to 4, 5 to 8, more.
_SIZES = (1, 2, 4, 8)
_START, _END = "<", ">"


def list_differences(caption: str, negative: str) -> Iterator[tuple[str, int]]:
    """Yield the words, and pairs of neighbours, that occur more often in one of the two: (name, caption's
    count minus negative's); then the sign of the difference in words and in letters, by its size."""
    first, second = _count(caption), _count(negative)
    for name in sorted(first.keys() | second.keys()):
        if first[name] != second[name]:
            yield name, first[name] - second[name]
    sizes = (("words", len(find_words(caption)), len(find_words(negative))),)
    for unit, one, two in (*sizes, ("letters", len(caption), len(negative))):
        if one != two:
            yield f"#{unit} {sum(abs(one - two) > end for end in _SIZES)}", 1 if one > two else -1


def _count(text: str) -> Counter[str]:
    words = find_words(text)
    return Counter([*words, *map(" ".join, pairwise([_START, *words, _END]))])
