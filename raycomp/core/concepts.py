"""Concepts of a parsed caption: what a composition operator can swap, replace or add to."""

from collections.abc import Sequence
from typing import NamedTuple

from raycomp.core.phrases import Token


class Concept(NamedTuple):
    """One atomic concept: characters [start, end) of its text, without determiner."""

    start: int
    end: int
    kind: str
    """object, attribute or relation (``schema.CONCEPT_KINDS``)."""
    word: str
    """Lower-cased, in the base form that the lexicon knows: "dog" for "Dogs", "in front of"."""
    category: str
    """The lexicon's category ("animal", "colour", "spatial"); "" where it does not know the word."""
    is_plural: bool
    owner: int | None
    """Of an attribute: the index, among the caption's concepts, of the object it describes."""
    sides: tuple[int, int] | None
    """Of a relation: the indices of the objects on its two sides."""


class Parsed(NamedTuple):
    """A text with its tokens and its concepts, sorted by start."""

    text: str
    tokens: Sequence[Token]
    concepts: Sequence[Concept]


class Edit(NamedTuple):
    """One call of an operator on a text: what comes out and what it acted on."""

    text: str
    op: str
    kind: str
    concepts: tuple[str, ...]
    """SWAP: the two; REPLACE: the old and the new; ADD: the new."""
    touched: tuple[tuple[int, int], ...]
    """Spans of ``text`` that are new or moved; a later call leaves them alone."""
