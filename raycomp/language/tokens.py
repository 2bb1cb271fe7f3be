"""A parsed caption's tokens, and the Penn tags and small words by which they are told apart."""

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
