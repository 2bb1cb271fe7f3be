"""How plausible a word is in a place of a caption, by the counts of a corpus.

A weight is P(word) of its kind times the lifts of what stands around it: the neighbours, what describes it,
the relations it is a side of. Words are drawn in proportion to it.
"""

from collections.abc import Callable, Iterable, Iterator
from math import exp, log
from typing import TYPE_CHECKING

from raycomp.language.context import DESCRIBED, END, LEFT, NEAR, RIGHT, START, TOGETHER, Context, as_neighbour
from raycomp.language.text_only import find_words
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

if TYPE_CHECKING:
    from raycomp.language.edits.changes import Case

Weigh = Callable[[str], float]


def race(case: "Case", words: Iterable[str], weigh: Weigh, *parts: object) -> list[tuple[float, str]]:
    """Return words with their ranks, the first first: ranks order all places' words as a draw without
    replacement in proportion to the weights does, which sum to 1 over the words of a place."""
    weights = {word: weigh(word) for word in words}
    total = sum(weights.values())
    return sorted((draw_rank(case, weight / total, word, *parts), word) for word, weight in weights.items())


def draw_rank(case: "Case", weight: float, *parts: object) -> float:
    """Return an exponential time of rate ``weight``, by hash: the earliest of several is drawn."""
    uniform = (int.from_bytes(case.hash("race", *parts), "big") + 0.5) / 2**64
    return -log(uniform) / weight


def weigh_between(context: Context, text: str, start: int, end: int, new: str) -> float:
    """Return the lift of both neighbours of the characters [start, end) for new words in their place."""
    words = list(map(as_neighbour, find_words(new)))
    before = as_neighbour((find_words(text[:start]) or [START])[-1])
    after = as_neighbour((find_words(text[end:]) or [END])[0])
    if not words:
        return 1.0
    return context.lift(NEAR, before, words[0]) * context.lift(NEAR, words[-1], after)


def weigh_word(case: "Case", place: int, word: str, new: str) -> float:
    """Return the weight of a concept, written as ``new``, in the place of another of its kind."""
    context = case.counted
    old = case.concepts[place]
    around = weigh_between(context, case.parsed.text, old.start, old.end, new)
    return context.share(old.kind, word) * around * weigh_bonds(case, place, word)


def weigh_bonds(case: "Case", place: int, word: str, with_attributes: bool = True) -> float:
    """Return the lift of what a concept in a place is bound to: attributes, owner, relations, sides."""
    lifts = [case.counted.lift(*bond) for bond in _list_bonds(case, place, word, with_attributes)]
    return exp(sum(map(log, lifts)))


def _list_bonds(case: "Case", place: int, word: str, with_attributes: bool) -> Iterator[tuple[str, str, str]]:
    concepts, one = case.concepts, case.concepts[place]
    if one.kind == ATTRIBUTE and one.owner is not None:
        yield DESCRIBED, concepts[one.owner].word, word
    if one.kind == RELATION and one.sides is not None:
        yield LEFT, concepts[one.sides[0]].word, word
        yield RIGHT, word, concepts[one.sides[1]].word
    if one.kind == OBJECT:
        for attribute in case.words.attributes[place] if with_attributes else ():
            yield DESCRIBED, word, concepts[attribute].word
        for relation in concepts:
            if relation.sides and relation.sides[0] == place:
                yield LEFT, word, relation.word
            if relation.sides and relation.sides[1] == place:
                yield RIGHT, relation.word, word


def weigh_guest(case: "Case", word: str) -> float:
    """Return the weight of one more object: P(word) times the geometric mean of its lifts with the others."""
    others = {one.word for one in case.concepts if one.kind == OBJECT}
    lifts = [case.counted.lift(TOGETHER, other, word) for other in sorted(others)]
    mean = exp(sum(map(log, lifts)) / len(lifts)) if lifts else 1.0
    return case.counted.share(OBJECT, word) * mean
