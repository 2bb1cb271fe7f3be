"""ADD: an attribute, an object or a relation that the caption does not carry; nothing else changes.

What is added has many alternatives, so that it is rarely true by chance: never "small" or "young", of which
every second would be.
"""

from collections.abc import Iterator

from raycomp.core.changes import CHOICES, LISTED, Case, Change, State
from raycomp.core.lexicon import GUEST, choose_article
from raycomp.core.wording import Piece
from raycomp.schema import ATTRIBUTE, OBJECT, RELATION

CATEGORIES = ("colour", "material", "pattern", "hair", "look", "coat")
PHRASES = ("next to", "in front of", "behind")
CARRIED = ("umbrella", "basket", "balloon", "bucket", "suitcase", "skateboard", "lamp", "ladder", "guitar")


def add_attributes(case: Case, state: State) -> Iterator[Change]:
    """Put an attribute before a noun that has none of its category."""
    for place in case.free(OBJECT, state):
        noun = case.concepts[place]
        mine = [case.concepts[i] for i in case.words.attributes(place)]
        before = next((one.start for one in mine if one.category == "material"), noun.start)
        categories = [name for name in CATEGORIES if name not in {one.category for one in mine}]
        words = [
            word
            for name in categories
            for word in case.lexicon.words(ATTRIBUTE, name)
            if noun.category and case.lexicon.fits(word, ATTRIBUTE, noun.word)
        ]
        for word in case.pick([word for word in words if not case.carries(word, state)], ATTRIBUTE, place):
            at = before if case.lexicon.find(word, ATTRIBUTE).category == "colour" else noun.start
            new = case.words.matching(noun.start, noun.end, word) + " "
            yield Change(ATTRIBUTE, (word,), frozenset({place}), (Piece(at, at, new),))


def add_objects(case: Case, state: State) -> Iterator[Change]:
    """Put "and a ..." behind a noun, or "with a ..." where a verb behind it would no longer agree."""
    for place in case.free(OBJECT, state):
        noun = case.concepts[place]
        if not case.words.can_follow(place) or _is_listed(case, place):
            continue
        if case.words.agrees(place):
            word_tier = [
                (f"with {{}} {word}", word, 1) for word in _pick_new(case, CARRIED, state, "with", place)
            ]
        elif any(case.lexicon.is_kind_of(noun.word, name) or noun.category == name for name in LISTED):
            entry = case.lexicon.find(noun.word, OBJECT)
            siblings = [word for word in case.lexicon.siblings(entry) if _is_single(case, word)]
            word_tier = [
                (f"and {{}} {word}", word, 0) for word in _pick_new(case, siblings, state, "and", place)
            ]
        else:
            continue
        for phrase, word, tier in word_tier:
            yield _add_behind(case, place, OBJECT, (word,), phrase.format(choose_article(word)), tier)


def add_relations(case: Case, state: State) -> Iterator[Change]:
    """Put "next to a ..." behind a noun."""
    guests = [word for word in case.lexicon.marked(GUEST) if _is_single(case, word)]
    for place in case.free(OBJECT, state):
        noun = case.concepts[place]
        if not noun.category or not case.words.can_follow(place) or _is_listed(case, place):
            continue
        for number, word in enumerate(_pick_new(case, guests, state, RELATION, place)):
            relation = case.pick(PHRASES, RELATION, place, number)[0]
            tier = 0 if case.words.ends(place) else 1
            phrase = f"{relation} {choose_article(word)} {word}"
            yield _add_behind(case, place, RELATION, (relation, word), phrase, tier)


def _add_behind(case: Case, place: int, kind: str, words: tuple[str, ...], phrase: str, tier: int) -> Change:
    end = case.concepts[place].end
    return Change(kind, words, frozenset({place}), (Piece(end, end, " " + phrase),), tier)


def _pick_new(case: Case, words: tuple[str, ...] | list[str], state: State, *parts: object) -> list[str]:
    ranked = sorted(words, key=lambda word: case.hash(*parts, word))
    found = []
    for word in ranked:
        if not case.carries(word, state):
            found.append(word)
            if len(found) == CHOICES:
                break
    return found


def _is_single(case: Case, word: str) -> bool:
    return not case.lexicon.is_mass(word) and not case.lexicon.is_plural(word)


def _is_listed(case: Case, place: int) -> bool:
    mine = case.words.coordination(place)
    others = (i for i, one in enumerate(case.concepts) if one.kind == OBJECT and i != place)
    return any(case.words.coordination(i) == mine for i in others)
