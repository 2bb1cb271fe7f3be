"""Text-only measures of a caption: its length, and the likelihood of its words.

If they separate a benchmark's captions from their negatives, a model can pass it without using the image.
Words are runs of a to z and apostrophes, lower-cased. Log-likelihoods are natural, the sum over the words of
a caption and its end mark.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import log
from typing import Any

_WORD = re.compile(r"[a-z']+")
# No words: marks of a caption's start and end.
_START, _END = "<", ">"
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
    return sum(log(_pair_share(*pair, counts)) for pair in pairwise(_mark(caption)))


def _mark(caption: str) -> list[str]:
    return [_START, *find_words(caption), _END]


def _word_share(word: str, counts: Ngrams) -> float:
    if not counts.total:
        raise ValueError("no captions to learn words from")
    return (1 - FLOOR) * counts.words[word] / counts.total + FLOOR / (len(counts.words) + 1)


def _pair_share(before: str, word: str, counts: Ngrams) -> float:
    alone = _word_share(word, counts)
    # Every caption has one start and one end.
    num_before = counts.words[_END if before == _START else before]
    if not num_before:
        return alone
    return PAIRS * counts.pairs[before, word] / num_before + (1 - PAIRS) * alone
