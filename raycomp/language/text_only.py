"""Text-only measures of a caption: its length, the likelihood of its words, their contexts, its sources.

A corpus uses a word where another stands as often as these counts say: between its neighbours, with an
attribute, on a side of a relation, in one caption with other objects. Counts of parts of a corpus add up.

If they separate a benchmark's captions from their negatives, a model can pass it without using the image.
Words are runs of a to z and apostrophes, lower-cased. Log-likelihoods are natural, the sum over the words of
a caption and its end mark.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations
from math import log
from typing import Any

from raycomp.language.concepts import Parsed
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
    kept = dict(context.tables)
    for name, table in kept.items():
        if len(table) > most:
            ranked = sorted(table.items(), key=lambda one: (-one[1], one[0]))
            kept[name] = Counter(dict(ranked[:most]))
    return Context(kept)


GRAM_WORDS = 8
_LETTERS = re.compile(r"[\W_]+")
_IDS = {
    "coco": re.compile(
        r"COCO_(?:train|val|test)\d{4}_0*(\d+)|cocodataset\.org/\S*?/0*(\d+)\.jpg|\b0{6}(\d{6})\.jpg"
    ),
    "flickr": re.compile(r"\b(\d{6,11})_[0-9a-f]{8,10}(?:_\w)?\.jpg"),
    "visual_genome": re.compile(r"VG_100K(?:_2)?/(\d+)\.jpg"),
}


def normalise_caption(caption: str) -> str:
    """Return a caption without what does not count: compatibility forms, case, punctuation, spacing."""
    return _LETTERS.sub(" ", unicodedata.normalize("NFKC", caption).casefold()).strip()


def list_grams(normalised: str) -> list[str]:
    """Return the runs of eight words of a normalised caption."""
    words = normalised.split()
    return [" ".join(words[i : i + GRAM_WORDS]) for i in range(len(words) - GRAM_WORDS + 1)]


def find_source_ids(name: str | None) -> list[str]:
    """Return the ids of COCO, Flickr and Visual Genome in a file name or url, such as ``coco:397133``."""
    matches = ((source, one) for source, pattern in _IDS.items() for one in pattern.finditer(name or ""))
    return sorted({f"{source}:{int(next(filter(None, match.groups())))}" for source, match in matches})


_WORD = re.compile(r"[a-z']+")
# Shares of the uniform floor in words, and of pairs: of 1/256 to 1/4 and 1/4 to 7/8 those by which 3,000
# captions of Flickr8k make 1,000 of other images likeliest.
FLOOR, PAIRS = 1 / 8, 3 / 4


def find_words(text: str) -> list[str]:
    """Return the words of a text in order, lower-cased."""
    return _WORD.findall(text.lower())


def count_words(text: str) -> int:
    return len(find_words(text))


@dataclass(frozen=True)
class Ngrams:
    """How often words, and pairs of neighbours, occur in captions; the counts of parts add up by ``+``."""

    words: Counter[str]
    """With the end mark, once for every caption."""
    pairs: Counter[tuple[str, str]]
    """With the marks of both ends."""

    @cached_property
    def total(self) -> int:
        """How many words and end marks there are."""
        return self.words.total()

    def __add__(self, other: "Ngrams") -> "Ngrams":
        return Ngrams(self.words + other.words, self.pairs + other.pairs)


class _Without(Counter[Any]):
    """Counts without those of a part of the texts, of which only the part's own entries are stored."""

    def __init__(self, whole: Counter[Any], part: Counter[Any]):
        super().__init__()
        self.whole = whole
        self.lost = sum(whole[key] == count for key, count in part.items())
        self.sum = whole.total() - part.total()
        for key, count in part.items():
            self[key] = whole[key] - count

    def __missing__(self, key: Any) -> int:
        return self.whole[key]

    def __len__(self) -> int:
        return len(self.whole) - self.lost

    def total(self) -> int:
        return self.sum


def leave_out(whole: Ngrams, part: Ngrams) -> Ngrams:
    """Return the counts of all captions but those of ``part``, for reading; ``whole`` is not copied."""
    return Ngrams(_Without(whole.words, part.words), _Without(whole.pairs, part.pairs))


def count_ngrams(captions: Iterable[str]) -> Ngrams:
    """Return the counts of captions; of words in them only those of ``find_words`` count."""
    words: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for caption in captions:
        marked = _mark(caption)
        words.update(marked[1:])
        pairs.update(pairwise(marked))
    return Ngrams(words, pairs)


def unigram_likelihood(caption: str, counts: Ngrams) -> float:
    """Return the log-likelihood of a caption's words one by one, in nats, at most 0.

    P1(w) = (1 - FLOOR) n(w) / n + FLOOR / V. V counts the known words, the end mark and one class for all
    unknown words, which have n(w) = 0. Raises ValueError where nothing was counted.
    """
    return sum(log(_word_share(word, counts)) for word in _mark(caption)[1:])


def bigram_likelihood(caption: str, counts: Ngrams) -> float:
    """Return the log-likelihood of a caption, each word given the one before, in nats, at most 0.

    Jelinek-Mercer: P2(w | v) = PAIRS n(v w) / n(v) + (1 - PAIRS) P1(w); P1(w) alone after an unknown v.
    Raises ValueError where nothing was counted.
    """
    logs = []
    for before, word in pairwise(_mark(caption)):
        share = _word_share(word, counts)
        # Every caption has one start and one end.
        num_before = counts.words[END if before == START else before]
        if num_before:
            share = PAIRS * counts.pairs[before, word] / num_before + (1 - PAIRS) * share
        logs.append(log(share))
    return sum(logs)


def _mark(caption: str) -> list[str]:
    return [START, *find_words(caption), END]


def _word_share(word: str, counts: Ngrams) -> float:
    if not counts.total:
        raise ValueError("no captions to learn words from")
    return (1 - FLOOR) * counts.words[word] / counts.total + FLOOR / (len(counts.words) + 1)
