"""How often captions use words in a context: counts that edits draw plausible words by.

A corpus uses a word where another stands as often as these counts say: between its neighbours, with an
attribute, on a side of a relation, in one caption with other objects. Counts of parts of a corpus add up.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations

from raycomp.language.concepts import Parsed
from raycomp.language.text_only import find_words
from raycomp.words import ATTRIBUTE, OBJECT, RELATION

NEAR, DESCRIBED, LEFT, RIGHT, TOGETHER, CONCEPT = "near", "described", "left", "right", "together", "concept"
TABLES = {
    NEAR: "neighbours as written in lower case, with the marks of both ends; an counts as a",
    DESCRIBED: "(object, attribute)",
    LEFT: "(object on the left side, relation)",
    RIGHT: "(relation, object on the right side)",
    TOGETHER: "two different objects of a caption, in both orders",
    CONCEPT: "(kind, concept)",
}
START, END = "<", ">"
MOST_ENTRIES = 200_000
"""Pairs that each table keeps."""
PRIOR = 5.0
"""Occurrences of a first word before its own counts outweigh those of all first words together."""
Pair = tuple[str, str]


@dataclass(frozen=True)
class Context:
    """Counts of pairs by table; those of parts of a corpus add up."""

    tables: Mapping[str, Counter[Pair]]

    def add(self, other: "Context") -> None:
        """Add the counts of more captions; before anything is asked."""
        for name, table in self.tables.items():
            table.update(other.tables[name])

    @cached_property
    def _sums(self) -> dict[str, tuple[Counter[str], Counter[str], int]]:
        """Map a table to the sums of its first words, of its second words, and of all."""
        found = {}
        for name, table in self.tables.items():
            firsts: Counter[str] = Counter()
            seconds: Counter[str] = Counter()
            for (first, second), count in table.items():
                firsts[first] += count
                seconds[second] += count
            found[name] = firsts, seconds, firsts.total()
        return found

    def lift(self, table: str, first: str, second: str) -> float:
        """Return P(second | first) / P(second), above 0; 1 after a first word that was never counted.

        P(second | first) = (n(first, second) + PRIOR P(second)) / (n(first) + PRIOR); P(second) is smoothed
        by one occurrence of every second word and of one unknown word.
        """
        firsts, seconds, total = self._sums[table]
        share = (seconds[second] + 1) / (total + len(seconds) + 1)
        return (self.tables[table][first, second] / share + PRIOR) / (firsts[first] + PRIOR)

    def share(self, kind: str, word: str) -> float:
        """Return P(concept | kind), smoothed by half an occurrence of each counted concept, above 0."""
        table = self.tables[CONCEPT]
        firsts, seconds, _ = self._sums[CONCEPT]
        return (table[kind, word] + 0.5) / (firsts[kind] + 0.5 * (len(seconds) + 1))


def no_context() -> Context:
    """Return the counts of no captions."""
    return Context({name: Counter() for name in TABLES})


def count_context(captions: Iterable[Parsed]) -> Context:
    """Return the counts of parsed captions."""
    found = no_context()
    for parsed in captions:
        for name, first, second in _list_pairs(parsed):
            found.tables[name][first, second] += 1
    return found


def _list_pairs(parsed: Parsed) -> Iterator[tuple[str, str, str]]:
    for first, second in pairwise([START, *map(as_neighbour, find_words(parsed.text)), END]):
        yield NEAR, first, second
    concepts = parsed.concepts
    for one in concepts:
        yield CONCEPT, one.kind, one.word
        if one.kind == ATTRIBUTE and one.owner is not None:
            yield DESCRIBED, concepts[one.owner].word, one.word
        if one.kind == RELATION and one.sides is not None:
            yield LEFT, concepts[one.sides[0]].word, one.word
            yield RIGHT, one.word, concepts[one.sides[1]].word
    objects = sorted({one.word for one in concepts if one.kind == OBJECT})
    for first, second in permutations(objects, 2):
        yield TOGETHER, first, second


def as_neighbour(word: str) -> str:
    """Return a lower-case word as neighbours are counted: the article follows the next word's sound."""
    return "a" if word == "an" else word


def keep_commonest(context: Context, most: int = MOST_ENTRIES) -> Context:
    """Return the counts with the ``most`` commonest pairs of each table, ties by name."""
    kept = {}
    for name, table in context.tables.items():
        kept[name] = table
        if len(table) > most:
            ranked = sorted(table.items(), key=lambda one: (-one[1], one[0]))
            kept[name] = Counter(dict(ranked[:most]))
    return Context(kept)
