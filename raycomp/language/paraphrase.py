"""Whether two captions have the same meaning in another order or in other words.

Two conjuncts change places only where nothing else can hang on one of them: what follows the second might
belong to it alone ("a lady and a man with no shirt"), what precedes the first to both ("a red hat and
shirt"). The rules refuse more than they must: a lost paraphrase costs less than one that says something else.

A reading is what remains of a text when order that says nothing is taken away: conjuncts are sorted, so are
attributes of one noun and the sides of a symmetric relation, and synonyms are one word. Readings are shallow,
over tags rather than trees. Where a text has two meanings ("a man and a woman with a dog") the reading that
makes it a paraphrase counts: a lost negative costs less than a true caption used as a false one.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from raycomp.language.lexicon import VERB, Lexicon
from raycomp.language.tokens import ADJECTIVE_TAGS, ARTICLES, MODIFIER_TAGS, NOUN_TAGS, Token
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

DETERMINERS = {"a", "an", "the", "some", "several", "many"}
NOUNS = {"NN", "NNS"}
INSIDE = {*ADJECTIVE_TAGS, "RB", "VBN", *NOUNS}
PLURAL_VERBS = {"are", "were", "have"}
NO_PRESENT = ("ed", "ing")
# Pronouns that go back to what was said last, and words that say which of the two is meant by order alone.
BOUND = {
    *"he she it him her hers his its himself herself itself ones other others another who whose".split(),
    *"former latter first second last left right respectively either".split(),
}


def swap_conjuncts(text: str, tokens: Sequence[Token]) -> str | None:
    """Return the text with its two initial conjuncts in the other order, with the same meaning; else None.

    Each has a determiner or numeral of its own, or both are one bare word. Behind them comes nothing or a
    verb that agrees with both ("are", "play"), and nowhere a pronoun of one of them ("its", "another").
    """
    words = [token.text.lower() for token in tokens]
    middle = _end_of_conjunct(tokens, words, 0)
    if not middle or words[middle : middle + 1] != ["and"]:
        return None
    end = _end_of_conjunct(tokens, words, middle + 1)
    are_bare = (middle, end) == (1, 3)
    if not end or not (are_bare or all(_is_own(tokens[place]) for place in (0, middle + 1))):
        return None
    # "Each other" is of both.
    alone = [word for before, word in zip(["", *words], words, strict=False) if before != "each"]
    if BOUND & {*alone}:
        return None
    if end == len(tokens) or words[end] in (".", "!"):
        # At the end a noun behind a noun may be a verb that the parser mistook: "a tan dog fighting".
        goes_on = end + 1 >= len(tokens) and tokens[end - 2].tag not in NOUNS
    else:
        is_present = tokens[end].tag == "VBP" and not words[end].endswith(NO_PRESENT)
        goes_on = words[end] in PLURAL_VERBS or is_present
    if not goes_on:
        return None
    spans = [(tokens[a].start, tokens[b].end) for a, b in ((0, middle - 1), (middle + 1, end - 1))]
    first, second = (text[start:stop] for start, stop in spans)
    if first[0].isupper():
        first, second = first[0].lower() + first[1:], second[0].upper() + second[1:]
    (start, before), (behind, stop) = spans
    return text[:start] + second + text[before:behind] + first + text[stop:]


def _is_own(token: Token) -> bool:
    return token.tag == "CD" or token.text.lower() in DETERMINERS


def _end_of_conjunct(tokens: Sequence[Token], words: Sequence[str], start: int) -> int:
    """Return the end of the determiner, modifiers and nouns from ``start``; 0 where no noun ends them."""
    end = start + (start < len(tokens) and _is_own(tokens[start]))
    while end < len(tokens) and tokens[end].tag in INSIDE and words[end] not in DETERMINERS:
        end += 1
    return end if end > start and tokens[end - 1].tag in NOUNS else 0


# A relation and those that say the same from the other side, by the lexicon's first words.
CONVERSE = {
    "on": ("under", "below"),
    "over": ("under", "below"),
    "above": ("under", "below"),
    "under": ("on", "over", "above"),
    "below": ("on", "over", "above"),
    "in front of": ("behind",),
    "behind": ("in front of",),
    "to the left of": ("to the right of",),
    "to the right of": ("to the left of",),
}
POSES = {
    *"is are was were be being stand stands standing sit sits sitting seated lie lies lying".split(),
    *"lay lays laying rest rests resting parked placed positioned located walk walks walking".split(),
    *"pose poses posing".split(),
}
LOOSE = {*ARTICLES, "some"}
AND = {"and", "or", ",", "&"}
MODIFIERS = {*MODIFIER_TAGS, "PRP$"}
MAX_WORDS = 5
"""The longest relation, in words."""

Value = tuple


class CaptionPart(NamedTuple):
    """A noun phrase or list of them ("thing"), a relation ("relation"), or any other word ("word")."""

    sort: str
    value: Value
    clothes: bool = False


@lru_cache(maxsize=64)
def list_readings(tokens: tuple[Token, ...], lexicon: Lexicon) -> tuple[Value, set[Value]]:
    """Return the reading of a text, and all readings of texts that say the same, its own among them."""
    parts = _join_lists(_find_things(tokens, lexicon))
    own = _read(parts, lexicon)
    return own, {own, *(_read(turned, lexicon) for turned in _turn_relations(parts))}


def _turn_relations(parts: Sequence[CaptionPart]) -> Iterator[list[CaptionPart]]:
    """Yield the text said from the other side: a relation turned, the things around it exchanged.

    The thing on its left is the last one before it, or the subject, which a clause may be about.
    """
    for place, part in enumerate(parts):
        things = [i for i in range(place) if parts[i].sort == "thing"]
        if part.sort != "relation" or not things or place + 1 == len(parts):
            continue
        for left, other in product({things[0], things[-1]}, CONVERSE.get(part.value[0], ())):
            if parts[place + 1].sort == "thing":
                turned = list(parts)
                turned[left], turned[place + 1] = parts[place + 1], parts[left]
                turned[place] = part._replace(value=(other,))
                yield turned


def _find_things(tokens: Sequence[Token], lexicon: Lexicon) -> list[CaptionPart]:
    """Cut tokens into noun phrases, relations and other words, left to right."""
    words = [token.text.lower() for token in tokens]
    parts = []
    place = 0
    while place < len(tokens):
        end = _end_of_thing(tokens, words, place)
        if end > place:
            parts.append(_read_thing(tokens[place:end], words[place:end], lexicon))
            place = end
            continue
        for end in range(min(place + MAX_WORDS, len(words)), place, -1):
            entry = lexicon.find(" ".join(words[place:end]), RELATION)
            if entry and entry.category != VERB:
                parts.append(CaptionPart("relation", (entry.group,)))
                break
        else:
            end = place + 1
            if words[place][0].isalnum() or words[place] in AND:
                parts.append(CaptionPart("word", (lexicon.stem(words[place]),)))
        place = end
    return parts


def _end_of_thing(tokens: Sequence[Token], words: Sequence[str], place: int) -> int:
    """Return the end of the noun phrase that starts at ``place``; ``place`` if there is none."""
    step = place + (words[place] in LOOSE)
    is_modifier = [token.tag in MODIFIERS for token in tokens]
    while step < len(tokens):
        joins = words[step] in AND and step > place and all(is_modifier[step - 1 : step + 2 : 2])
        if not (is_modifier[step] or (joins and step + 1 < len(tokens))):
            break
        step += 1
    end = step
    while end < len(tokens) and tokens[end].tag in NOUN_TAGS:
        end += 1
    return end if end > step else place


def _read_thing(tokens: Sequence[Token], words: Sequence[str], lexicon: Lexicon) -> CaptionPart:
    """Sort the modifiers of a noun phrase; the order of its nouns stays."""
    modifiers, nouns = [], []
    for token, word in zip(tokens, words, strict=True):
        if token.tag in NOUN_TAGS:
            nouns.append(word)
        elif word not in LOOSE | AND:
            entry = lexicon.find(word, ATTRIBUTE)
            modifiers.append(entry.group if entry else lexicon.stem(word))
    entry = lexicon.find(" ".join(nouns), OBJECT)
    known = [(lexicon.find(noun, OBJECT), lexicon.stem(noun)) for noun in nouns]
    names = (entry.group,) if entry else tuple(one.group if one else stem for one, stem in known)
    clothes = entry is not None and lexicon.is_kind_of(entry.word, "clothing")
    many = (lexicon.is_plural(nouns[-1]),)
    return CaptionPart("thing", (tuple(sorted(modifiers)), names, many), clothes)


def _join_lists(parts: Sequence[CaptionPart]) -> list[CaptionPart]:
    """Join "X, Y and Z" to one sorted part."""
    joined: list[CaptionPart] = []
    place = 0
    while place < len(parts):
        things = [parts[place].value]
        after = place + 1
        while parts[place].sort == "thing":
            step = after
            while step < len(parts) and parts[step].value[0] in AND:
                step += 1
            if step == after or step == len(parts) or parts[step].sort != "thing":
                break
            things.append(parts[step].value)
            after = step + 1
        many = len(things) > 1
        joined.append(
            parts[place]._replace(value=("list", *sorted(things, key=repr))) if many else parts[place]
        )
        place = after
    return joined


def _read(parts: Sequence[CaptionPart], lexicon: Lexicon) -> Value:
    """Return the reading, the sides of a symmetric relation sorted.

    Only a relation between the subject and what follows it reads from both sides.
    """
    relation = next((i for i, part in enumerate(parts) if part.sort == "relation"), 0)
    subject = next((i for i, part in enumerate(parts) if part.sort == "thing"), 0)
    values = [part.value for part in parts]
    between = parts[subject + 1 : relation]
    plain = relation > subject and all(part.value[0] in POSES for part in between)
    if not plain or not _is_right_side(parts, relation + 1):
        return tuple(values)
    name = values[relation][0]
    sides = [values[subject], values[relation + 1]]
    if lexicon.is_symmetric(name):
        sides.sort(key=repr)
    before, after = values[:subject], values[relation + 2 :]
    return (*before, ("between", name, *sides), *after)


def _is_right_side(parts: Sequence[CaptionPart], place: int) -> bool:
    """Report whether a thing stands there that nothing behind it says more about."""
    if place >= len(parts) or parts[place].sort != "thing":
        return False
    if place + 1 == len(parts):
        return True
    behind = parts[place + 1]
    wears = place + 2 < len(parts) and parts[place + 2].clothes
    return behind.sort == "relation" and behind.value[0] not in ("with", "without") and not wears
