"""Tokens and words of a caption, English endings put on and taken off, and the meaning of words.

A row of the lexicon is one synonym set: its first word names it. Rows of one category exclude each other
("dog" and "cat"), which makes them fit to replace one another, unless one is a kind of the other ("puppy",
a row of the same category with the parent "dog").
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

from raycomp.words import ATTRIBUTE, CONCEPT_KINDS, OBJECT, RELATION

NOUN_TAGS = ("NN", "NNS", "NNP", "NNPS")
ADJECTIVE_TAGS = ("JJ", "JJR", "JJS")
MODIFIER_TAGS = (*ADJECTIVE_TAGS, "VBN", "VBG", "CD")
"""What may stand before a noun and describe it."""
SUBJECTS = frozenset(["nsubj", "nsubj:pass", "nsubjpass"])
"""Labels of subjects in both schemes."""
STOPS = (".", "!", "?")
ARTICLES = ("a", "an", "the")
ONE = frozenset("a an another each every one".split())
"""Determiners of one thing."""
OWNERS = frozenset("my your his its our their".split())


class Token(NamedTuple):
    """One token: its text, characters [start, end) of the caption, PTB tag, label, position of its head."""

    text: str
    start: int
    end: int
    tag: str
    dep: str
    head: int


def list_children(tokens: Sequence[Token]) -> list[list[int]]:
    """Return the positions that hang below each token, in order. A root is its own head."""
    children: list[list[int]] = [[] for _ in tokens]
    for place, token in enumerate(tokens):
        if token.head != place:
            children[token.head].append(place)
    return children


class Word(NamedTuple):
    """A word of a text in its base form, characters [start, end), and its class if one is given."""

    base: str
    start: int
    end: int
    letter: str = ""


def list_bases(words: Sequence[Word]) -> list[str]:
    """Return what words are compared by."""
    return [word.base for word in words]


def measure_ends(old: Sequence[object], new: Sequence[object]) -> tuple[int, int]:
    """Return the number of common items at the start, and of the rest the number at the end."""
    most = min(len(old), len(new))
    first = next((i for i in range(most) if old[i] != new[i]), most)
    behind = next((i for i in range(most - first) if old[-1 - i] != new[-1 - i]), most - first)
    return first, behind


def cut_ends(old: Sequence[Word], new: Sequence[Word]) -> tuple[Sequence[Word], Sequence[Word]]:
    """Return the difference between the longest common start and, of the rest, the longest common end."""
    first, behind = measure_ends(list_bases(old), list_bases(new))
    return old[first : len(old) - behind], new[first : len(new) - behind]


VOWEL_SOUNDS = tuple("hour honest honor honour heir x-ray mp3 suv atv lp nba nfl rv".split())
CONSONANT_SOUNDS = (
    *("uni", "use", "usu", "util", "uran", "urin", "uter", "uga", "ukulele", "ufo", "uk ", "us ", "u.s"),
    *("eu", "ewe", "one", "once"),
)
VOWEL_NUMBERS = re.compile(r"8|1[18](?!\d)|18\d\d(?!\d)")
UN_PREFIX = ("unin", "unim", "unid")
_IRREGULAR = (
    "man men, woman women, child children, person people persons, foot feet, tooth teeth, mouse mice, "
    "goose geese, leaf leaves, knife knives, wolf wolves, shelf shelves, half halves, loaf loaves, "
    "calf calves, wife wives, sit sat, stand stood, hold held, ride rode ridden, run ran, "
    "fly flew flown, eat ate eaten, take took taken, wear wore worn, drive drove driven, "
    "lie lying lay lain, throw threw thrown, catch caught, swim swam swum, fall fell fallen, "
    "break broke broken"
)
BASES = {form: line.split()[0] for line in _IRREGULAR.split(", ") for form in line.split()[1:]}
"""Irregular forms of common words. The lexicon has more, but not all that reads words may ask it."""

_IRREGULAR_PLURALS = ("women", "children", "people", "feet", "teeth", "geese", "mice", "oxen")
_PLURALS_IN_S = ("skis", "bikinis", "khakis", "kiwis", "safaris", "taxis", "emus", "gurus", "menus", "tutus")
_NOT_MEN = ("specimen", "abdomen", "regimen", "omen", "semen", "ramen", "stamen", "acumen", "amen", "hymen")
_SINGULARS_IN_S = frozenset(
    "alias asbestos atlas bias canvas chaos christmas cosmos gas kansas lens news".split()
    + "rhinoceros texas vegas".split()
)


def choose_article(following: str) -> str:
    """Return "a" or "an" for the words that follow it, by their sound."""
    word = following.lower()
    if word.startswith((*VOWEL_SOUNDS, *UN_PREFIX)) or VOWEL_NUMBERS.match(word):
        return "an"
    return "an" if word[:1] in tuple("aeiou") and not word.startswith(CONSONANT_SOUNDS) else "a"


def add_s(word: str) -> str:
    """Return the regular plural of a noun, or the third person of a verb."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2:-1] not in tuple("aeiou"):
        return word[:-1] + "ies"
    return word + ("es" if word in ("go", "do", "echo", "veto") else "s")


def drop_s(word: str) -> str:
    """Return the regular singular of a noun; the word itself where it is not a plural."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "zzes", "ches", "shes")):
        return word[:-2]
    return word[:-1]


def get_base_form(word: str) -> str:
    """Return a lower-case word without inflection. One for all forms; not always a word: "rid" for "ride"."""
    word = BASES.get(word, word)
    if len(word) > 4 and word.endswith(("ies", "ied")):
        word = word[:-3] + "y"
    elif word.endswith(("xes", "zes", "uses")):
        word = word[:-2]
    else:
        word = word[:-1] if word[1:] == "ies" else drop_s(word)  # "tie", of "ties"
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 2 and re.search("[aeiouy]", stem):
            doubled = stem[-1] == stem[-2] and stem[-1] not in "lszeo"
            word = stem[:-1] if doubled else stem
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def is_plural(word: str) -> bool:
    """Guess by its ending whether a noun is a plural.

    "-s" is one, but "-ss", "-us", "-is" only where known; so are "men" and its like. On the targets of 4,400
    captions this disagrees with a tagger on 0.5 %, where the tagger is mostly the one that is wrong.
    """
    word = word.lower()
    if word.endswith("s"):
        singular = word.endswith(("ss", "us", "is")) or word in _SINGULARS_IN_S
        return not singular or word.endswith(_PLURALS_IN_S)
    return word.endswith(_IRREGULAR_PLURALS) or (word.endswith("men") and not word.endswith(_NOT_MEN))


ABSTRACT = "abstract"
"""Category of words that no picture can show, so no operator acts on them: times ("day"), notions ("idea"),
measures ("lot"), places in the frame ("background"), the picture itself ("view"); "because of"."""
FIXED = "fixed"
"""Category of nouns that a picture can show, but no operator acts on: "group", "shadow", "race"."""
CROWD = "crowd"
"""Category of nouns that show nothing of their own before "of": "a team of dogs"."""
VERB = "verb"
"""Category of relations that inflect."""
NUMBER = "number"
AGREEING = {"an": "a", "are": "is", "were": "was", "have": "has", "do": "does"}
RARE, MASS, PLURAL, SYMMETRIC, OPPOSITE, GUEST = "rare", "mass", "plural", "symmetric", "opposite", "guest"
MARKS = (RARE, MASS, PLURAL, SYMMETRIC, OPPOSITE, GUEST)
"""rare: known, but never brought in; mass: no plural and no "a"; plural: no singular ("jeans"); symmetric:
a relation that reads the same from both sides; opposite: the first of ``instead`` is the opposite; guest:
may be added to nearly any picture."""


class SynonymSet(NamedTuple):
    """One synonym set of a kind, as the tables hold it."""

    kind: str
    category: str
    words: tuple[str, ...]
    parents: tuple[str, ...]
    """Wider words: of a puppy "dog", of a dog "animal"."""
    marks: frozenset[str]
    instead: tuple[str, ...]
    """What may replace it, where that is not all of its category; the opposite first, if there is one."""
    fits: tuple[str, ...]
    """Categories or wider words of the objects it can describe, or have on its right side."""


class Entry(NamedTuple):
    """A word of the lexicon; ``group`` is the first word of its synonym set."""

    word: str
    kind: str
    category: str
    group: str


class Forms(NamedTuple):
    """Inflections that follow no rule, by base form; ``double`` lists verbs that double their last letter."""

    plural: Mapping[str, str]
    past: Mapping[str, str]
    participle: Mapping[str, str]
    double: frozenset[str]


class Lexicon:
    """Words by their kind, category and synonym set."""

    def __init__(self, rows: Iterable[SynonymSet], forms: Forms):
        self.forms = forms
        self.rows: dict[tuple[str, str], SynonymSet] = {}
        """By kind and first word."""
        self._entries: dict[str, dict[str, Entry]] = {kind: {} for kind in CONCEPT_KINDS}
        self._by_category: dict[tuple[str, str], list[SynonymSet]] = {}
        for row in rows:
            first = row.words[0]
            if (row.kind, first) in self.rows or not row.marks <= {*MARKS}:
                raise ValueError(f"lexicon: {first!r} is there twice, or has unknown marks {set(row.marks)}")
            self.rows[row.kind, first] = row
            self._by_category.setdefault((row.kind, row.category), []).append(row)
            for word in row.words:
                own = Entry(word, row.kind, row.category, first)
                if self._entries[row.kind].setdefault(word, own) != own:
                    raise ValueError(f"lexicon: {word!r} is in two synonym sets")
        self._wider: dict[tuple[str, str], frozenset[str]] = {}
        """The groups that each row is a kind of, itself among them; words without a row stand alone."""
        for kind, first in self.rows:
            wider: set[str] = set()
            todo = [first]
            while todo:
                word = todo.pop()
                entry = self._entries[kind].get(word)
                group = entry.group if entry else word
                if group not in wider:
                    wider.add(group)
                    todo += self.rows[kind, group].parents if entry else ()
            self._wider[kind, first] = frozenset(wider)
        self.find = lru_cache(1 << 16)(self._find)
        self.siblings = lru_cache(1 << 16)(self._find_siblings)
        self._groups = lru_cache(1 << 16)(self._find_groups)
        self.stem = lru_cache(1 << 16)(self._find_stem)
        marked = ((mark, [row.words[0] for row in self.rows.values() if mark in row.marks]) for mark in MARKS)
        self.marked = {mark: tuple(words) for mark, words in marked}
        """The words that bear each mark, each the first of its set."""

    @cached_property
    def _bases(self) -> dict[str, dict[str, str]]:
        """Map every inflected form to its base, by kind."""
        nouns = {self.plural(word): word for word in self._entries[OBJECT] if not self._has(word, PLURAL)}
        verbs: dict[str, str] = {}
        for word, entry in self._entries[RELATION].items():
            if entry.category == VERB:
                verbs |= {self.inflect(word, tag): word for tag in ("VBZ", "VBG", "VBD", "VBN")}
        return {OBJECT: nouns, RELATION: verbs, ATTRIBUTE: {}}

    @cached_property
    def long_prepositions(self) -> dict[str, tuple[tuple[tuple[str, ...], Entry], ...]]:
        """Map a first word to the prepositions of several words that start with it, the longest first.

        Each has its words as a tokenizer parts them: a hyphen is a word.
        """
        found: dict[str, list[tuple[tuple[str, ...], Entry]]] = {}
        for text, entry in self._entries[RELATION].items():
            words = tuple(re.findall(r"[^\s-]+|-", text))
            if len(words) > 1 and entry.category != VERB:
                found.setdefault(words[0], []).append((words, entry))
        return {
            first: tuple(sorted(several, key=lambda one: -len(one[0]))) for first, several in found.items()
        }

    @cached_property
    def abstract_ends(self) -> frozenset[str]:
        """The last words, in any number, of the nouns that no picture can show: few nouns end so."""
        nouns = [word for word, entry in self._entries[OBJECT].items() if entry.category == ABSTRACT]
        return frozenset(re.split("[ -]", form)[-1] for word in nouns for form in (word, self.plural(word)))

    def _find(self, text: str, kind: str | None = None) -> Entry | None:
        """Return what the lexicon has for a text, in any case, number or tense: of a kind, or the first.

        Kinds are tried in the order object, attribute, relation, whole words before inflected ones.
        """
        text = " ".join(text.lower().split())
        kinds = (kind,) if kind else (OBJECT, ATTRIBUTE, RELATION)
        for one in kinds:
            if entry := self._entries[one].get(text):
                return entry
        for one in kinds:
            if base := self._bases[one].get(text):
                return self._entries[one][base]
        return None

    def row(self, entry: Entry) -> SynonymSet:
        return self.rows[entry.kind, entry.group]

    def _has(self, word: str, mark: str) -> bool:
        entry = self._entries[OBJECT].get(word)
        return entry is not None and mark in self.row(entry).marks

    def is_mass(self, word: str) -> bool:
        """Report whether a noun takes neither "a" nor a plural: "snow"."""
        return self._has(word.lower(), MASS)

    def _find_siblings(self, entry: Entry) -> tuple[str, ...]:
        """Return what may stand in its place: plausible, and never the same, a wider or a narrower thing."""
        row = self.row(entry)
        if row.instead:
            found = row.instead
        elif entry.kind == RELATION or entry.category in (ABSTRACT, FIXED):
            found = ()
        else:
            others = self._by_category[entry.kind, entry.category]
            found = tuple(other.words[0] for other in others if RARE not in other.marks)
        kept, wider = [], self._wider[entry.kind, entry.group]
        for word in found:
            other = self._entries[entry.kind].get(word)
            is_narrower = other is not None and entry.group in self._wider[other.kind, other.group]
            if word not in wider and not is_narrower:
                kept.append(word)
        return tuple(kept)

    def opposite(self, word: str) -> str | None:
        """Return the opposite of a relation, size or other word on a scale; None where there is none."""
        for kind in (RELATION, ATTRIBUTE):
            entry = self.find(word, kind)
            if entry and OPPOSITE in (row := self.row(entry)).marks:
                return row.instead[0]
        return None

    def _find_groups(self, word: str) -> tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]:
        """Return the groups that a word is in, by kind, and those with all wider ones. No row: itself."""
        entries = [entry for kind in CONCEPT_KINDS if (entry := self.find(word, kind))]
        kinds = {entry.kind for entry in entries}
        alone = {(kind, word.lower()) for kind in CONCEPT_KINDS if kind not in kinds}
        own = {(entry.kind, entry.group) for entry in entries}
        wider = {(kind, wide) for kind, group in own for wide in self._wider[kind, group]}
        return frozenset(own | alone), frozenset(wider | alone)

    def are_synonyms(self, first: str, second: str) -> bool:
        """Report whether two words, in any number, are equal or of one synonym set."""
        return not self._groups(first)[0].isdisjoint(self._groups(second)[0])

    def is_kind_of(self, narrow: str, wide: str) -> bool:
        """Report whether the first is the second or a kind of it: a puppy is a dog is an animal."""
        return not self._groups(narrow)[1].isdisjoint(self._groups(wide)[0])

    def are_related(self, first: str, second: str) -> bool:
        """Report whether a group is above both or one of them: a man and a teacher are persons."""
        return not self._groups(first)[1].isdisjoint(self._groups(second)[1])

    def is_symmetric(self, word: str) -> bool:
        """Report whether a relation reads the same from both sides: "next to", "with"."""
        entry = self.find(word, RELATION)
        return entry is not None and SYMMETRIC in self.row(entry).marks

    def fits(self, word: str, kind: str, owner: str) -> bool:
        """Report whether an attribute can describe ``owner``, or a relation have it on its right side.

        A word without such a list fits all, but an object that the lexicon does not know fits only those.
        """
        entry = self.find(word, kind)
        if not entry or not (wanted := self.row(entry).fits):
            return True
        noun = self.find(owner, OBJECT)
        return noun is not None and not {noun.category, *self._wider[OBJECT, noun.group]}.isdisjoint(wanted)

    def words(self, kind: str, category: str) -> tuple[str, ...]:
        """Return the words of a category that may be brought in."""
        rows = self._by_category.get((kind, category), [])
        return tuple(row.words[0] for row in rows if RARE not in row.marks)

    def plural(self, word: str) -> str:
        """Return the plural of a noun in its base form; of several words that of the last."""
        if word in self.forms.plural:
            return self.forms.plural[word]
        if self._has(word, PLURAL) or self._has(word, MASS):
            return word
        head, of, rest = word.partition(" of ")
        if of:
            return self.plural(head) + of + rest
        front, space, last = word.rpartition(" ")
        if last in self.forms.plural:
            return front + space + self.forms.plural[last]
        if is_plural(last):
            return word
        if last.endswith("man") and len(last) > 3 and last != "human":
            return front + space + last[:-3] + "men"
        return front + space + add_s(last)

    def singular(self, word: str) -> str:
        """Return the base form of a noun in the plural; the word itself where it is none."""
        word = word.lower()
        if entry := self.find(word, OBJECT):
            return entry.word
        front, space, last = word.rpartition(" ")
        entry = self.find(last, OBJECT) if front else None
        return front + space + (entry.word if entry else drop_s(last))

    def _find_stem(self, word: str) -> str:
        """Return a word without what agreement does to it: number, third person, a or an; tenses stay."""
        word = word.lower()
        if word in AGREEING:
            return AGREEING[word]
        verb = self.find(word, RELATION) if word.endswith("s") else None
        return verb.word if verb and verb.category == VERB else self.singular(word)

    def is_plural(self, text: str) -> bool:
        """Report whether a noun has the form of a plural; "sheep" has not."""
        text = text.lower()
        entry = self.find(text, OBJECT) or self.find(text.rpartition(" ")[2], OBJECT)
        if entry is None:
            return drop_s(text) != text
        if PLURAL in self.row(entry).marks:
            return True
        if text == entry.word or text.endswith(" " + entry.word):
            # Said as a plural though its set is not: "stairs", of a staircase.
            return is_plural(entry.word.partition(" of ")[0]) and entry.word not in self.forms.plural
        return True

    def inflect(self, verb: str, tag: str) -> str:
        """Return a verb in the form of a Penn tag: VB, VBP, VBZ, VBG, VBD or VBN."""
        first, space, rest = verb.partition(" ")
        doubled = first + first[-1:] if first in self.forms.double else first
        if tag == "VBZ":
            form = "has" if first == "have" else add_s(first)
        elif tag == "VBG" and first.endswith("ie"):
            form = first[:-2] + "ying"
        elif tag == "VBG":
            is_silent = first.endswith("e") and not first.endswith(("ee", "oe", "ye"))
            form = (first[:-1] if is_silent else doubled) + "ing"
        elif tag in ("VBD", "VBN"):
            is_like_carry = first.endswith("y") and first[-2:-1] not in tuple("aeiou")
            regular = first[:-1] + "ied" if is_like_carry else doubled + "ed"
            irregular = self.forms.past if tag == "VBD" else self.forms.participle
            form = irregular.get(first) or (first + "d" if first.endswith("e") else regular)
        else:
            form = first
        return form + space + rest


LONGEST = 6
"""Tokens that a noun or an attribute of the lexicon may span; a hyphen is a token."""


def join_words(tokens: Sequence[Token], first: int, last: int) -> str:
    """Return tokens [first, last] in lower case, with a space where the caption has one."""
    said = tokens[first].text
    for before, token in pairwise(tokens[first : last + 1]):
        said += f" {token.text}" if token.start > before.end else token.text
    return said.lower()


def match_longest(
    tokens: Sequence[Token], last: int, kind: str, lexicon: Lexicon
) -> tuple[int, Entry] | None:
    """Return the longest entry of a kind that ends at ``last``, after its start position."""
    found, said = None, ""
    for first in range(last, max(-1, last - LONGEST), -1):
        space = " " if first < last and tokens[first + 1].start > tokens[first].end else ""
        said = tokens[first].text.lower() + space + said
        if entry := lexicon.find(said, kind):
            found = first, entry
    return found


def find_long_prepositions(words: Sequence[str], lexicon: Lexicon) -> dict[int, tuple[int, Entry]]:
    """Map the first position of every preposition of several words to its last one and its entry.

    ``words`` are in lower case. From left to right the longest counts: "to the left of" over "left of".
    """
    found: dict[int, tuple[int, Entry]] = {}
    known, free = lexicon.long_prepositions, 0
    for first, word in enumerate(words):
        for spelled, entry in known.get(word, ()) if first >= free else ():
            if tuple(words[first : first + len(spelled)]) == spelled:
                free = first + len(spelled)
                found[first] = free - 1, entry
                break
    return found
