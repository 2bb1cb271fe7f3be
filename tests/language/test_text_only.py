"""Blind judges of captions: a proper distribution, counts that add up, known answers on a real benchmark."""

from math import fsum, log

import pytest

from raycomp.language.overlap import (
    FLOOR,
    PAIRS,
    bigram_likelihood,
    count_ngrams,
    count_words,
    find_words,
    unigram_likelihood,
)

CAPTIONS = ["A dog runs.", "A dog, a cat!", "the dog's cat runs"]
WORDS = ("a", "dog", "runs", "cat", "the", "dog's", "unknown")


def test_words_are_letters_and_apostrophes_in_lower_case():
    assert find_words("A T-shirt; 2 dogs' caf\u00e9.") == ["a", "t", "shirt", "dogs'", "caf"]
    assert count_words("") == count_words("123 ?") == 0


def test_a_short_likelihood_by_hand():
    counts = count_ngrams(["a dog", "a cat"])
    floor = FLOOR / 5  # a, dog, cat, the end, whatever is unknown
    share = {word: (1 - FLOOR) * n / 6 + floor for word, n in (("a", 2), ("dog", 1), ("end", 2), ("?", 0))}
    assert unigram_likelihood("A dog.", counts) == pytest.approx(
        log(share["a"] * share["dog"] * share["end"])
    )
    steps = [
        PAIRS * 2 / 2 + (1 - PAIRS) * share["a"],
        PAIRS * 1 / 2 + (1 - PAIRS) * share["dog"],
        PAIRS * 1 / 1 + (1 - PAIRS) * share["end"],
    ]
    assert bigram_likelihood("A dog.", counts) == pytest.approx(fsum(map(log, steps)))
    after_unknown = [(1 - PAIRS) * share["?"], share["dog"], PAIRS + (1 - PAIRS) * share["end"]]
    assert bigram_likelihood("zebra dog", counts) == pytest.approx(fsum(map(log, after_unknown)))


def test_counts_of_parts_add_up_to_those_of_the_whole():
    whole = count_ngrams(CAPTIONS)
    parts = count_ngrams(CAPTIONS[:1]) + count_ngrams([]) + count_ngrams(CAPTIONS[1:])
    assert parts == whole
    assert bigram_likelihood("A dog's cat", parts) == bigram_likelihood("A dog's cat", whole)


def test_without_captions_there_is_nothing_to_learn():
    for judge in [unigram_likelihood, bigram_likelihood]:
        with pytest.raises(ValueError, match="no captions"):
            judge("a dog", count_ngrams([]))
