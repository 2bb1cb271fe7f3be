"""A parsed caption's tokens, and the Penn tags and small words that distinguish them.

Also the words of two texts in parallel, and the difference between their common ends.
"""

from collections.abc import Sequence
from typing import NamedTuple

NOUN_TAGS = ("NN", "NNS", "NNP", "NNPS")
ADJECTIVE_TAGS = ("JJ", "JJR", "JJS")
MODIFIER_TAGS = (*ADJECTIVE_TAGS, "VBN", "VBG", "CD")
"""What may stand before a noun and describe it."""
SUBJECTS = frozenset(["nsubj", "nsubj:pass", "nsubjpass"])
"""Labels of subjects in both schemes."""
STOPS = (".", "!", "?")
ARTICLES = ("a", "an", "the")
ONE = frozenset("a an another each every one".split())
"""Determiners of one thing."""
OWNERS = frozenset("my your his its our their".split())


class Token(NamedTuple):
    """One token: its text, characters [start, end) of the caption, PTB tag, label, position of its head."""

    text: str
    start: int
    end: int
    tag: str
    dep: str
    head: int


def find_children(tokens: Sequence[Token]) -> list[list[int]]:
    """Return the positions that hang below each token, in order. A root is its own head."""
    children: list[list[int]] = [[] for _ in tokens]
    for place, token in enumerate(tokens):
        if token.head != place:
            children[token.head].append(place)
    return children


class Word(NamedTuple):
    """A word of a text in its base form, characters [start, end), and its class if one is given."""

    base: str
    start: int
    end: int
    letter: str = ""


def find_bases(words: Sequence[Word]) -> list[str]:
    """Return what words are compared by."""
    return [word.base for word in words]


def measure_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return the number of common words at the start, and of the rest the number at the end."""
    most = min(len(old), len(new))
    first = next((i for i in range(most) if old[i] != new[i]), most)
    behind = next((i for i in range(most - first) if old[-1 - i] != new[-1 - i]), most - first)
    return first, behind


def cut_ends(old: Sequence[Word], new: Sequence[Word]) -> tuple[Sequence[Word], Sequence[Word]]:
    """Return the difference between the longest common start and, of the rest, the longest common end."""
    first, behind = measure_ends(find_bases(old), find_bases(new))
    return old[first : len(old) - behind], new[first : len(new) - behind]
