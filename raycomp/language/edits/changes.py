"""Shared parts of the rules of SWAP, REPLACE and ADD: a caption under edit, its state, a possible change."""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from raycomp.language.concepts import Concept, Parsed
from raycomp.language.context import Context
from raycomp.language.edits.plausible import race
from raycomp.language.edits.wording import Piece, Wording
from raycomp.language.lexicon import Lexicon
from raycomp.words import OBJECT

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
    """Of changes of one tier the smallest is taken first, else a hash decides; see ``plausible.race``."""
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
    """One caption with what the rules ask about it."""

    def __init__(
        self,
        parsed: Parsed,
        lexicon: Lexicon,
        seed: int,
        key: str,
        context: Context | None = None,
        at_most: int = CHOICES,
    ):
        self.parsed, self.lexicon, self.salt = parsed, lexicon, f"{seed}\0{key}\0"
        self.context = context
        self.choices = CHOICES if context is None else max(CHOICES, at_most)
        """Different words for one place."""
        self.words = Wording(parsed, lexicon)
        self.concepts = parsed.concepts
        said = {token.text.lower() for token in parsed.tokens}
        self.barred = [sex for sex, words in (("female", HIS), ("male", HER)) if said & words]
        nouns = (i for i, one in enumerate(self.concepts) if one.kind == OBJECT)
        self.denied = {i for i in nouns if self._is_denied(i)}

    def hash(self, *parts: object) -> bytes:
        """Return the rank of a choice: the same for the same key and seed, everywhere."""
        return blake2b((self.salt + "\0".join(map(str, parts))).encode(), digest_size=8).digest()

    def draw(self, words: Iterable[str], *parts: object) -> Iterator[str]:
        """Yield ``words`` in an order by hash: nothing is drawn that is not asked for."""
        left = list(words)
        rank = 0
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
        return [
            i
            for i, one in enumerate(self.concepts)
            if one.kind == kind
            and i not in state.used
            and not self.denied & {i, one.owner, *(one.sides or ())}
        ]

    def _is_denied(self, place: int) -> bool:
        """Report whether the caption says that an object is not there: "no hat", "without a hat"."""
        if self.words.determiner(place) == "no":
            return True
        before = self.words.phrase_starts[place] - 1
        return before >= 0 and self.parsed.tokens[before].text.lower() in ("without", "no", "not")

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
        return sorted(self.concepts[i].word for i in self.words.attributes[place] if i != leave)

    def lefts(self, relation: Concept) -> tuple[int, ...]:
        """Return what may be left of a relation.

        That is what the parse says, and the object just before, which a clause may be about.
        """
        if relation.sides is None:
            return ()
        before = [
            i for i, one in enumerate(self.concepts) if one.kind == OBJECT and one.end <= relation.start
        ]
        return (relation.sides[0], *before[-1:])

    def are_exchanged(self, first: int, second: int, state: State) -> bool:
        """Return whether the swaps so far gave each of two objects all that the caption states about the
        other.

        Two that are said alike always are. Where they are, a relation between them that is turned is true.
        """
        came = {place: other for pair in state.swapped for place, other in (pair, pair[::-1])}

        def is_now(one: int, other: int) -> bool:
            said = sorted(self.concepts[came.get(i, i)].word for i in self.words.attributes[one])
            return self.are_alike(came.get(one, one), other) and said == self.said_of(other)

        return is_now(first, second) and is_now(second, first)

    def is_listed(self, place: int) -> bool:
        """Report whether another object stands in one list with the object ``place``."""
        mine = self.words.coordination(place)
        others = (i for i, one in enumerate(self.concepts) if one.kind == OBJECT and i != place)
        return any(self.words.coordination(i) == mine for i in others)

    def is_person(self, noun: Concept) -> bool:
        """Report whether an object is a person: colours of persons are left alone."""
        return self.lexicon.is_kind_of(noun.word, "person")

    def is_barred(self, word: str) -> bool:
        """Report whether a noun would be at odds with the caption's "his" or "her"."""
        return any(self.lexicon.is_kind_of(word, sex) for sex in self.barred)

    def realm(self, noun: Concept) -> set[str]:
        """Return the realms of an object; persons and animals are one."""
        realms = {
            name for name in LISTED if self.lexicon.is_kind_of(noun.word, name) or noun.category == name
        }
        return realms - LIVING | {"living"} if realms & LIVING else realms
