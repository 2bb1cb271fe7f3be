"""Concepts of a caption: what an operator can swap, replace or add to; primitives; the same meaning twice.

Words are compared in lower case without inflection; words that follow from others do not count (``GLUE``).
Classes go by Penn tags and neighbours, so they need no tree and no lexicon.

COMPO-REALIGN leaves open how primitives are taken. Here they are a caption's objects with their attributes.

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
from raycomp.language import lexicon as lex
from raycomp.language.lexicon import Lexicon, Token, Word
from raycomp.language.phrases import Labels, Tree
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
    hyphened = [token.tag == "HYPH" or token.text == "-" for token in tokens]
    joined = [any(hyphened[i:j]) for i, j in pairwise(places)]
    letters = classify_words([tokens[i] for i in places], joined)
    words = []
    for i, letter in zip(places, letters, strict=True):
        for piece in WORD.finditer(tokens[i].text.lower()):
            said, start = piece.group(), tokens[i].start + piece.start()
            if said not in GLUE:
                words.append(Word(lex.get_base_form(said), start, start + len(said), letter))
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
        is_before_noun = behind in lex.NOUN_TAGS or (behind in ("VBN", "JJ") and second in lex.NOUN_TAGS)
        # The words before exclude a verb, whatever the tagger reads.
        is_named = before in ("DT", "PRP$") or (before == "JJ" and tag in ("VB", "VBP"))
        is_verb = tag.startswith("VB")
        if i < len(joined) and joined[i]:
            letters[i] = letters[i + 1]
        elif words[i] in DENIALS:
            letters[i] = DENIAL
        elif words[i] == "of":
            letters[i] = OF
        elif tag == "CC":
            letters[i] = OR
        elif tag in lex.NOUN_TAGS:
            letters[i] = MODIFIER if is_before_noun else NOUN
        elif is_verb and not is_named:
            letters[i] = MODIFIER if is_before_noun and tag == "VBN" else ACTION
        elif tag in ("IN", "TO", "RP", "WRB"):
            letters[i] = LINK
        elif tag.startswith("RB"):
            letters[i] = ADVERB
        else:
            is_noun = tag in ("PRP", "FW", "WP") or (is_verb and not is_before_noun)
            letters[i] = NOUN if is_noun else MODIFIER
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
LEADING = ("DT", "PDT", "PRP$", "POS", "RB", "CC", ",", "HYPH", *lex.NOUN_TAGS, *lex.MODIFIER_TAGS)


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


def parse_concepts(text: str, tokens: Sequence[Token], lexicon: Lexicon, labels: Labels) -> Parsed:
    """Return a text with its concepts, sorted, without overlap.

    Objects are the heads of noun phrases with their compounds, but not nouns that nothing can stand for
    ("day", "shadow", the "team" of dogs). Attributes stand before their noun or behind "is"; those of such a
    noun have no owner. Relations are prepositions of the lexicon and verbs with a direct object, but not what
    no picture can show ("because of"). ``labels`` are of the parser's scheme.
    """
    return Parsed(text, tokens, _Reader(tokens, lexicon, labels).read())


class _Reader:
    """One caption on its way to concepts."""

    def __init__(self, tokens: Sequence[Token], lexicon: Lexicon, labels: Labels):
        self.tokens, self.lexicon, self.labels = tokens, lexicon, labels
        self.words = [token.text.lower() for token in tokens]
        self.children = lex.list_children(tokens)
        self.prepositions = lex.find_long_prepositions(self.words, lexicon)
        taken = {i for first, (last, _) in self.prepositions.items() for i in range(first, last + 1)}
        for place, word in enumerate(self.words):
            entry = lexicon.find(word, RELATION) if place not in taken else None
            # "Inside a car", not "goes inside".
            is_used = tokens[place].tag in ("IN", "TO", "RP", "RB") and place + 1 < len(tokens)
            if entry and entry.category != lex.VERB and is_used:
                self.prepositions[place] = place, entry
                taken.add(place)
        starts = {token.start: place for place, token in enumerate(tokens)}
        targets = [starts[phrase.target_start] for phrase in Tree(tokens, lexicon, labels).phrases()]
        self.nouns = {target: self._read_noun(target) for target in targets if target not in taken}
        self.objects: dict[int, _Found] = {}
        for noun in self.nouns.values():
            is_object = not lexicon.find(self.words[noun.last], ATTRIBUTE)
            if noun.category:
                is_crowd = noun.category == lex.CROWD and self.words[noun.last + 1 : noun.last + 2] == ["of"]
                is_object = noun.category not in (lex.ABSTRACT, lex.FIXED) and not is_crowd
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

    def _read_noun(self, last: int) -> _Found:
        """Return the noun at ``last`` with its compound, as far as the lexicon or the tree shows one."""
        first, entry = lex.match_longest(self.tokens, last, OBJECT, self.lexicon) or (last, None)
        if first == last:
            # Nouns on the left name its kind; materials and colours do not.
            while first:
                token, said = self.tokens[first - 1], self.words[first - 1]
                is_below = token.tag in lex.NOUN_TAGS and first - 1 < token.head <= last
                if not is_below or token.dep not in ("compound", "flat", "nn", "goeswith", "nmod:desc"):
                    break
                if self.lexicon.find(said, ATTRIBUTE) or said in SHADES:
                    break
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
            while before and self.tokens[before - 1].tag in lex.MODIFIER_TAGS[:-1]:
                before -= 1
            is_plural = is_plural and not (before and self.words[before - 1] in ("a", "an", "one"))
        elif category:
            is_plural = self.lexicon.is_plural(lex.join_words(self.tokens, first, last))
        return _Found(first, last, OBJECT, word, category, is_plural)

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
        if found := lex.match_longest(self.tokens, last, ATTRIBUTE, self.lexicon):
            first, entry = found
            if entry.category == "colour" and first and self.words[first - 1] in SHADES:
                first -= 1
            return _Found(first, last, ATTRIBUTE, entry.word, entry.category, owner=owner)
        token = self.tokens[last]
        if token.tag not in lex.MODIFIER_TAGS or token.tag == "CD" or not self.words[last].isalpha():
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
            subjects = [i for i in above if self.tokens[i].dep in lex.SUBJECTS and i in self.objects]
            if subjects and (one := self._read_attribute(place, subjects[0])) and one.category:
                yield one

    def _spatial_relations(self) -> Iterator[_Found]:
        for first, (last, entry) in sorted(self.prepositions.items()):
            # The object that it leads to.
            behind = (
                i
                for i in range(last + 1, len(self.tokens))
                if i in self.nouns or self.tokens[i].tag not in LEADING
            )
            right = next(behind, None)
            if right is None or right not in self.objects or entry.category == lex.ABSTRACT:
                continue
            left = self._find_left(self.tokens[right].head, first, right)
            sides = (left, right) if left is not None else None
            yield _Found(first, last, RELATION, entry.word, entry.category, sides=sides)

    def _find_left(self, place: int, before: int, right: int) -> int | None:
        """Climb from ``place`` to an object, or to a verb with a subject, that stands left of ``before``."""
        for _ in range(len(self.tokens)):
            if place in self.objects and place != right:
                return place if place < before else None
            subjects = [i for i in self.children[place] if self.tokens[i].dep in lex.SUBJECTS]
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
            if not rights or (entry and entry.category != lex.VERB):
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
INSIDE = {*lex.ADJECTIVE_TAGS, "RB", "VBN", *NOUNS}
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
LOOSE = {*lex.ARTICLES, "some"}
AND = {"and", "or", ",", "&"}
MODIFIERS = {*lex.MODIFIER_TAGS, "PRP$"}
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
    for place, part in enumerate(parts[:-1]):
        things = [i for i in range(place) if parts[i].sort == "thing"]
        if part.sort != "relation" or not things or parts[place + 1].sort != "thing":
            continue
        for left, other in product({things[0], things[-1]}, CONVERSE.get(part.value[0], ())):
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
        end, thing = _read_thing(tokens, words, place, lexicon)
        if thing is not None:
            parts.append(thing)
            place = end
            continue
        for end in range(min(place + MAX_WORDS, len(words)), place, -1):
            entry = lexicon.find(" ".join(words[place:end]), RELATION)
            if entry and entry.category != lex.VERB:
                parts.append(CaptionPart("relation", (entry.group,)))
                break
        else:
            end = place + 1
            if words[place][0].isalnum() or words[place] in AND:
                parts.append(CaptionPart("word", (lexicon.stem(words[place]),)))
        place = end
    return parts


def _read_thing(
    tokens: Sequence[Token], words: Sequence[str], place: int, lexicon: Lexicon
) -> tuple[int, CaptionPart | None]:
    """Return the end of the noun phrase that starts at ``place`` and its reading; None if there is none.

    Its modifiers are sorted; the order of its nouns stays.
    """
    step = place + (words[place] in LOOSE)
    is_modifier = [token.tag in MODIFIERS for token in tokens]
    while step < len(tokens):
        joins = words[step] in AND and step > place and all(is_modifier[step - 1 : step + 2 : 2])
        if not (is_modifier[step] or (joins and step + 1 < len(tokens))):
            break
        step += 1
    end = step
    while end < len(tokens) and tokens[end].tag in lex.NOUN_TAGS:
        end += 1
    if end == step:
        return end, None
    nouns = [words[i] for i in range(place, end) if tokens[i].tag in lex.NOUN_TAGS]
    others = [words[i] for i in range(place, step) if tokens[i].tag not in lex.NOUN_TAGS]
    known = [(lexicon.find(word, ATTRIBUTE), word) for word in others if word not in LOOSE | AND]
    modifiers = [entry.group if entry else lexicon.stem(word) for entry, word in known]
    whole = lexicon.find(" ".join(nouns), OBJECT)
    parts = [(lexicon.find(noun, OBJECT), lexicon.stem(noun)) for noun in nouns]
    names = (whole.group,) if whole else tuple(one.group if one else stem for one, stem in parts)
    clothes = whole is not None and lexicon.is_kind_of(whole.word, "clothing")
    value = (tuple(sorted(modifiers)), names, (lexicon.is_plural(nouns[-1]),))
    return end, CaptionPart("thing", value, clothes)


def _join_lists(parts: Sequence[CaptionPart]) -> list[CaptionPart]:
    """Join "X, Y and Z" to one sorted part."""
    joined: list[CaptionPart] = []
    place = 0
    while place < len(parts):
        part, things = parts[place], [parts[place].value]
        place += 1
        while part.sort == "thing":
            step = place
            while step < len(parts) and parts[step].value[0] in AND:
                step += 1
            if step == place or step == len(parts) or parts[step].sort != "thing":
                break
            things.append(parts[step].value)
            place = step + 1
        is_list = len(things) > 1
        joined.append(part._replace(value=("list", *sorted(things, key=repr))) if is_list else part)
    return joined


def _read(parts: Sequence[CaptionPart], lexicon: Lexicon) -> Value:
    """Return the reading, the sides of a symmetric relation sorted.

    Only a relation between the subject and what follows it reads from both sides, where nothing behind says
    more of the thing on its right.
    """
    relation = next((i for i, part in enumerate(parts) if part.sort == "relation"), 0)
    subject = next((i for i, part in enumerate(parts) if part.sort == "thing"), 0)
    values = [part.value for part in parts]
    right, behind = relation + 1, parts[relation + 2 : relation + 4]
    is_plain = relation > subject and all(part.value[0] in POSES for part in parts[subject + 1 : relation])
    if not is_plain or right == len(parts) or parts[right].sort != "thing":
        return tuple(values)
    wears = len(behind) == 2 and behind[1].clothes
    if behind and (behind[0].sort != "relation" or behind[0].value[0] in ("with", "without") or wears):
        return tuple(values)
    name = values[relation][0]
    sides = [values[subject], values[right]]
    if lexicon.is_symmetric(name):
        sides.sort(key=repr)
    return (*values[:subject], ("between", name, *sides), *values[right + 1 :])
