"""The surface of an edited caption: noun phrases, slots that a noun must fit, articles, capitals."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from raycomp.language.concepts import Parsed
from raycomp.language.inflection import choose_article
from raycomp.language.lexicon import Lexicon
from raycomp.language.tokens import MODIFIER_TAGS, ONE, STOPS, find_children
from raycomp.words import ATTRIBUTE, OBJECT

SINGULAR_DETERMINERS = ONE | {"this", "that"}
DETERMINERS = ("DT", "PDT", "PRP$", "POS", "WP$")
INSIDE = (*MODIFIER_TAGS, "RB", "HYPH", "NN", "NNP")
BEFORE_PHRASES = (*"IN TO RP RB CC WDT , . : MD".split(), *(f"VB{x}" for x in ("", *"DGNPZ")))


class Piece(NamedTuple):
    """Characters [start, end) of the original caption and what stands there instead; start = end inserts."""

    start: int
    end: int
    text: str


class Wording:
    """A parsed caption and what its edits ask about its words."""

    def __init__(self, parsed: Parsed, lexicon: Lexicon):
        self.text, self.tokens, self.concepts = parsed
        self.lexicon = lexicon
        self._at = {token.start: place for place, token in enumerate(self.tokens)}
        self._ends = {token.end: place for place, token in enumerate(self.tokens)}
        self.children = find_children(self.tokens)
        self.attributes: list[list[int]] = [[] for _ in self.concepts]
        """Of every concept that is an object, its attributes."""
        for place, concept in enumerate(self.concepts):
            if concept.kind == ATTRIBUTE and concept.owner is not None:
                self.attributes[concept.owner].append(place)

    def first(self, place: int) -> int:
        """Return the position of the first token of concept ``place``."""
        return self._at[self.concepts[place].start]

    def last(self, place: int) -> int:
        """Return the position of the last token of concept ``place``."""
        return self._ends[self.concepts[place].end]

    @cached_property
    def phrase_starts(self) -> dict[int, int]:
        """Map every object to the position of the first token of its noun phrase."""
        return {
            place: self._extend_left(place) for place, one in enumerate(self.concepts) if one.kind == OBJECT
        }

    def _extend_left(self, place: int) -> int:
        own = {
            token for one in self.attributes[place] for token in range(self.first(one), self.last(one) + 1)
        }
        head, first = self.last(place), self.first(place)
        start = first
        while start > 0:
            token = self.tokens[start - 1]
            if token.tag in DETERMINERS and self.text[token.end : self.tokens[start].start] == " ":
                return start - 1
            is_joined = token.text.lower() in (",", "and", "or") and start - 2 in own
            is_modifier = token.tag in INSIDE and start - 1 <= token.head <= head and token.head >= start
            if not (start - 1 in own or is_joined or is_modifier):
                break
            start -= 1
        return start

    def determiner(self, place: int) -> str:
        """Return the lower-case determiner of the object ``place``; "" where it has none."""
        token = self.tokens[self.phrase_starts[place]]
        return token.text.lower() if token.tag in DETERMINERS else ""

    def accepts(self, place: int, noun: str) -> bool:
        """Report whether a noun in its base form can stand where object ``place`` stands, number kept."""
        slot = self.concepts[place]
        entry = self.lexicon.find(noun, OBJECT)
        if entry is None:
            return True
        plural_only, mass = self.lexicon.is_plural(entry.word), self.lexicon.is_mass(entry.word)
        if slot.is_plural:
            counted = any(self.concepts[one].category == "number" for one in self.attributes[place])
            return not mass and not (plural_only and counted)
        if plural_only:
            return False
        if self.determiner(place) in SINGULAR_DETERMINERS:
            return not mass
        if self.determiner(place):
            return True
        return mass == self.lexicon.is_mass(slot.word)

    def is_bare(self, place: int) -> bool:
        """Report whether one countable thing stands without a determiner: "in front of church"."""
        one = self.concepts[place]
        return not (one.is_plural or self.determiner(place) or self.lexicon.is_mass(one.word))

    @cached_property
    def is_headline(self) -> bool:
        """Whether the caption leaves articles out from its first noun on: "dog in front of church"."""
        first = next((place for place, one in enumerate(self.concepts) if one.kind == OBJECT), None)
        return first is not None and self.is_bare(first)

    def inflect(self, place: int, noun: str) -> str:
        """Return a noun, given in its base form, in the number of object ``place``."""
        return self.lexicon.plural(noun) if self.concepts[place].is_plural else noun

    def base(self, place: int) -> str:
        """Return the words of object ``place`` in the singular, capitals of names kept."""
        one = self.concepts[place]
        said = self.plain(one.start, one.end)
        if not one.is_plural:
            return said
        found = self.lexicon.singular(said)
        return said if found == said.lower() else found

    def plain(self, start: int, end: int) -> str:
        """Return the characters [start, end) without the capital of a sentence start."""
        said = self.text[start:end]
        if start not in self._at or not self._starts_sentence(start):
            return said
        token = self.tokens[self._at[start]]
        is_name = token.tag.startswith("NNP") and self._at[start] > 0
        is_short = token.text != "A" and token.text.isupper()
        return said if is_name or is_short else said[:1].lower() + said[1:]

    def _starts_sentence(self, start: int) -> bool:
        place = self._at.get(start)
        return place is not None and (place == 0 or self.tokens[place - 1].text in STOPS)

    def matching(self, start: int, end: int, word: str) -> str:
        """Return a new word in the case of the characters [start, end) that it replaces."""
        said = self.text[start:end]
        if len(said) > 1 and said.isupper():
            return word.upper()
        if said[:1].isupper() and not self._starts_sentence(start):
            return " ".join(part[:1].upper() + part[1:] for part in word.split(" "))
        return word

    def can_follow(self, place: int) -> bool:
        """Report whether a conjunct or a phrase may be put behind object ``place``: nothing is torn apart."""
        after = self.last(place) + 1
        if after >= len(self.tokens):
            return True
        token = self.tokens[after]
        if token.text in STOPS:
            return True
        return token.tag[:2] in ("VB", "IN", "MD") and token.text.lower() not in ("of", "that", "than")

    def stands_alone(self, place: int) -> bool:
        """Say whether the noun phrase of object ``place`` is whole: no part before it, no "of" behind it."""
        before, after = self.phrase_starts[place] - 1, self.last(place) + 1
        if after < len(self.tokens) and self.tokens[after].text.lower() in ("of", "and", "or"):
            return False
        return before < 0 or self.tokens[before].tag in BEFORE_PHRASES

    def ends(self, place: int) -> bool:
        """Report whether object ``place`` is the last word of its sentence."""
        after = self.last(place) + 1
        return after >= len(self.tokens) or self.tokens[after].text in STOPS

    def agrees(self, place: int) -> bool:
        """Report whether a verb behind object ``place`` stands in the singular because of it."""
        last = self.last(place)
        head = self.tokens[last].head
        if self.concepts[place].is_plural or head <= last or "subj" not in self.tokens[last].dep:
            return False
        verbs = [head, *self.children[head]]
        return any(
            self.tokens[verb].tag == "VBZ" or self.tokens[verb].text.lower() == "was" for verb in verbs
        )

    def coordination(self, place: int) -> int:
        """Return the position of the first conjunct of the list that object ``place`` is in."""
        at = self.last(place)
        for _ in self.tokens:
            if self.tokens[at].dep != "conj":
                break
            at = self.tokens[at].head
        return at

    def render(self, pieces: Iterable[Piece]) -> tuple[str, list[tuple[int, int]]]:
        """Return the caption with ``pieces`` put in, and the span of each, in their order in the text.

        Articles and capitals around them are set right; the rest stays as it is, byte by byte.
        """
        ordered = sorted(pieces, key=lambda piece: (piece.start, piece.end))
        articles = self._articles(ordered)
        starts = {piece.start for piece in ordered if piece.start < piece.end}
        out: list[str] = []
        spans: list[tuple[int, int]] = []
        done = length = 0
        for piece in sorted([*ordered, *articles], key=lambda piece: (piece.start, piece.end)):
            is_first = not out or piece.start > done
            new = self._capital(piece) if is_first else piece.text
            kept = self.text[done : piece.start]
            start, end = length + len(kept), length + len(kept) + len(new)
            done = piece.end
            out += [kept, new]
            if new != piece.text and piece.start == piece.end and piece.start not in starts:
                out.append(self.plain(done, len(self.text))[0])
                done, end = done + 1, end + 1
            length = end
            if piece not in articles:
                spans.append((start + len(new) - len(new.lstrip()), start + len(new.rstrip())))
        return "".join([*out, self.text[done:]]), spans

    def _articles(self, ordered: Sequence[Piece]) -> list[Piece]:
        """Return "a" and "an" before changed words, as these ask for."""
        found = {}
        for piece in ordered:
            token = self.tokens[place - 1] if (place := self._at.get(piece.start, 0)) > 0 else None
            if token is None or token.text.lower() not in ("a", "an") or token.start in found:
                continue
            if any(other.start <= token.start < other.end for other in ordered) or not piece.text.strip():
                continue
            article = choose_article(piece.text.strip())
            if token.text.lower() != article:
                article = article.upper() if token.text == "AN" or self.text.isupper() else article
                article = article[:1].upper() + article[1:] if token.text[0] == "A" else article
                found[token.start] = Piece(token.start, token.end, article)
        return list(found.values())

    def _capital(self, piece: Piece) -> str:
        is_first = self._starts_sentence(piece.start) and self.text[piece.start : piece.start + 1].isupper()
        return piece.text[:1].upper() + piece.text[1:] if is_first else piece.text
