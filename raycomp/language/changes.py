"""A caption under edit: its words, the changes that SWAP, REPLACE and ADD can make, how plausible each is.

A weight is P(word) of its kind times the lifts of what stands around it: the neighbours, what describes it,
the relations it is a side of. Words are drawn in proportion to it.

Where a text differs from a parsed one in a run of as many words, as "a dog" from "a cat", each new word takes
the tag, label and head of the word whose place it has.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from math import exp, log
from typing import NamedTuple

from raycomp.language import lexicon as lex
from raycomp.language import overlap
from raycomp.language.concepts import Concept, Parsed
from raycomp.language.lexicon import Lexicon, Token
from raycomp.language.overlap import Context
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

SINGULAR_DETERMINERS = lex.ONE | {"this", "that"}
DETERMINERS = ("DT", "PDT", "PRP$", "POS", "WP$")
INSIDE = (*lex.MODIFIER_TAGS, "RB", "HYPH", "NN", "NNP")
BEFORE_PHRASES = (*"IN TO RP RB CC WDT , . : MD".split(), *(f"VB{x}" for x in ("", *"DGNPZ")))


class Piece(NamedTuple):
    """Characters [start, end) of the original caption and what stands there instead; start = end inserts."""

    start: int
    end: int
    text: str


CHOICES = 3
"""Different words that one concept is replaced by, and phrases that are added at one place."""
# Realms of objects. Their nouns can be joined with a sibling: "a hat and a scarf", not "a hill and a valley".
LISTED = tuple(
    "animal,person,vehicle,furniture,food,clothing,instrument,sports gear,ball,toy,tool,tableware,container,"
    "appliance,device,household,shape".split(",")
)
HIS, HER = frozenset("he his him himself".split()), frozenset("she her hers herself".split())
LIVING = frozenset(["animal", "person"])


class Change(NamedTuple):
    """A possible edit, in the coordinates of the original caption."""

    kind: str
    concepts: tuple[str, ...]
    used: frozenset[int]
    pieces: tuple[Piece, ...]
    tier: int = 0
    """How odd it reads: 0 is taken before 1."""
    swapped: tuple[int, int] | None = None
    """The two concepts that take each other's place."""
    rank: float = 0.0
    """Of changes of one tier the smallest is taken first, else a hash decides; see ``race``."""
    removed: tuple[Piece, ...] = ()
    """Of an ADD: what the caption loses, so that it is no longer than before."""


class State(NamedTuple):
    """What earlier calls did: their pieces, the concepts they used, the words they brought in, the swaps."""

    pieces: tuple[Piece, ...] = ()
    used: frozenset[int] = frozenset()
    brought: tuple[str, ...] = ()
    swapped: tuple[tuple[int, int], ...] = ()
    """Pairs of concepts that stand in each other's place."""


class Case:
    """One caption with what the rules ask about it, its words and what may change.

    ``salt`` is of the seed and the key that decide by hash where several edits are possible.
    """

    def __init__(
        self,
        parsed: Parsed,
        lexicon: Lexicon,
        seed: int,
        key: str,
        context: Context | None = None,
        at_most: int = CHOICES,
    ):
        self.text, self.tokens, self.concepts = parsed
        self.lexicon, self.salt, self.context = lexicon, f"{seed}\0{key}\0", context
        self.choices = CHOICES if context is None else max(CHOICES, at_most)
        """Different words for one place."""
        self._at = {token.start: place for place, token in enumerate(self.tokens)}
        self._ends = {token.end: place for place, token in enumerate(self.tokens)}
        self.children = lex.list_children(self.tokens)
        self.attributes: list[list[int]] = [[] for _ in self.concepts]
        """Of every concept that is an object, its attributes."""
        self.nouns = [place for place, concept in enumerate(self.concepts) if concept.kind == OBJECT]
        for place, concept in enumerate(self.concepts):
            if concept.kind == ATTRIBUTE and concept.owner is not None:
                self.attributes[concept.owner].append(place)
        said = {token.text.lower() for token in self.tokens}
        self.barred = [sex for sex, words in (("female", HIS), ("male", HER)) if said & words]

    @cached_property
    def denied(self) -> set[int]:
        """What the caption says is not there: "no hat", "without a hat"."""
        found = set()
        for place in self.nouns:
            before = self.phrase_starts[place] - 1
            is_without = before >= 0 and self.tokens[before].text.lower() in ("without", "no", "not")
            if is_without or self.determiner(place) == "no":
                found.add(place)
        return found

    def first(self, place: int) -> int:
        """Return the position of the first token of concept ``place``."""
        return self._at[self.concepts[place].start]

    def last(self, place: int) -> int:
        """Return the position of the last token of concept ``place``."""
        return self._ends[self.concepts[place].end]

    @cached_property
    def phrase_starts(self) -> dict[int, int]:
        """Map every object to the position of the first token of its noun phrase."""
        found = {}
        for place in self.nouns:
            own = {at for one in self.attributes[place] for at in range(self.first(one), self.last(one) + 1)}
            head, start = self.last(place), self.first(place)
            while start > 0:
                token = self.tokens[start - 1]
                if token.tag in DETERMINERS and self.text[token.end : self.tokens[start].start] == " ":
                    start -= 1
                    break
                is_joined = token.text.lower() in (",", "and", "or") and start - 2 in own
                is_modifier = token.tag in INSIDE and start - 1 <= token.head <= head and token.head >= start
                if not (start - 1 in own or is_joined or is_modifier):
                    break
                start -= 1
            found[place] = start
        return found

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
        determiner = self.determiner(place)
        if slot.is_plural:
            counted = any(self.concepts[one].category == "number" for one in self.attributes[place])
            return not mass and not (plural_only and counted)
        if plural_only or determiner in SINGULAR_DETERMINERS:
            return not plural_only and not mass
        return bool(determiner) or mass == self.lexicon.is_mass(slot.word)

    def is_bare(self, place: int) -> bool:
        """Report whether one countable thing stands without a determiner: "in front of church"."""
        one = self.concepts[place]
        return not (one.is_plural or self.determiner(place) or self.lexicon.is_mass(one.word))

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
        return place is not None and (place == 0 or self.tokens[place - 1].text in lex.STOPS)

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
        if self.ends(place):
            return True
        token = self.tokens[self.last(place) + 1]
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
        return after >= len(self.tokens) or self.tokens[after].text in lex.STOPS

    def agrees(self, place: int) -> bool:
        """Report whether a verb behind object ``place`` stands in the singular because of it."""
        last = self.last(place)
        head = self.tokens[last].head
        if self.concepts[place].is_plural or head <= last or "subj" not in self.tokens[last].dep:
            return False
        verbs = [self.tokens[verb] for verb in (head, *self.children[head])]
        return any(verb.tag == "VBZ" or verb.text.lower() == "was" for verb in verbs)

    def coordination(self, place: int) -> int:
        """Return the position of the first conjunct of the list that object ``place`` is in."""
        at = self.last(place)
        for _ in self.tokens:
            at = self.tokens[at].head if self.tokens[at].dep == "conj" else at
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
            new = piece.text
            if is_first and self._starts_sentence(piece.start) and self.text[piece.start].isupper():
                new = new[:1].upper() + new[1:]
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
            article = lex.choose_article(piece.text.strip())
            if token.text.lower() != article:
                article = article.upper() if token.text == "AN" or self.text.isupper() else article
                article = article[:1].upper() + article[1:] if token.text[0] == "A" else article
                found[token.start] = Piece(token.start, token.end, article)
        return list(found.values())

    def hash(self, *parts: object) -> bytes:
        """Return the rank of a choice: the same for the same key and seed, everywhere."""
        return blake2b((self.salt + "\0".join(map(str, parts))).encode(), digest_size=8).digest()

    def draw(self, words: Iterable[str], *parts: object) -> Iterator[str]:
        """Yield ``words`` in an order by hash: nothing is drawn that is not asked for."""
        left, rank = list(words), 0
        while left:
            rank = rank or int.from_bytes(self.hash(len(left), *parts), "big")
            rank, place = divmod(rank, len(left))
            yield left.pop(place)

    @property
    def counted(self) -> Context:
        """The counts of the corpus, where there are some."""
        assert self.context is not None
        return self.context

    def pick(
        self, words: Iterable[str], weigh: Callable[[str], float], state: State, *parts: object
    ) -> Iterator[tuple[float, str]]:
        """Yield words with their ranks: the plausible first by the corpus's counts, else in order by hash."""
        if self.context is None:
            yield from ((0.0, word) for word in self.draw(words, *parts))
        else:
            yield from race(self, words, weigh, *state.pieces, *parts)

    def free(self, kind: str, state: State) -> list[int]:
        """Return the concepts of a kind that no call has used; what is denied cannot be made false."""
        left = [(i, one) for i, one in enumerate(self.concepts) if one.kind == kind and i not in state.used]
        return [i for i, one in left if not self.denied & {i, one.owner, *(one.sides or ())}]

    def carries(self, word: str, state: State) -> bool:
        """Report whether the caption, or an earlier call, already says a word or one close in meaning."""
        said = [*(one.word for one in self.concepts), *state.brought]
        return any(self.lexicon.is_kind_of(word, one) or self.lexicon.is_kind_of(one, word) for one in said)

    def are_alike(self, first: int, second: int) -> bool:
        """Report whether two concepts are the same, synonyms, or one a kind of the other."""
        one, two = self.concepts[first].word, self.concepts[second].word
        if one == two or one.endswith((f" {two}", f"-{two}")) or two.endswith((f" {one}", f"-{one}")):
            return True
        return self.lexicon.is_kind_of(one, two) or self.lexicon.is_kind_of(two, one)

    def said_of(self, place: int, leave: int | None = None) -> list[str]:
        """Return the attributes of an object, sorted, without the one at ``leave``."""
        return sorted(self.concepts[i].word for i in self.attributes[place] if i != leave)

    def lefts(self, relation: Concept) -> tuple[int, ...]:
        """Return what may be left of a relation.

        That is what the parse says, and the object just before, which a clause may be about.
        """
        if relation.sides is None:
            return ()
        before = [i for i in self.nouns if self.concepts[i].end <= relation.start]
        return (relation.sides[0], *before[-1:])

    def are_exchanged(self, first: int, second: int, state: State) -> bool:
        """Return whether the swaps so far gave each of two objects all that the caption states about the
        other.

        Two that are said alike always are. Where they are, a relation between them that is turned is true.
        """
        came = {place: other for pair in state.swapped for place, other in (pair, pair[::-1])}

        def is_now(one: int, other: int) -> bool:
            said = sorted(self.concepts[came.get(i, i)].word for i in self.attributes[one])
            return self.are_alike(came.get(one, one), other) and said == self.said_of(other)

        return is_now(first, second) and is_now(second, first)

    def is_listed(self, place: int) -> bool:
        """Report whether another object stands in one list with the object ``place``."""
        mine = self.coordination(place)
        return any(self.coordination(i) == mine for i in self.nouns if i != place)

    def is_person(self, noun: Concept) -> bool:
        """Report whether an object is a person: colours of persons are left alone."""
        return self.lexicon.is_kind_of(noun.word, "person")

    def is_barred(self, word: str) -> bool:
        """Report whether a noun would be at odds with the caption's "his" or "her"."""
        return any(self.lexicon.is_kind_of(word, sex) for sex in self.barred)

    def realm(self, noun: Concept) -> set[str]:
        """Return the realms of an object; persons and animals are one."""
        realms = {one for one in LISTED if self.lexicon.is_kind_of(noun.word, one) or noun.category == one}
        return realms - LIVING | {"living"} if realms & LIVING else realms


Weigh = Callable[[str], float]


def race(case: Case, words: Iterable[str], weigh: Weigh, *parts: object) -> list[tuple[float, str]]:
    """Return words with their ranks, the first first: ranks order all places' words as a draw without
    replacement in proportion to the weights does, which sum to 1 over the words of a place."""
    weights = {word: weigh(word) for word in words}
    total = sum(weights.values())
    return sorted((draw_rank(case, weight / total, word, *parts), word) for word, weight in weights.items())


def draw_rank(case: Case, weight: float, *parts: object) -> float:
    """Return an exponential time of rate ``weight``, by hash: the earliest of several is drawn."""
    uniform = (int.from_bytes(case.hash("race", *parts), "big") + 0.5) / 2**64
    return -log(uniform) / weight


def weigh_between(context: Context, text: str, start: int, end: int, new: str) -> float:
    """Return the lift of both neighbours of the characters [start, end) for new words in their place."""
    before, words, after = (
        [overlap.as_neighbour(word) for word in overlap.find_words(part)]
        for part in (text[:start], new, text[end:])
    )
    if not words:
        return 1.0
    lift = context.lift(overlap.NEAR, (before or [overlap.START])[-1], words[0])
    return lift * context.lift(overlap.NEAR, words[-1], (after or [overlap.END])[0])


def weigh_word(case: Case, place: int, word: str, new: str) -> float:
    """Return the weight of a concept, written as ``new``, in the place of another of its kind."""
    context = case.counted
    old = case.concepts[place]
    around = weigh_between(context, case.text, old.start, old.end, new)
    return context.share(old.kind, word) * around * weigh_bonds(case, place, word)


def weigh_bonds(case: Case, place: int, word: str, with_attributes: bool = True) -> float:
    """Return the lift of what a concept in a place is bound to: attributes, owner, relations, sides."""
    concepts, one = case.concepts, case.concepts[place]
    bonds: list[tuple[str, str, str]] = []
    if one.kind == ATTRIBUTE and one.owner is not None:
        bonds.append((overlap.DESCRIBED, concepts[one.owner].word, word))
    if one.kind == RELATION and one.sides is not None:
        left, right = (concepts[side].word for side in one.sides)
        bonds += [(overlap.LEFT, left, word), (overlap.RIGHT, word, right)]
    if one.kind == OBJECT:
        for attribute in case.attributes[place] if with_attributes else ():
            bonds.append((overlap.DESCRIBED, word, concepts[attribute].word))
        for relation in concepts:
            if relation.sides and relation.sides[0] == place:
                bonds.append((overlap.LEFT, word, relation.word))
            if relation.sides and relation.sides[1] == place:
                bonds.append((overlap.RIGHT, relation.word, word))
    return exp(sum(log(case.counted.lift(*bond)) for bond in bonds))


def weigh_guest(case: Case, word: str) -> float:
    """Return the weight of one more object: P(word) times the geometric mean of its lifts with the others."""
    others = {one.word for one in case.concepts if one.kind == OBJECT}
    lifts = [case.counted.lift(overlap.TOGETHER, other, word) for other in sorted(others)]
    mean = exp(sum(map(log, lifts)) / len(lifts)) if lifts else 1.0
    return case.counted.share(OBJECT, word) * mean


_WORD = re.compile(r"[^\s-]+|-")


def _keeps_end(old: str, new: str, at: int, moved: int) -> bool:
    """Report whether a place between two words of ``old`` is one in ``new``."""
    is_inside = [
        0 < place < len(text) and text[place - 1].isalnum() and text[place].isalnum()
        for text, place in ((old, at), (new, at + moved))
    ]
    return is_inside[0] or not is_inside[1]


def splice_tokens(tokens: Sequence[Token], old: str, new: str) -> list[Token] | None:
    """Return the tokens of ``new`` from those of ``old``; None where the numbers of changed words differ."""
    ahead, behind = lex.measure_ends(old, new)
    grown = len(new) - len(old)
    is_kept = (token.end <= ahead and _keeps_end(old, new, token.end, 0) for token in tokens)
    first = next((place for place, kept in enumerate(is_kept) if not kept), len(tokens))
    last = len(tokens)
    while last > first and len(old) - tokens[last - 1].start <= behind:
        if not _keeps_end(old, new, tokens[last - 1].start, grown):
            break
        last -= 1
    if first == last:
        return None
    words = list(_WORD.finditer(new, tokens[first].start, tokens[last - 1].end + grown))
    if len(words) != last - first:
        return None
    changed = [
        token._replace(text=word.group(), start=word.start(), end=word.end())
        for token, word in zip(tokens[first:last], words, strict=True)
    ]
    moved = [token._replace(start=token.start + grown, end=token.end + grown) for token in tokens[last:]]
    return [*tokens[:first], *changed, *moved]
