"""ADD: an attribute, an object or a relation that the caption does not carry; nothing else changes.

What is added has many alternatives, so that it is rarely true by chance: never "small" or "young", of which
every second would be.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from raycomp.language.context import DESCRIBED
from raycomp.language.edits.changes import Case, Change, State
from raycomp.language.edits.plausible import weigh_between, weigh_guest
from raycomp.language.edits.wording import Piece
from raycomp.language.inflection import choose_article
from raycomp.language.lexicon import GUEST
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

# Categories that are added, each with those that stand between it and the noun.
AFTER = {
    "colour": ("pattern", "material"),
    "pattern": ("material",),
    "material": (),
    **dict.fromkeys(("hair", "look", "coat"), ("", "colour", "pattern", "material")),
}
CATEGORIES = tuple(AFTER)
PHRASES = ("next to", "in front of", "behind")
CARRIED = tuple("umbrella,basket,balloon,bucket,suitcase,skateboard,ladder,guitar,flag".split(","))
HAD_BY_ANIMALS = tuple("tennis ball,stick,frisbee,ribbon,balloon,shoe,glove".split(","))


def add_attributes(case: Case, state: State) -> Iterator[Change]:
    """Put an attribute before a noun that has none of its category: "small [furry] brown [spotted] dog"."""
    for place in case.free(OBJECT, state):
        noun = case.concepts[place]
        mine = [case.concepts[i] for i in case.words.attributes[place]]
        if not noun.category or any(one.start > noun.start for one in mine):
            continue
        words = [
            word
            for name in CATEGORIES
            if name not in {one.category for one in mine}
            for word in case.lexicon.words(ATTRIBUTE, name)
        ]
        fitting = (
            (rank, word)
            for rank, word in case.pick(
                words, partial(_weigh_attribute, case, place), state, ATTRIBUTE, place
            )
            if case.lexicon.fits(word, ATTRIBUTE, noun.word) and not case.carries(word, state)
        )
        for rank, word in islice(fitting, case.choices):
            entry = case.lexicon.find(word, ATTRIBUTE)
            later = AFTER[entry.category] if entry else ()
            at = min([noun.start, *(one.start for one in mine if one.category in later)])
            new = case.words.matching(at, noun.end, word) + " "
            yield Change(ATTRIBUTE, (word,), frozenset({place}), (Piece(at, at, new),), rank=rank)


def _weigh_attribute(case: Case, place: int, word: str) -> float:
    noun, context = case.concepts[place], case.counted
    around = weigh_between(context, case.parsed.text, noun.start, noun.start, word)
    return context.share(ATTRIBUTE, word) * context.lift(DESCRIBED, noun.word, word) * around


def add_objects(case: Case, state: State) -> Iterator[Change]:
    """Put "and a ..." behind a noun, or "with a ..." where a verb behind it would no longer agree."""
    for place in case.free(OBJECT, state):
        noun = case.concepts[place]
        if not case.words.can_follow(place) or case.is_listed(place):
            continue
        entry = case.lexicon.find(noun.word, OBJECT)
        words: Sequence[str]
        if case.words.agrees(place):
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
        if not noun.category or not case.words.can_follow(place) or case.is_listed(place):
            continue
        for number, (rank, word) in enumerate(_pick_new(case, guests, state, RELATION, place)):
            relation = next(case.draw(PHRASES, RELATION, place, number))
            tier = 0 if case.words.ends(place) else 1
            phrase = f"{relation} {choose_article(word)} {word}"
            yield _add_behind(case, place, RELATION, (relation, word), phrase, tier, rank)


def _add_behind(
    case: Case, place: int, kind: str, words: tuple[str, ...], phrase: str, tier: int, rank: float
) -> Change:
    end = case.concepts[place].end
    phrase = phrase.upper() if case.parsed.text.isupper() else phrase
    return Change(kind, words, frozenset({place}), (Piece(end, end, " " + phrase),), tier, rank=rank)


def _pick_new(
    case: Case, words: Iterable[str], state: State, joint: str, place: int
) -> Iterator[tuple[float, str]]:
    """Yield a few single things that the caption does not carry, with their ranks."""
    new = (
        (rank, word)
        for rank, word in case.pick(words, partial(weigh_guest, case), state, joint, place)
        if _is_single(case, word) and not case.carries(word, state)
    )
    return islice(new, case.choices)


def _is_single(case: Case, word: str) -> bool:
    return not case.lexicon.is_mass(word) and not case.lexicon.is_plural(word)
