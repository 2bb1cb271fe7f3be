"""Text-only measures of a caption, and which operations explain a hard negative.

The measures are its length, the likelihood of its words, their contexts and its sources. If they separate a
benchmark's captions from their negatives, a model can pass it without using the image. Words are runs of a to
z and apostrophes, lower-cased. Log-likelihoods are natural, the sum over the words of a caption and its end
mark. A corpus uses a word where another stands as often as the counts of pairs say: between its neighbours,
with an attribute, on a side of a relation, in one caption with other objects.

Operations are SWAP, REPLACE, ADD, one call or two, or none of them. The definition is over words alone, so it
holds for negatives of any origin. Of each caption the words count that ``concepts.read_words`` reads: not
articles, possessives, "and", forms of "be", modal verbs, relative pronouns; inflection and punctuation aside.
Pronouns count only where nothing else differs: else they agree with it.
A run of words is made of concepts (``concepts.name_concepts``):

- object: a noun or pronoun with all that stands before it in the phrase ("two small dogs", "cup of tea");
- relation: verbs, prepositions, particles ("is walking down", "in front of", "on the left of");
- attribute: adjectives, numerals, quantities ("a number of"), nouns and participles before a noun that did
  not change, adverbs alone.

Of the two captions, one positive and one negative,

- SWAP: the same words as often, in another order; prepositions may come, or may go, with a verb's object;
- REPLACE: exactly one run of words differs, and it is one concept in both;
- ADD: the positive is what remains of the negative without one run of words, and that run is one concept,
  an object with the relations that tie it in ("and a hat", "on a red mat");
- two calls: two such runs, or one run of two concepts, or a SWAP and a leftover run of one concept, where
  the SWAP moves at least one noun, adjective or verb;
- none: all other negatives, for one of ``REASONS``. In particular no operation deletes.

An explanation says that the words differ as an operation makes them differ, not that the meaning does: two
true captions of an image can be explained too. ``probe/overlap.py`` counts how often.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import pairwise, permutations
from math import log
from typing import Any, NamedTuple

from raycomp.language import concepts, lexicon
from raycomp.language.concepts import Edit, Parsed
from raycomp.language.lexicon import Token, Word
from raycomp.words import ADD, ATTRIBUTE, OBJECT, OPERATIONS, RELATION, REPLACE, SWAP

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
            sums: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
            for pair, count in table.items():
                for counts, word in zip(sums, pair, strict=True):
                    counts[word] += count
            found[name] = *sums, table.total()
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
    tables = found.tables
    for text, _, parts in captions:
        tables[NEAR].update(pairwise([START, *map(as_neighbour, find_words(text)), END]))
        tables[CONCEPT].update((one.kind, one.word) for one in parts)
        for one in parts:
            if one.kind == ATTRIBUTE and one.owner is not None:
                tables[DESCRIBED][parts[one.owner].word, one.word] += 1
            if one.kind == RELATION and one.sides is not None:
                tables[LEFT][parts[one.sides[0]].word, one.word] += 1
                tables[RIGHT][one.word, parts[one.sides[1]].word] += 1
        objects = {one.word for one in parts if one.kind == OBJECT}
        tables[TOGETHER].update(permutations(sorted(objects), 2))
    return found


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
    "coco": r"COCO_(?:train|val|test)\d{4}_0*(\d+)|cocodataset\.org/\S*?/0*(\d+)\.jpg",
    "flickr": r"\b(\d{6,11})_[0-9a-f]{8,10}(?:_\w)?\.jpg",
    "visual_genome": r"VG_100K(?:_2)?/(\d+)\.jpg",
}
# COCO's own file names since 2017: twelve digits alone, which keys of web shards have, too.
_BARE_COCO = re.compile(r"(?:^|/)0{6}(\d{6})\.jpg$")


def normalise_caption(caption: str) -> str:
    """Return a caption without what does not count: compatibility forms, case, punctuation, spacing."""
    return _LETTERS.sub(" ", unicodedata.normalize("NFKC", caption).casefold()).strip()


def list_grams(normalised: str) -> list[str]:
    """Return the runs of eight words of a normalised caption."""
    words = normalised.split()
    return [" ".join(words[i : i + GRAM_WORDS]) for i in range(len(words) - GRAM_WORDS + 1)]


def find_source_ids(name: str | None, is_test: bool = False) -> list[str]:
    """Return the ids of COCO, Flickr and Visual Genome in a file name or url, such as ``coco:397133``.

    A name of digits alone is COCO's only of a test image (``is_test``): else it may be a running number.
    """
    matches = [(source, one) for source, ids in _IDS.items() for one in re.finditer(ids, name or "")]
    matches += [("coco", one) for one in _BARE_COCO.finditer(name or "")] if is_test else []
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


Phrase = tuple[str, ...]
"""(noun,) or (noun, attribute)."""


def get_new_phrase(op: str, kind: str, concepts: Sequence[str], parsed: Parsed) -> Phrase:
    """Return what a REPLACE or an ADD brings in; () for other edits, and for relations of what is there."""
    own = [concept for concept in concepts if not concept.startswith("-")]
    if op not in (REPLACE, ADD) or not own or (op, kind) == (REPLACE, RELATION):
        return ()
    new = own[-1]
    if kind != ATTRIBUTE:
        return (new,)
    owners = [one.owner for one in parsed.concepts if (one.kind, one.word) == (ATTRIBUTE, new)]
    return (parsed.concepts[owners[0]].word, new) if owners and owners[0] is not None else ()


def say_phrase(phrase: Phrase) -> str:
    """Return the text whose embedding stands for a phrase."""
    said = " ".join(reversed(phrase))
    return f"a photo of {lexicon.choose_article(said)} {said}"


def count_captions(context: Context) -> int:
    """Return how many captions were counted."""
    return sum(count for (first, _), count in context.tables[NEAR].items() if first == START)


def count_phrase(phrase: Phrase, context: Context) -> int:
    """Return how often captions mention a phrase."""
    noun, *attributes = phrase
    tables = context.tables
    return tables[DESCRIBED][noun, attributes[0]] if attributes else tables[CONCEPT][OBJECT, noun]


# Ends of the classes of a difference in words or letters: 1, 2, 3 to 4, 5 to 8, more.
_SIZES = (1, 2, 4, 8)


def list_differences(caption: str, negative: str) -> Iterator[tuple[str, int]]:
    """Yield the words, and pairs of neighbours, that occur more often in one of the two: (name, caption's
    count minus negative's); then the sign of the difference in words and in letters, by its size.

    Exchanging the two changes the sign of every difference. ``core.refine`` makes their sums 0.
    """
    words = find_words(caption), find_words(negative)
    first, second = (Counter([*own, *map(" ".join, pairwise([START, *own, END]))]) for own in words)
    for name in sorted(first.keys() | second.keys()):
        if first[name] != second[name]:
            yield name, first[name] - second[name]
    for unit, (one, two) in (("words", map(len, words)), ("letters", map(len, (caption, negative)))):
        if one != two:
            yield f"#{unit} {sum(abs(one - two) > end for end in _SIZES)}", 1 if one > two else -1


SAME, POLARITY, DELETION, REWORDED = "same", "polarity", "deletion", "reworded"
REASONS = {
    SAME: "but for articles, inflection and punctuation the two captions are one",
    POLARITY: "only yes, no or not comes, goes or changes, which is no concept",
    DELETION: "the negative says less: a concept is gone and none stands for it",
    REWORDED: "more differs than two calls change",
}
MOST_CALLS = 2
TWO_CALLS, NONE = "two calls", "none"
ANSWERS = (*OPERATIONS, TWO_CALLS, NONE)


class Call(NamedTuple):
    """One call of an operation on a concept of some kind."""

    op: str
    kind: str


class Explanation(NamedTuple):
    """What made a negative: one or two calls in no particular order, or none and the reason why not."""

    calls: tuple[Call, ...]
    reason: str = ""

    @property
    def name(self) -> str:
        """SWAP, REPLACE, ADD, two of them joined by "+", or "" where nothing explains."""
        return "+".join(sorted(call.op for call in self.calls))

    @property
    def answer(self) -> str:
        """Which of ``ANSWERS`` it is."""
        return TWO_CALLS if len(self.calls) == 2 else self.name or NONE


Hunk = tuple[Sequence[Word], Sequence[Word]]
"""Words that differ at one place: those of the positive and those that stand there in the negative."""


def explain(positive: Sequence[Token], negative: Sequence[Token]) -> Explanation:
    """Return the fewest calls, at most two, that lead from the positive's tokens to the negative's.

    Between equally few, one run that differs goes before several, and both before a SWAP with a rest.
    """
    old, new = concepts.read_words(positive), concepts.read_words(negative)
    if lexicon.list_bases(old) == lexicon.list_bases(new):
        return Explanation((), SAME)
    nouns = [[word for word in words if word.base not in concepts.PRONOUNS] for words in (old, new)]
    if lexicon.list_bases(nouns[0]) != lexicon.list_bases(nouns[1]):
        old, new = nouns
    hunk = lexicon.cut_ends(old, new)
    if {word.letter for words in hunk for word in words} == {concepts.DENIAL}:
        return Explanation((), POLARITY)
    if kind := _find_swap(old, new):
        return Explanation((Call(SWAP, kind),))
    # What differs around the longest common run, then around the longest on either side, and so on; of
    # equally long runs the first one counts (Ratcliff and Obershelp's alignment).
    match = SequenceMatcher(None, lexicon.list_bases(old), lexicon.list_bases(new), autojunk=False)
    hunks = [(old[a:b], new[c:d]) for tag, a, b, c, d in match.get_opcodes() if tag != "equal"]
    found = [_count_calls([hunk]), _count_calls_after_swap(hunks), _count_calls(hunks)]
    known = [calls for calls in found if calls is not None and len(calls) <= MOST_CALLS]
    if known:
        return Explanation(min(known, key=len))
    is_shorter = _count_apart(old, new) and not _count_apart(new, old)
    return Explanation((), DELETION if is_shorter else REWORDED)


def _find_swap(old: Sequence[Word], new: Sequence[Word]) -> str:
    """Return the kind of what was exchanged if the same words stand in another order, else "".

    Links that only come or only go are the verb's ("[at] a child a woman nags"), no concept of their own.
    """
    lost, gained = _count_apart(old, new), _count_apart(new, old)
    if (lost and gained) or any(word.letter != concepts.LINK for word in (*lost, *gained)):
        return ""
    kept, kept_new = [word for word in old if word not in lost], [word for word in new if word not in gained]
    span, span_new = lexicon.cut_ends(kept, kept_new)
    size, old_bases, new_bases = len(span), lexicon.list_bases(span), lexicon.list_bases(span_new)
    for total in range(2, size + 1):  # the shortest blocks A, B: A x B before, B x A after
        for a in range(1, total):
            rest = size - total + a
            if old_bases[rest:] + old_bases[a:rest] + old_bases[:a] == new_bases:
                kinds = [_kind_of(block) for block in (span[:a], span[rest:])]
                is_move = total == size  # an attribute that moves past its noun
                if is_move and ATTRIBUTE in kinds:
                    return ATTRIBUTE
                return next(kind for kind in (OBJECT, RELATION, ATTRIBUTE) if kind in kinds)
    return _kind_of([word for word, base in zip(span, new_bases, strict=True) if word.base != base])


def _count_apart(words: Sequence[Word], others: Sequence[Word]) -> list[Word]:
    """Return those of ``words`` that ``others`` have less often."""
    spare = Counter(word.base for word in others)
    left = []
    for word in words:
        spare[word.base] -= 1
        if spare[word.base] < 0:
            left.append(word)
    return left


def _count_calls(hunks: Sequence[Hunk]) -> tuple[Call, ...] | None:
    """Return one call per concept replaced or added; None where a concept is deleted."""
    calls: list[Call] = []
    for words, new_words in hunks:
        old, new = concepts.name_concepts(words), concepts.name_concepts(new_words)
        if len(new) < len(old) or (words and not new):
            return None
        if words and not old:
            old = [new[0]]
        calls += [Call(REPLACE, kind) for kind in old]
        # A run adds its objects, which bring their relations along, and its other attributes.
        added = new[len(old) :]
        calls += [Call(ADD, kind) for kind in added if kind != RELATION]
        calls += [Call(ADD, kind) for kind in added[:1] if {*added} == {RELATION}]
    return tuple(calls)


def _count_calls_after_swap(hunks: Sequence[Hunk]) -> tuple[Call, ...] | None:
    """Return a SWAP of the words that only moved, and the calls that explain what remains."""
    lost, gained = ([word for hunk in hunks for word in hunk[side]] for side in (0, 1))
    left, left_new = _count_apart(lost, gained), _count_apart(gained, lost)
    kind = _kind_of([word for word in lost if word not in left and word.letter in "NAV"])
    old_runs = [run for old, _ in hunks if (run := [word for word in old if word in left])]
    new_runs = [run for _, new in hunks if (run := [word for word in new if word in left_new])]
    if not kind or len(old_runs) > 1 or len(new_runs) != 1:
        return None
    rest = _count_calls([(old_runs[0] if old_runs else [], new_runs[0])])
    return None if rest is None else (Call(SWAP, kind), *rest)


def _kind_of(words: Sequence[Word]) -> str:
    """Return the kind of words together: an object if one is a noun, else a relation if one is a verb, ..."""
    letters = {word.letter for word in words}
    if concepts.NOUN in letters:
        return OBJECT
    if concepts.ACTION in letters or not letters & {concepts.MODIFIER, concepts.ADVERB, concepts.DENIAL}:
        return RELATION if letters else ""
    return ATTRIBUTE


def is_regenerated(negative: str, edits: Sequence[Edit]) -> bool:
    """Report whether one of ``edits`` is the negative, but for case, punctuation and articles."""
    said = []
    for text in (negative, *(edit.text for edit in edits)):
        words = concepts.WORD.findall(text.lower())
        said.append([word for word in words if word not in lexicon.ARTICLES])
    return said[0] in said[1:]


def is_same_edit(positive: str, negative: str, op: str, edits: Sequence[Edit]) -> bool:
    """Return whether one of ``edits`` is of operation ``op`` and changes the same words as the negative.

    The words of the positive between the common start and the common end are compared by their positions;
    where words are only added it is the place they are added at.
    """

    def read(text: str) -> list[str]:
        words = concepts.WORD.findall(text.lower())
        return [lexicon.get_base_form(word) for word in words if word not in concepts.GLUE]

    old = read(positive)
    ends = lexicon.measure_ends(old, read(negative))
    return any(edit.op == op and lexicon.measure_ends(old, read(edit.text)) == ends for edit in edits)
