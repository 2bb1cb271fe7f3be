"""SWAP: two concepts of one kind change places.

Refused is what says the same again: reordered conjuncts, the sides of a symmetric relation, synonyms, and
what would undo an earlier call.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

from raycomp.language.concepts import Concept
from raycomp.language.edits.changes import Case, Change, State
from raycomp.language.edits.plausible import draw_rank, weigh_bonds, weigh_word
from raycomp.language.edits.wording import Piece
from raycomp.language.judge.paraphrase import CONVERSE
from raycomp.language.lexicon import NUMBER
from raycomp.language.tokens import OWNERS
from raycomp.words import ATTRIBUTE, OBJECT, RELATION, SWAP

MIXED = frozenset(["colour", "material", "pattern", "size", "age"])
"""Categories whose attributes also change places with those of another one."""
_ARTICLE = {"an": "a"}
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


def _are_of_one_sort(case: Case, first: int, second: int) -> bool:
    """Report whether two objects are both living, both things, or both places of things."""
    one, two = case.concepts[first], case.concepts[second]
    realms = case.realm(one), case.realm(two)
    living = ["living" in realm for realm in realms]
    is_known = bool(one.category and two.category)
    return is_known and living[0] == living[1] and bool(realms[0]) == bool(realms[1])


def swap_objects(case: Case, state: State) -> Iterator[Change]:
    """Exchange the nouns of two noun phrases; number, articles and attributes stay in place.

    See ``_exchange_nouns`` for what the counts of a corpus change.
    """
    for i, j in combinations(case.free(OBJECT, state), 2):
        if case.are_alike(i, j) or _was_swapped(case, i, j, state) or _turns_back(case, i, j, state):
            continue
        if (_is_symmetric(case, i, j) and case.said_of(i) == case.said_of(j)) or _shares(case, i, j):
            continue
        one, two = case.concepts[i], case.concepts[j]
        if not (case.words.accepts(i, two.word) and case.words.accepts(j, one.word)):
            continue
        if case.words.is_bare(i) != case.words.is_bare(j) and not (
            case.words.is_headline and one.is_plural == two.is_plural
        ):
            continue
        if (
            case.is_barred(one.word) != case.is_barred(two.word)
            and case.is_person(one)
            and case.is_person(two)
        ):
            continue
        if case.context is not None and not _are_of_one_sort(case, i, j):
            continue
        pieces = _exchange_nouns(case, i, j)
        if pieces is None:
            continue
        rank = _rank(case, i, j, state)
        yield Change(
            OBJECT, (one.word, two.word), frozenset({i, j}), pieces, _distance(case, i, j), (i, j), rank
        )


def _exchange_nouns(case: Case, first: int, second: int) -> tuple[Piece, Piece] | None:
    """Return pieces that put two nouns in each other's place; None where one does not fit there.

    By the counts of a corpus only nouns of the same number and determiner change places, where attributes
    fit; others take their determiners along if they have no attributes.
    """
    if case.context is None or _agree(case, first, second):
        return _noun(case, first, second), _noun(case, second, first)
    if case.words.attributes[first] or case.words.attributes[second]:
        return None
    return _exchange_phrases(case, first, second)


def _agree(case: Case, first: int, second: int) -> bool:
    one, two = case.concepts[first], case.concepts[second]
    determiners = {_ARTICLE.get(word, word) for word in map(case.words.determiner, (first, second))}
    return (
        one.is_plural == two.is_plural
        and len(determiners) == 1
        and _fits_attributes(case, first, two.word)
        and _fits_attributes(case, second, one.word)
    )


def _fits_attributes(case: Case, place: int, word: str) -> bool:
    said = [case.concepts[i].word for i in case.words.attributes[place]]
    return all(case.lexicon.fits(attribute, ATTRIBUTE, word) for attribute in said)


def _rank(case: Case, first: int, second: int, state: State) -> float:
    """Return the rank of a swap of two concepts by what stands around their places."""

    def weigh(place: int, one: int) -> float:
        return weigh_word(case, place, case.concepts[one].word, case.words.plain(*_span(case, one)))

    return _compare(case, weigh, first, second, state)


def _compare(case: Case, weigh: Callable[[int, int], float], first: int, second: int, state: State) -> float:
    """Return a rank by the weights of both in the other's place, against those of both in their own."""
    if case.context is None:
        return 0.0
    new, old = weigh(first, second) * weigh(second, first), weigh(first, first) * weigh(second, second)
    return draw_rank(case, new / old, *state.pieces, SWAP, first, second)


def _span(case: Case, place: int) -> tuple[int, int]:
    return case.concepts[place].start, case.concepts[place].end


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
        tier, rank = int(one.category != two.category), _rank(case, i, j, state)
        yield Change(ATTRIBUTE, (one.word, two.word), frozenset({i, j}), pieces, tier, (i, j), rank)


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
    for place in case.free(RELATION, state):
        relation = case.concepts[place]
        if relation.sides is None or _was_swapped(case, *relation.sides, state):
            continue
        i, j = relation.sides
        inside = {place, i, j, *case.words.attributes[i], *case.words.attributes[j]}
        if inside & state.used or _is_symmetric(case, i, j) or case.are_alike(i, j):
            continue
        if case.context is not None and not _are_of_one_sort(case, i, j):
            continue
        pieces = _exchange_phrases(case, i, j)
        if pieces is None:
            continue
        words = case.concepts[i].word, case.concepts[j].word
        rank = _compare(case, partial(_weigh_side, case), i, j, state)
        yield Change(RELATION, words, frozenset(inside), pieces, _distance(case, i, j), rank=rank)


def _exchange_phrases(case: Case, first: int, second: int) -> tuple[Piece, Piece] | None:
    """Return pieces that put two whole noun phrases in each other's place; None where one does not fit."""
    places = first, second
    finite = any(token.tag in ("VBZ", "VBP") for token in case.parsed.tokens)
    if finite and case.concepts[first].is_plural != case.concepts[second].is_plural:
        return None
    if any(case.is_listed(place) or case.words.determiner(place) in POSSESSIVES for place in places):
        return None
    if any(not case.words.stands_alone(place) for place in places):
        return None
    spans = [_phrase(case, place) for place in places]
    if spans[0][1] > spans[1][0]:
        return None
    texts = [case.words.plain(*span) for span in spans]
    return Piece(*spans[0], texts[1]), Piece(*spans[1], texts[0])


def _weigh_side(case: Case, place: int, other: int) -> float:
    """Return the lift of the relations of a place for another object, which brings its attributes along."""
    return weigh_bonds(case, place, case.concepts[other].word, with_attributes=False)


def _phrase(case: Case, place: int) -> tuple[int, int]:
    first = case.parsed.tokens[case.words.phrase_starts[place]]
    return first.start, case.concepts[place].end
