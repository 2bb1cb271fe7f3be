"""SWAP: two concepts of one kind change places.

Refused is what says the same again: reordered conjuncts, the sides of a symmetric relation, synonyms, and
what would undo an earlier call.
"""

from collections.abc import Iterator
from itertools import combinations

from raycomp.language.concepts import Concept
from raycomp.language.edits.changes import Case, Change, State
from raycomp.language.edits.wording import Piece
from raycomp.language.judge.paraphrase import CONVERSE
from raycomp.language.lexicon import NUMBER
from raycomp.language.tokens import OWNERS
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

MIXED = frozenset(["colour", "material", "pattern", "size", "age"])
"""Categories whose attributes also change places with those of another one."""
POSSESSIVES = OWNERS | {"her", "'s"}


def _is_symmetric(case: Case, first: int, second: int) -> bool:
    """Report whether the caption says the same of two objects: conjuncts, "next to"."""
    if case.words.coordination(first) == case.words.coordination(second):
        return True
    return any(
        one.sides is not None and {*one.sides} == {first, second} and case.lexicon.is_symmetric(one.word)
        for one in case.concepts
    )


def _was_swapped(case: Case, first: int, second: int, state: State) -> bool:
    """Report whether an earlier call acted on both objects, their attributes, or how they relate."""
    sides = {first, second}
    if any(one.sides and {*one.sides} == sides and i in state.used for i, one in enumerate(case.concepts)):
        return True
    return all(
        place in state.used or any(one in state.used for one in case.words.attributes[place])
        for place in sides
    )


def _turns_back(case: Case, first: int, second: int, state: State) -> bool:
    """Report whether swapping two concepts exchanges the sides of a relation that an earlier call turned."""
    after = state._replace(swapped=(*state.swapped, (first, second)))
    return any(
        case.are_exchanged(left, one.sides[1], after)
        for place, one in enumerate(case.concepts)
        if one.sides is not None and place in state.used and _is_turned(case, one, state)
        for left in case.lefts(one)
    )


def _is_turned(case: Case, relation: Concept, state: State) -> bool:
    entry = case.lexicon.find(relation.word, RELATION)
    return entry is not None and any(word in state.brought for word in CONVERSE.get(entry.group, ()))


def _shares(case: Case, first: int, second: int) -> bool:
    """Return whether a modifier of the first of two conjuncts applies to both: "a red hat and scarf"."""
    between = case.parsed.text[case.concepts[first].end : case.concepts[second].start].strip().lower()
    return (
        between in ("and", "or", ",")
        and not case.words.determiner(second)
        and not case.words.attributes[second]
    )


def _distance(case: Case, first: int, second: int) -> int:
    """Return how far apart two objects are in kind: 0 the same category, 3 unknown."""
    one, two = case.concepts[first], case.concepts[second]
    if not (one.category and two.category):
        return 3
    if one.category == two.category:
        return 0
    return 1 if case.realm(one) & case.realm(two) else 2


def swap_objects(case: Case, state: State) -> Iterator[Change]:
    """Exchange the nouns of two noun phrases; number, articles and attributes stay in place."""
    for i, j in combinations(case.free(OBJECT, state), 2):
        if case.are_alike(i, j) or _was_swapped(case, i, j, state) or _turns_back(case, i, j, state):
            continue
        if (_is_symmetric(case, i, j) and case.said_of(i) == case.said_of(j)) or _shares(case, i, j):
            continue
        one, two = case.concepts[i], case.concepts[j]
        if not (case.words.accepts(i, two.word) and case.words.accepts(j, one.word)):
            continue
        if case.words.is_bare(i) != case.words.is_bare(j) and not case.words.is_headline:
            continue
        if (
            case.is_barred(one.word) != case.is_barred(two.word)
            and case.is_person(one)
            and case.is_person(two)
        ):
            continue
        pieces = (_noun(case, i, j), _noun(case, j, i))
        words = case.concepts[i].word, case.concepts[j].word
        yield Change(OBJECT, words, frozenset({i, j}), pieces, _distance(case, i, j), (i, j))


def _noun(case: Case, place: int, other: int) -> Piece:
    """Return the words of object ``other`` in the number of object ``place``."""
    slot, new = case.concepts[place], case.concepts[other]
    if slot.is_plural == new.is_plural:
        return Piece(slot.start, slot.end, case.words.plain(new.start, new.end))
    return Piece(slot.start, slot.end, case.words.inflect(place, case.words.base(other)))


def swap_attributes(case: Case, state: State) -> Iterator[Change]:
    """Exchange attributes of two nouns."""
    for i, j in combinations(case.free(ATTRIBUTE, state), 2):
        one, two = case.concepts[i], case.concepts[j]
        if one.owner is None or two.owner is None or one.owner == two.owner or case.are_alike(i, j):
            continue
        if _was_swapped(case, one.owner, two.owner, state) or not _may_exchange(case, i, j):
            continue
        if _turns_back(case, i, j, state):
            continue
        said = case.said_of(one.owner, i), case.said_of(two.owner, j)
        if two.word in said[0] or one.word in said[1]:
            continue
        alike = case.are_alike(one.owner, two.owner)
        if alike and said[0] == said[1] and _is_symmetric(case, one.owner, two.owner):
            continue
        pieces = (
            Piece(one.start, one.end, case.words.plain(two.start, two.end)),
            Piece(two.start, two.end, case.words.plain(one.start, one.end)),
        )
        tier = int(one.category != two.category)
        yield Change(ATTRIBUTE, (one.word, two.word), frozenset({i, j}), pieces, tier, (i, j))


def _may_exchange(case: Case, first: int, second: int) -> bool:
    """Report whether each of two attributes may describe the other's noun."""
    one, two = case.concepts[first], case.concepts[second]
    if not (one.category and two.category) or one.owner is None or two.owner is None:
        return False
    nouns = case.concepts[one.owner], case.concepts[two.owner]
    if NUMBER in (one.category, two.category):
        return one.category == two.category and nouns[0].is_plural and nouns[1].is_plural
    if "colour" in (one.category, two.category) and any(case.is_person(noun) for noun in nouns):
        return False
    if one.category == two.category:
        return True
    return (
        {one.category, two.category} <= MIXED
        and case.lexicon.fits(one.word, ATTRIBUTE, nouns[1].word)
        and case.lexicon.fits(two.word, ATTRIBUTE, nouns[0].word)
        and two.category not in _categories(case, one.owner)
        and one.category not in _categories(case, two.owner)
    )


def _categories(case: Case, place: int) -> set[str]:
    return {case.concepts[i].category for i in case.words.attributes[place]}


def swap_sides(case: Case, state: State) -> Iterator[Change]:
    """Exchange the whole noun phrases on the two sides of a relation."""
    finite = any(token.tag in ("VBZ", "VBP") for token in case.parsed.tokens)
    for place in case.free(RELATION, state):
        relation = case.concepts[place]
        if relation.sides is None or _was_swapped(case, *relation.sides, state):
            continue
        i, j = relation.sides
        inside = {place, i, j, *case.words.attributes[i], *case.words.attributes[j]}
        if inside & state.used or _is_symmetric(case, i, j) or case.are_alike(i, j):
            continue
        if finite and case.concepts[i].is_plural != case.concepts[j].is_plural:
            continue
        if any(case.is_listed(side) or case.words.determiner(side) in POSSESSIVES for side in (i, j)):
            continue
        if any(not case.words.stands_alone(side) for side in (i, j)):
            continue
        spans = [_phrase(case, side) for side in (i, j)]
        if spans[0][1] > spans[1][0]:
            continue
        texts = [case.words.plain(*span) for span in spans]
        pieces = (Piece(*spans[0], texts[1]), Piece(*spans[1], texts[0]))
        words = case.concepts[i].word, case.concepts[j].word
        yield Change(RELATION, words, frozenset(inside), pieces, _distance(case, i, j))


def _phrase(case: Case, place: int) -> tuple[int, int]:
    first = case.parsed.tokens[case.words.phrase_starts[place]]
    return first.start, case.concepts[place].end
