"""SWAP, REPLACE and ADD by rules: the changes that each operation proposes.

What is added has many alternatives, so that it is rarely true by chance: never "small" or "young", of which
every second would be.

The lexicon's siblings exclude synonyms, wider and narrower words. Opposites come first, where there are some.

Refused is what says the same again: reordered conjuncts, the sides of a symmetric relation, synonyms, and
what would undo an earlier call.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, islice

from raycomp.language import changes
from raycomp.language.changes import Case, Change, Piece, State
from raycomp.language.concepts import CONVERSE, Concept
from raycomp.language.lexicon import GUEST, NUMBER, OWNERS, VERB, choose_article
from raycomp.language.overlap import DESCRIBED, as_neighbour
from raycomp.words import ADD, ATTRIBUTE, OBJECT, RELATION, REPLACE, SWAP

# Categories that are added, each with those that stand between it and the noun.
AFTER = {
    "colour": ("pattern", "material"),
    "pattern": ("material",),
    "material": (),
    **dict.fromkeys(("hair", "look", "coat"), ("", "colour", "pattern", "material")),
}
PHRASES = ("next to", "in front of", "behind")
CARRIED = tuple("umbrella,basket,balloon,bucket,suitcase,skateboard,ladder,guitar,flag".split(","))
HAD_BY_ANIMALS = tuple("tennis ball,stick,frisbee,ribbon,balloon,shoe,glove".split(","))


def add_attributes(case: Case, state: State) -> Iterator[Change]:
    """Put an attribute before a noun that has none of its category: "small [furry] brown [spotted] dog"."""
    for place in case.free(OBJECT, state):
        noun = case.concepts[place]
        mine = [case.concepts[i] for i in case.attributes[place]]
        if not noun.category or any(one.start > noun.start for one in mine):
            continue
        names = [name for name in AFTER if name not in {one.category for one in mine}]
        words = [word for name in names for word in case.lexicon.words(ATTRIBUTE, name)]

        def weigh(word: str, noun: Concept = noun) -> float:
            around = changes.weigh_between(case.counted, case.text, noun.start, noun.start, word)
            lift = case.counted.lift(DESCRIBED, noun.word, word)
            return case.counted.share(ATTRIBUTE, word) * lift * around

        fitting = (
            (rank, word)
            for rank, word in case.pick(words, weigh, state, ATTRIBUTE, place)
            if case.lexicon.fits(word, ATTRIBUTE, noun.word) and not case.carries(word, state)
        )
        for rank, word in islice(fitting, case.choices):
            entry = case.lexicon.find(word, ATTRIBUTE)
            later = AFTER[entry.category] if entry else ()
            at = min([noun.start, *(one.start for one in mine if one.category in later)])
            new = case.matching(at, noun.end, word) + " "
            yield Change(ATTRIBUTE, (word,), frozenset({place}), (Piece(at, at, new),), rank=rank)


def add_objects(case: Case, state: State) -> Iterator[Change]:
    """Put "and a ..." behind a noun, or "with a ..." where a verb behind it would no longer agree."""
    for place in case.free(OBJECT, state):
        noun = case.concepts[place]
        if not case.can_follow(place) or case.is_listed(place):
            continue
        entry = case.lexicon.find(noun.word, OBJECT)
        words: Sequence[str]
        if case.agrees(place):
            is_animal = case.lexicon.is_kind_of(noun.word, "animal")
            joint, words = "with", HAD_BY_ANIMALS if is_animal else CARRIED
        elif entry and case.realm(noun):
            joint, words = "and", case.lexicon.siblings(entry)
        else:
            continue
        for rank, word in _pick_new(case, words, state, joint, place):
            phrase = f"{joint} {choose_article(word)} {word}"
            yield _add_behind(case, place, OBJECT, (word,), phrase, int(joint == "with"), rank)


def add_relations(case: Case, state: State) -> Iterator[Change]:
    """Put "next to a ..." behind a noun."""
    guests = case.lexicon.marked[GUEST]
    for place in case.free(OBJECT, state):
        noun = case.concepts[place]
        if not noun.category or not case.can_follow(place) or case.is_listed(place):
            continue
        for number, (rank, word) in enumerate(_pick_new(case, guests, state, RELATION, place)):
            relation = next(case.draw(PHRASES, RELATION, place, number))
            tier = 0 if case.ends(place) else 1
            phrase = f"{relation} {choose_article(word)} {word}"
            yield _add_behind(case, place, RELATION, (relation, word), phrase, tier, rank)


def _add_behind(
    case: Case, place: int, kind: str, words: tuple[str, ...], phrase: str, tier: int, rank: float
) -> Change:
    end = case.concepts[place].end
    phrase = phrase.upper() if case.text.isupper() else phrase
    return Change(kind, words, frozenset({place}), (Piece(end, end, " " + phrase),), tier, rank=rank)


def _pick_new(
    case: Case, words: Iterable[str], state: State, joint: str, place: int
) -> Iterator[tuple[float, str]]:
    """Yield a few single things that the caption does not carry, with their ranks."""
    new = (
        (rank, word)
        for rank, word in case.pick(words, partial(changes.weigh_guest, case), state, joint, place)
        if not (case.lexicon.is_mass(word) or case.lexicon.is_plural(word) or case.carries(word, state))
    )
    return islice(new, case.choices)


def replace_objects(case: Case, state: State) -> Iterator[Change]:
    """Put another noun of its category in place of one; "his" and "her" of the caption stay right."""
    for place in case.free(OBJECT, state):
        old = case.concepts[place]
        entry = case.lexicon.find(old.word, OBJECT)
        if entry is None or not old.category:
            continue
        siblings = case.lexicon.siblings(entry)
        forms = {word: case.lexicon.plural(word) if old.is_plural else word for word in siblings}
        words = (
            (rank, word)
            for rank, word in _pick(case, place, siblings, state, forms)
            if case.accepts(place, word) and not case.carries(word, state) and not case.is_barred(word)
        )
        for rank, word in islice(words, case.choices):
            new = case.matching(old.start, old.end, forms[word])
            yield _replace(case, place, word, new, rank=rank)


def replace_attributes(case: Case, state: State) -> Iterator[Change]:
    """Put another attribute of its category in place of one, fitting its noun where the old one did."""
    for place in case.free(ATTRIBUTE, state):
        old = case.concepts[place]
        entry = case.lexicon.find(old.word, ATTRIBUTE)
        owner = case.concepts[old.owner] if old.owner is not None else None
        if entry is None or (owner and old.category == "colour" and case.is_person(owner)):
            continue
        if old.category == NUMBER and owner and not owner.is_plural:
            continue  # the singular does not fit: "one dog", "two dogs"
        siblings = [word for word in case.lexicon.siblings(entry) if not case.carries(word, state)]
        if owner and case.lexicon.fits(old.word, ATTRIBUTE, owner.word):
            siblings = [word for word in siblings if case.lexicon.fits(word, ATTRIBUTE, owner.word)]
        opposite = case.lexicon.opposite(old.word)
        picked = _pick(case, place, siblings, state, {})
        ranked = sorted(picked, key=lambda one: one[1] != opposite)
        for rank, word in ranked[: case.choices]:
            new = case.matching(old.start, old.end, word)
            yield _replace(case, place, word, new, int(opposite is not None and word != opposite), rank)


def replace_relations(case: Case, state: State) -> Iterator[Change]:
    """Put the opposite in place of a preposition, or another deed in place of a verb."""
    for place in case.free(RELATION, state):
        old = case.concepts[place]
        entry = case.lexicon.find(old.word, RELATION)
        if entry is None or (old.sides and all(side in state.used for side in old.sides)):
            continue
        right = case.concepts[old.sides[1]].word if old.sides else ""
        if not case.lexicon.fits(old.word, RELATION, right):
            continue
        # What is true as well, as the sides are alike or were swapped: "a dog behind a dog".
        exchanged = old.sides and any(
            case.are_exchanged(left, old.sides[1], state) for left in case.lefts(old)
        )
        turned = CONVERSE.get(entry.group, ()) if exchanged else ()
        words = [word for word in case.lexicon.siblings(entry) if case.lexicon.fits(word, RELATION, right)]
        tag = case.tokens[case.first(place)].tag if entry.category == VERB else ""
        # The base form, which a preposition has, is that of no tag.
        forms = {word: case.lexicon.inflect(word, tag) for word in words if word not in turned}
        picked = [(0.0, word) for word in forms]
        if case.context is not None:
            picked = list(_pick(case, place, [*forms], state, forms))
        for tier, (rank, word) in enumerate(picked[: case.choices]):
            new = case.matching(old.start, old.end, forms[word])
            yield _replace(case, place, word, new, tier if case.context is None else 0, rank)


def _pick(
    case: Case, place: int, words: Sequence[str], state: State, forms: Mapping[str, str]
) -> Iterator[tuple[float, str]]:
    """Yield words for a place with their ranks; ``forms`` has those that are written otherwise there."""
    old = case.concepts[place]

    def weigh(word: str) -> float:
        return changes.weigh_word(case, place, word, forms.get(word, word))

    return case.pick(words, weigh, state, old.kind, old.start)


def _replace(case: Case, place: int, word: str, new: str, tier: int = 0, rank: float = 0.0) -> Change:
    old = case.concepts[place]
    pieces = (Piece(old.start, old.end, new),)
    return Change(old.kind, (old.word, word), frozenset({place}), pieces, tier, rank=rank)


MIXED = frozenset(["colour", "material", "pattern", "size", "age"])
"""Categories whose attributes also change places with those of another one."""
POSSESSIVES = OWNERS | {"her", "'s"}


def _is_symmetric(case: Case, first: int, second: int) -> bool:
    """Report whether the caption says the same of two objects: conjuncts, "next to"."""
    if case.coordination(first) == case.coordination(second):
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
    return all(not state.used.isdisjoint([place, *case.attributes[place]]) for place in sides)


def _turns_back(case: Case, first: int, second: int, state: State) -> bool:
    """Report whether swapping two concepts exchanges the sides of a relation that an earlier call turned."""
    after = state._replace(swapped=(*state.swapped, (first, second)))
    for place, one in enumerate(case.concepts):
        if one.sides is not None and place in state.used:
            entry, right = case.lexicon.find(one.word, RELATION), one.sides[1]
            turned = CONVERSE.get(entry.group, ()) if entry else ()
            exchanged = (case.are_exchanged(left, right, after) for left in case.lefts(one))
            if {*turned} & {*state.brought} and any(exchanged):
                return True
    return False


def _distance(case: Case, first: int, second: int) -> int:
    """Return how far apart two objects are in kind: 0 the same category, 3 unknown."""
    one, two = case.concepts[first], case.concepts[second]
    if not (one.category and two.category):
        return 3
    return 0 if one.category == two.category else 1 if case.realm(one) & case.realm(two) else 2


def _are_of_one_sort(case: Case, first: int, second: int) -> bool:
    """Report whether two objects are both living, both things, or both places of things."""
    one, two = case.concepts[first], case.concepts[second]
    sorts = {("living" in realm, bool(realm)) for realm in (case.realm(one), case.realm(two))}
    return bool(one.category and two.category) and len(sorts) == 1


def swap_objects(case: Case, state: State) -> Iterator[Change]:
    """Exchange the nouns of two noun phrases; number, articles and attributes stay in place.

    See ``_exchange_nouns`` for what the counts of a corpus change.
    """
    for i, j in combinations(case.free(OBJECT, state), 2):
        if case.are_alike(i, j) or _was_swapped(case, i, j, state) or _turns_back(case, i, j, state):
            continue
        if _is_symmetric(case, i, j) and case.said_of(i) == case.said_of(j):
            continue
        one, two = case.concepts[i], case.concepts[j]
        # A modifier of the first of two conjuncts may apply to both: "a red hat and scarf".
        are_joined = case.text[one.end : two.start].strip().lower() in ("and", "or", ",")
        if are_joined and not case.determiner(j) and not case.attributes[j]:
            continue
        if not (case.accepts(i, two.word) and case.accepts(j, one.word)):
            continue
        # Where articles are left out from the first noun on: "dog in front of church".
        is_level = case.is_bare(case.nouns[0]) and one.is_plural == two.is_plural
        if case.is_bare(i) != case.is_bare(j) and not is_level:
            continue
        are_persons = all(case.is_person(noun) for noun in (one, two))
        if case.is_barred(one.word) != case.is_barred(two.word) and are_persons:
            continue
        if case.context is not None and not _are_of_one_sort(case, i, j):
            continue
        pieces = _exchange_nouns(case, i, j)
        if pieces is None:
            continue
        words, tier, rank = (one.word, two.word), _distance(case, i, j), _rank(case, i, j, state)
        yield Change(OBJECT, words, frozenset({i, j}), pieces, tier, (i, j), rank)


def _exchange_nouns(case: Case, first: int, second: int) -> tuple[Piece, Piece] | None:
    """Return pieces that put two nouns in each other's place; None where one does not fit there.

    By the counts of a corpus only nouns of the same number and determiner change places, where attributes
    fit; others take their determiners along if they have no attributes.
    """
    one, two = case.concepts[first], case.concepts[second]
    determiners = {as_neighbour(case.determiner(place)) for place in (first, second)}
    agree = case.context is None or (
        one.is_plural == two.is_plural
        and len(determiners) == 1
        and all(case.lexicon.fits(said, ATTRIBUTE, two.word) for said in case.said_of(first))
        and all(case.lexicon.fits(said, ATTRIBUTE, one.word) for said in case.said_of(second))
    )
    if not agree:
        has_attributes = case.attributes[first] or case.attributes[second]
        return None if has_attributes else _exchange_phrases(case, first, second)

    def write(slot: Concept, new: Concept) -> Piece:
        """Put the words of one object in the place and the number of another, capitals of names kept."""
        said = case.plain(new.start, new.end)
        if new.is_plural and not slot.is_plural:
            single = case.lexicon.singular(said)
            said = said if single == said.lower() else single
        elif slot.is_plural and not new.is_plural:
            said = case.lexicon.plural(said)
        return Piece(slot.start, slot.end, said)

    return write(one, two), write(two, one)


def _rank(
    case: Case, first: int, second: int, state: State, weigh: Callable[[int, int], float] | None = None
) -> float:
    """Return the rank of a swap by the weights of both in the other's place, against those in their own.

    By default a weight is that of a concept's words by what stands around a place.
    """
    if case.context is None:
        return 0.0

    def weigh_one(place: int, other: int) -> float:
        one = case.concepts[other]
        return changes.weigh_word(case, place, one.word, case.plain(one.start, one.end))

    weigh = weigh or weigh_one
    new, old = weigh(first, second) * weigh(second, first), weigh(first, first) * weigh(second, second)
    return changes.draw_rank(case, new / old, *state.pieces, SWAP, first, second)


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
            Piece(one.start, one.end, case.plain(two.start, two.end)),
            Piece(two.start, two.end, case.plain(one.start, one.end)),
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
        and two.category not in {case.concepts[i].category for i in case.attributes[one.owner]}
        and one.category not in {case.concepts[i].category for i in case.attributes[two.owner]}
    )


def swap_sides(case: Case, state: State) -> Iterator[Change]:
    """Exchange the whole noun phrases on the two sides of a relation."""
    for place in case.free(RELATION, state):
        relation = case.concepts[place]
        if relation.sides is None or _was_swapped(case, *relation.sides, state):
            continue
        i, j = relation.sides
        inside = {place, i, j, *case.attributes[i], *case.attributes[j]}
        if inside & state.used or _is_symmetric(case, i, j) or case.are_alike(i, j):
            continue
        if case.context is not None and not _are_of_one_sort(case, i, j):
            continue
        pieces = _exchange_phrases(case, i, j)
        if pieces is None:
            continue
        words = case.concepts[i].word, case.concepts[j].word

        def weigh(place: int, other: int) -> float:
            """The lift of a place's relations for another object, which brings its attributes along."""
            return changes.weigh_bonds(case, place, case.concepts[other].word, with_attributes=False)

        rank = _rank(case, i, j, state, weigh)
        yield Change(RELATION, words, frozenset(inside), pieces, _distance(case, i, j), rank=rank)


def _exchange_phrases(case: Case, first: int, second: int) -> tuple[Piece, Piece] | None:
    """Return pieces that put two whole noun phrases in each other's place; None where one does not fit."""
    places = first, second
    finite = any(token.tag in ("VBZ", "VBP") for token in case.tokens)
    if finite and case.concepts[first].is_plural != case.concepts[second].is_plural:
        return None
    for place in places:
        is_bound = case.is_listed(place) or case.determiner(place) in POSSESSIVES
        if is_bound or not case.stands_alone(place):
            return None
    one, two = ((case.tokens[case.phrase_starts[place]].start, case.concepts[place].end) for place in places)
    if one[1] > two[0]:
        return None
    return Piece(*one, case.plain(*two)), Piece(*two, case.plain(*one))


RULES: dict[str, tuple[Callable[[Case, State], Iterator[Change]], ...]] = {
    SWAP: (swap_objects, swap_attributes, swap_sides),
    REPLACE: (replace_objects, replace_attributes, replace_relations),
    ADD: (add_objects, add_attributes, add_relations),
}
"""The changes that each operation proposes."""
