"""Concepts of a parsed caption: what an operator can swap, replace or add to; a caption's primitives.

Words are compared in lower case without inflection; words that follow from others do not count (``GLUE``).
Classes go by Penn tags and neighbours, so they need no tree and no lexicon.

COMPO-REALIGN leaves open how they are taken. Here they are a parsed caption's objects with their attributes.

Whether two captions have the same meaning in another order or in other words.

Two conjuncts change places only where nothing else can hang on one of them: what follows the second might
belong to it alone ("a lady and a man with no shirt"), what precedes the first to both ("a red hat and
shirt"). The rules refuse more than they must: a lost paraphrase costs less than one that says something else.

A reading is what remains of a text when order that says nothing is taken away: conjuncts are sorted, so are
attributes of one noun and the sides of a symmetric relation, and synonyms are one word. Readings are shallow,
over tags rather than trees. Where a text has two meanings ("a man and a woman with a dog") the reading that
makes it a paraphrase counts: a lost negative costs less than a true caption used as a false one.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

from raycomp.config.options import check_choice
from raycomp.language.lexicon import (
    ABSTRACT,
    ADJECTIVE_TAGS,
    ARTICLES,
    CROWD,
    FIXED,
    MODIFIER_TAGS,
    NOUN_TAGS,
    VERB,
    Entry,
    Lexicon,
    Token,
    Word,
    find_long_prepositions,
    get_base_form,
    join_words,
    list_children,
    match_longest,
)
from raycomp.language.phrases import Labels, detect_labels, find_phrases
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

WORD = re.compile(r"[^\W_]+")
GLUE = frozenset(
    "a an the this that these those such his her its their our my your s t there who whom which is are was "
    "were be been being am isn aren can could will would shall should may might must do does did and".split()
)
DENIALS = frozenset("no not n yes never none nor".split())
QUANTITIES = frozenset("number couple lot lots plenty few pair handful bunch variety".split())
# Nouns of place: "on the left of" is a relation, "the left of" anything else is not.
PLACES = frozenset("top bottom left right side sides back front middle center centre edge end rear".split())
PRONOUNS = frozenset(
    "he she it they him them himself herself itself themselves i you we me us one ones".split()
)
# Relations of several words besides those with a noun of place. The lexicon is not used: it writes negatives,
# and its own words must not judge them.
LINKS = {
    *(("in", noun, "of") for noun in ("spite", "place", "case", "favor", "terms", "lieu")),
    *(("on", noun, "of") for noun in ("behalf", "account")),
    *((word, "of") for word in ("out", "because", "instead", "ahead", "inside", "outside", "off")),
    *((word, "to") for word in ("next", "close", "due", "according", "opposite", "adjacent", "thanks")),
}
RECIPROCAL = (("side", "by", "side"), ("each", "other"), ("one", "another"))
# The classes of words, and the concepts that a run of them is made of, tried in this order at each place.
NOUN, MODIFIER, ACTION, LINK, OF, ADVERB, OR, DENIAL = "NAVROBCD"
CONCEPTS = (
    (ATTRIBUTE, re.compile(r"[ABD]*NO$")),
    (OBJECT, re.compile(r"(?:[ABD](?:C?[ABD])*)?N(?:O[ABD]*N)*")),
    (RELATION, re.compile(r"B*[VRO](?:C?[VROB])*")),
    (ATTRIBUTE, re.compile(r"[ABD](?:C?[ABD])*")),
)


def read_words(tokens: Sequence[Token]) -> list[Word]:
    """Return the words of a caption that count, in order."""
    places = [i for i, token in enumerate(tokens) if WORD.search(token.text)]
    hyphened = [tokens[i].tag == "HYPH" or tokens[i].text == "-" for i in range(len(tokens))]
    joined = [any(hyphened[i:j]) for i, j in pairwise(places)]
    letters = dict(zip(places, classify_words([tokens[i] for i in places], joined), strict=True))
    words = []
    for i in places:
        for piece in WORD.finditer(tokens[i].text.lower()):
            if piece.group() not in GLUE:
                start = tokens[i].start + piece.start()
                words.append(
                    Word(get_base_form(piece.group()), start, start + len(piece.group()), letters[i])
                )
    return words


def classify_words(tokens: Sequence[Token], joined: Sequence[bool]) -> list[str]:
    """Return the class of every token (one letter), by its Penn tag and the neighbouring words.

    ``joined`` marks for each token except the last whether a hyphen joins it to the next: their class is one.
    """
    words = [token.text.lower() for token in tokens]
    letters = [""] * len(tokens)
    for i in reversed(range(len(tokens))):
        before, tag = tokens[i - 1].tag if i else "", tokens[i].tag
        behind, second = [*(token.tag for token in tokens[i + 1 : i + 3]), "", ""][:2]
        is_before_noun = behind in NOUN_TAGS or (behind in ("VBN", "JJ") and second in NOUN_TAGS)
        is_named = before in ("DT", "PRP$") or (before == "JJ" and tag in ("VB", "VBP"))
        letters[i] = _classify_word(words[i], tag, is_named, is_before_noun)
        if i < len(joined) and joined[i]:
            letters[i] = letters[i + 1]
    for last in range(len(words)):
        for first in range(max(0, last - 3), last):
            said = tuple(word for word in words[first : last + 1] if word not in ("a", "the"))
            # "In front of", "on left of".
            is_of_place = len(said) == 3 and said[0] in ("on", "at", "in", "to") and said[1] in PLACES
            if said in LINKS or said in RECIPROCAL or (is_of_place and said[2] == "of"):
                letters[first : last + 1] = [LINK] * (last + 1 - first)
        if words[last] == "of" and last and words[last - 1] in QUANTITIES:
            letters[last - 1 : last + 1] = [MODIFIER] * 2
    return letters


def _classify_word(word: str, tag: str, is_named: bool, is_before_noun: bool) -> str:
    """``is_named``: the preceding words exclude a verb, whatever the tagger reads."""
    if word in DENIALS:
        return DENIAL
    if word == "of":
        return OF
    if tag == "CC":
        return OR
    if tag in NOUN_TAGS:
        return MODIFIER if is_before_noun else NOUN
    if tag.startswith("VB") and not is_named:
        return MODIFIER if is_before_noun and tag == "VBN" else ACTION
    if tag in ("IN", "TO", "RP", "WRB"):
        return LINK
    if tag.startswith("RB"):
        return ADVERB
    return NOUN if tag in ("PRP", "FW", "WP") or (tag.startswith("VB") and not is_before_noun) else MODIFIER


def name_concepts(words: Sequence[Word]) -> list[str]:
    """Return the kinds of the concepts that a run of words is made of, in order."""
    letters = "".join(word.letter for word in words)
    kinds, place = [], 0
    while place < len(letters):
        matches = ((kind, pattern.match(letters, place)) for kind, pattern in CONCEPTS)
        kind, end = next(((kind, match.end()) for kind, match in matches if match), ("", place + 1))
        kinds += [kind] if kind else []
        place = end
    return kinds


# Words that stand before a noun and describe nothing one sees.
NO_ATTRIBUTES = frozenset(
    "other another same such own different various several many more most few first second third last next "
    "certain single whole entire main similar additional general different able various unidentified".split()
)
SHADES = frozenset("dark light bright pale deep".split())
# Between a preposition and the noun it leads to.
LEADING = ("DT", "PDT", "PRP$", "POS", "RB", "CC", ",", "HYPH", *NOUN_TAGS, *MODIFIER_TAGS)


class Concept(NamedTuple):
    """One atomic concept: characters [start, end) of its text, without determiner."""

    start: int
    end: int
    kind: str
    """object, attribute or relation (``words.CONCEPT_KINDS``)."""
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
    """SWAP: the two; REPLACE: the old and the new; ADD: the new, and "-" with each that ``base`` has lost."""
    touched: tuple[tuple[int, int], ...]
    """Spans of ``text`` that are new or moved; a later call leaves them alone."""
    base: str | None = None
    """Of an ADD that is matched in length: its input, a true part of the caption."""


def parse_concepts(
    text: str, tokens: Sequence[Token], lexicon: Lexicon, labels: Labels | None = None
) -> Parsed:
    return Parsed(text, tokens, find_concepts(tokens, lexicon, labels))


def find_concepts(tokens: Sequence[Token], lexicon: Lexicon, labels: Labels | None = None) -> list[Concept]:
    """Return the concepts of one parsed caption, sorted, without overlap.

    Objects are the heads of noun phrases with their compounds, but not nouns that nothing can stand for
    ("day", "shadow", the "team" of dogs). Attributes stand before their noun or behind "is"; those of such a
    noun have no owner. Relations are prepositions of the lexicon and verbs with a direct object, but not what
    no picture can show ("because of"). ``labels`` as in ``find_phrases``.
    """
    return _Reader(tokens, lexicon, labels or detect_labels([token.dep for token in tokens])).read()


class _Found(NamedTuple):
    """A concept by the positions [first, last] of its tokens; others are named by such positions too."""

    first: int
    last: int
    kind: str
    word: str
    category: str
    is_plural: bool = False
    owner: int | None = None
    sides: tuple[int, int] | None = None


class _Reader:
    """One caption on its way to concepts."""

    def __init__(self, tokens: Sequence[Token], lexicon: Lexicon, labels: Labels):
        self.tokens, self.lexicon, self.labels = tokens, lexicon, labels
        self.words = [token.text.lower() for token in tokens]
        self.children = list_children(tokens)
        self.prepositions = self._find_prepositions()
        taken = {i for first, (last, _) in self.prepositions.items() for i in range(first, last + 1)}
        starts = {token.start: place for place, token in enumerate(tokens)}
        targets = [starts[phrase.target_start] for phrase in find_phrases(tokens, lexicon, labels)]
        self.nouns = {target: self._read_noun(target) for target in targets if target not in taken}
        self.objects: dict[int, _Found] = {}
        for noun in self.nouns.values():
            is_object = not lexicon.find(self.words[noun.last], ATTRIBUTE)
            if noun.category:
                is_crowd = noun.category == CROWD and self.words[noun.last + 1 : noun.last + 2] == ["of"]
                is_object = noun.category not in (ABSTRACT, FIXED) and not is_crowd
            if is_object:
                self.objects[noun.last] = noun

    def read(self) -> list[Concept]:
        """Return all concepts, references turned into places in the list."""
        attributes = [*self._modifiers(), *self._predicates()]
        found = [*self.objects.values(), *attributes, *self._spatial_relations(), *self._verbs()]
        kept: list[_Found] = []
        for one in sorted(found, key=lambda one: (one.first, -one.last)):
            if not kept or one.first > kept[-1].last:
                kept.append(one)
        places = {one.last: place for place, one in enumerate(kept) if one.kind == OBJECT}
        concepts = []
        for one in kept:
            sides = [places[side] for side in one.sides or () if side in places]
            start, end = self.tokens[one.first].start, self.tokens[one.last].end
            owner = places.get(one.owner) if one.owner is not None else None
            both = (sides[0], sides[1]) if len(sides) == 2 else None
            concepts.append(Concept(start, end, one.kind, one.word, one.category, one.is_plural, owner, both))
        return concepts

    def _find_prepositions(self) -> dict[int, tuple[int, Entry]]:
        """Map the first position of every preposition of the lexicon to its last one and its entry."""
        found = find_long_prepositions(self.words, self.lexicon)
        taken = {place for first, (last, _) in found.items() for place in range(first, last + 1)}
        for place, word in enumerate(self.words):
            entry = self.lexicon.find(word, RELATION) if place not in taken else None
            # "Inside a car", not "goes inside".
            is_used = self.tokens[place].tag in ("IN", "TO", "RP", "RB") and place + 1 < len(self.tokens)
            if entry and entry.category != VERB and is_used:
                found[place] = place, entry
        return dict(sorted(found.items()))

    def _read_noun(self, last: int) -> _Found:
        """Return the noun at ``last`` with its compound, as far as the lexicon or the tree shows one."""
        first, entry = match_longest(self.tokens, last, OBJECT, self.lexicon) or (last, None)
        if first == last:
            # Nouns on the left name its kind; materials and colours do not.
            while first and self._is_compound(first - 1, last):
                first -= 1
        word, category = self.lexicon.singular(self.words[last]), ""
        if entry:
            word, category = entry.word, entry.category
        while (
            first and self.words[first - 1] == "-" and self.tokens[first - 1].end == self.tokens[first].start
        ):
            first -= 2 if first > 1 else 1
        is_plural = self.tokens[last].tag in ("NNS", "NNPS")
        if category and self.lexicon.plural(word) == word and not self.lexicon.is_plural(word):
            before = first  # "a" leads to a noun over modifiers: "a blue fish"
            while before and self.tokens[before - 1].tag in MODIFIER_TAGS[:-1]:
                before -= 1
            is_plural = is_plural and not (before and self.words[before - 1] in ("a", "an", "one"))
        elif category:
            is_plural = self.lexicon.is_plural(join_words(self.tokens, first, last))
        return _Found(first, last, OBJECT, word, category, is_plural)

    def _is_compound(self, place: int, target: int) -> bool:
        token = self.tokens[place]
        if token.tag not in NOUN_TAGS or not place <= token.head <= target or token.head == place:
            return False
        if token.dep not in ("compound", "flat", "nn", "goeswith", "nmod:desc"):
            return False
        return not self.lexicon.find(self.words[place], ATTRIBUTE) and self.words[place] not in SHADES

    def _modifiers(self) -> Iterator[_Found]:
        """Yield the attributes before every noun."""
        for noun in self.nouns.values():
            owner = noun.last if noun.last in self.objects else None
            place = noun.first - 1
            while place >= 0:
                if one := self._read_attribute(place, owner):
                    if one.category or owner is not None:
                        yield one
                    place = one.first - 1
                    continue
                # Attributes may stand on both sides of a comma, "and", "very"; also of "other".
                if self.words[place] in NO_ATTRIBUTES or self.tokens[place].tag == "RB":
                    is_between = self.tokens[place].dep in (*self.labels.inside, "advmod")
                else:
                    is_between = self.words[place] in (",", "and", "or", "-") and place > 0
                    is_between = is_between and self._read_attribute(place - 1, None) is not None
                if not is_between:
                    break
                place -= 1

    def _read_attribute(self, last: int, owner: int | None) -> _Found | None:
        """Return the attribute that ends at ``last``, the longest that the lexicon knows."""
        if self.words[last] in NO_ATTRIBUTES or last in self.objects:
            return None
        if found := match_longest(self.tokens, last, ATTRIBUTE, self.lexicon):
            first, entry = found
            if entry.category == "colour" and first and self.words[first - 1] in SHADES:
                first -= 1
            return _Found(first, last, ATTRIBUTE, entry.word, entry.category, owner=owner)
        token = self.tokens[last]
        if token.tag not in MODIFIER_TAGS or token.tag == "CD" or not self.words[last].isalpha():
            return None
        if token.dep not in self.labels.inside and token.dep != "conj":
            return None
        return _Found(last, last, ATTRIBUTE, self.words[last], "", owner=owner)

    def _predicates(self) -> Iterator[_Found]:
        """Yield the attributes behind "is"; also those joined to them."""
        for place, token in enumerate(self.tokens):
            below = {self.tokens[child].dep: child for child in self.children[place]}
            is_copular = "cop" in below or token.dep == "acomp"
            if not (is_copular and token.tag in ("JJ", "VBN")):
                continue
            above = self.children[token.head] if token.dep == "acomp" else self.children[place]
            subjects = [i for i in above if self.tokens[i].dep in self.labels.subjects and i in self.objects]
            if subjects and (one := self._read_attribute(place, subjects[0])) and one.category:
                yield one

    def _spatial_relations(self) -> Iterator[_Found]:
        for first, (last, entry) in self.prepositions.items():
            # The object that it leads to.
            behind = (
                i
                for i in range(last + 1, len(self.tokens))
                if i in self.nouns or self.tokens[i].tag not in LEADING
            )
            right = next(behind, None)
            if right is None or right not in self.objects or entry.category == ABSTRACT:
                continue
            left = self._find_left(self.tokens[right].head, first, right)
            sides = (left, right) if left is not None else None
            yield _Found(first, last, RELATION, entry.word, entry.category, sides=sides)

    def _find_left(self, place: int, before: int, right: int) -> int | None:
        """Climb from ``place`` to an object, or to a verb with a subject, that stands left of ``before``."""
        for _ in range(len(self.tokens)):
            if place in self.objects and place != right:
                return place if place < before else None
            subjects = [i for i in self.children[place] if self.tokens[i].dep in self.labels.subjects]
            for subject in subjects:
                if subject in self.objects and subject < before and subject != right:
                    return subject
            if self.tokens[place].head == place:
                break
            place = self.tokens[place].head
        return max((place for place in self.objects if place < before), default=None)

    def _verbs(self) -> Iterator[_Found]:
        """Yield verbs with an object that the picture can show, or a passive verb's agent."""
        for place, token in enumerate(self.tokens):
            has_particle = any(self.tokens[i].dep in ("compound:prt", "prt") for i in self.children[place])
            if not token.tag.startswith("VB") or has_particle:
                continue
            behind = [i for i in self.children[place] if i > place and i in self.objects]
            rights = [i for i in behind if self.tokens[i].dep in self.labels.objects]
            entry = self.lexicon.find(self.words[place], RELATION)
            if not rights or (entry and entry.category != VERB):
                continue
            left = self._find_left(place, place, rights[0])
            if left is not None:
                word, category = (entry.word, entry.category) if entry else (self.words[place], "")
                yield _Found(place, place, RELATION, word, category, sides=(left, rights[0]))


PHRASE, PRIMITIVE_WORD = "phrase", "word"
FORMS = (PHRASE, PRIMITIVE_WORD)


def find_primitives(parsed: Parsed, form: str = PHRASE) -> tuple[str, ...]:
    """Return a caption's primitives, each once, in its order; none where it names no object (or attribute).

    ``phrase``: every object with its attributes before it, "small red circle", so that a composition keeps
    what belongs together; an object of several is in the caption's own number. ``word``: every object and
    attribute by itself, in base form, which a swap of attributes leaves as they were. Relations are never
    among them: texts that differ only in a relation or in order have the same primitives.
    """
    check_choice("form", form, FORMS)
    concepts = parsed.concepts
    if form == PRIMITIVE_WORD:
        return tuple(dict.fromkeys(one.word for one in concepts if one.kind in (OBJECT, ATTRIBUTE)))
    phrases = []
    for place, one in enumerate(concepts):
        if one.kind == OBJECT:
            said = " ".join(parsed.text[one.start : one.end].lower().split())
            own = [other.word for other in concepts if other.kind == ATTRIBUTE and other.owner == place]
            phrases.append(" ".join([*dict.fromkeys(own), said if one.is_plural else one.word]))
    return tuple(dict.fromkeys(phrases))


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
