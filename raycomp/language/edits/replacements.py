"""REPLACE: one concept gives way to another of its class, plausible but false.

The lexicon's siblings exclude synonyms, wider and narrower words. Opposites come first, where there are some.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from raycomp.language.concepts import Concept
from raycomp.language.edits.changes import Case, Change, State
from raycomp.language.edits.plausible import weigh_word
from raycomp.language.edits.wording import Piece
from raycomp.language.judge.paraphrase import CONVERSE
from raycomp.language.lexicon import NUMBER, VERB
from raycomp.words import ATTRIBUTE, OBJECT, RELATION


def replace_objects(case: Case, state: State) -> Iterator[Change]:
    """Put another noun of its category in place of one; "his" and "her" of the caption stay right."""
    for place in case.free(OBJECT, state):
        old = case.concepts[place]
        entry = case.lexicon.find(old.word, OBJECT)
        if entry is None or not old.category:
            continue
        words = (
            (rank, word)
            for rank, word in _pick(case, place, case.lexicon.siblings(entry), state, case.words.inflect)
            if case.words.accepts(place, word) and not case.carries(word, state) and not case.is_barred(word)
        )
        for rank, word in islice(words, case.choices):
            new = case.words.matching(old.start, old.end, case.words.inflect(place, word))
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
        picked = _pick(case, place, siblings, state, lambda _, word: word)
        ranked = sorted(picked, key=lambda one: one[1] != opposite)
        for rank, word in ranked[: case.choices]:
            new = case.words.matching(old.start, old.end, word)
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
        turned = _turned(case, old, entry.group, state)
        words = [word for word in case.lexicon.siblings(entry) if case.lexicon.fits(word, RELATION, right)]
        words = [word for word in words if word not in turned]
        tag = case.parsed.tokens[case.words.first(place)].tag
        forms = {word: case.lexicon.inflect(word, tag) if entry.category == VERB else word for word in words}
        picked = [(0.0, word) for word in words]
        if case.context is not None:
            picked = list(case.pick(words, partial(_weigh, case, place, forms), state, RELATION, old.start))
        for tier, (rank, word) in enumerate(picked[: case.choices]):
            new = case.words.matching(old.start, old.end, forms[word])
            yield _replace(case, place, word, new, tier if case.context is None else 0, rank)


def _weigh(case: Case, place: int, forms: Mapping[str, str], word: str) -> float:
    return weigh_word(case, place, word, forms[word])


def _pick(
    case: Case, place: int, words: Sequence[str], state: State, write: Callable[[int, str], str]
) -> Iterator[tuple[float, str]]:
    """Yield words for a place with their ranks; ``write`` returns a word's form there."""
    old = case.concepts[place]
    return case.pick(
        words, lambda word: weigh_word(case, place, word, write(place, word)), state, old.kind, old.start
    )


def _turned(case: Case, relation: Concept, group: str, state: State) -> tuple[str, ...]:
    """Return what is true as well, as the sides are alike or were swapped: "a dog behind a dog"."""
    if relation.sides is None:
        return ()
    right = relation.sides[1]
    exchanged = any(case.are_exchanged(left, right, state) for left in case.lefts(relation))
    return CONVERSE.get(group, ()) if exchanged else ()


def _replace(case: Case, place: int, word: str, new: str, tier: int = 0, rank: float = 0.0) -> Change:
    old = case.concepts[place]
    pieces = (Piece(old.start, old.end, new),)
    return Change(old.kind, (old.word, word), frozenset({place}), pieces, tier, rank=rank)
