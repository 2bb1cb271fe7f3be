"""Blind judges of captions: a proper distribution, counts that add up, known answers on a real benchmark."""

import json
from math import exp, fsum, log

import pytest

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.published import read_benchmark
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


def test_whatever_may_follow_has_a_probability_of_one_together():
    for judge in [unigram_likelihood, bigram_likelihood]:
        for before in ["", "a", "dog", "a cat", "never seen"]:
            counts = count_ngrams(CAPTIONS)
            # A word that follows is what the longer text has beyond the shorter one, both without their ends.
            ends = {text: judge(text, counts) for text in (before, *(f"{before} {word}" for word in WORDS))}
            if judge is unigram_likelihood:
                end = judge("", counts)
                shares = [exp(ends[f"{before} {word}"] - ends[before]) for word in WORDS]
            else:
                end = ends[before] - _open(before, counts)
                shares = [exp(_open(f"{before} {word}", counts) - _open(before, counts)) for word in WORDS]
            assert fsum([*shares, exp(end)]) == pytest.approx(1)


def _open(text, counts):
    """Return the bigrams' log-likelihood of a text that may go on, word by word."""
    words, total, before = find_words(text), 0.0, None
    n = {word: float(count) for word, count in counts.words.items()}
    for word in words:
        alone = (1 - FLOOR) * n.get(word, 0) / sum(n.values()) + FLOOR / (len(n) + 1)
        starts = [pair for pair in counts.pairs.elements() if pair[0] == (before or "<")]
        share = starts.count((before or "<", word)) / len(starts) if starts else None
        total += log(alone if share is None else PAIRS * share + (1 - PAIRS) * alone)
        before = word
    return total


def test_counts_of_parts_add_up_to_those_of_the_whole():
    whole = count_ngrams(CAPTIONS)
    parts = count_ngrams(CAPTIONS[:1]) + count_ngrams([]) + count_ngrams(CAPTIONS[1:])
    assert parts == whole
    assert bigram_likelihood("A dog's cat", parts) == bigram_likelihood("A dog's cat", whole)


def test_the_order_of_words_is_seen_by_pairs_alone():
    counts = count_ngrams(CAPTIONS)
    assert unigram_likelihood("runs dog a", counts) == pytest.approx(unigram_likelihood("a dog runs", counts))
    assert bigram_likelihood("a dog runs", counts) > bigram_likelihood("runs dog a", counts)


def test_without_captions_there_is_nothing_to_learn():
    for judge in [unigram_likelihood, bigram_likelihood]:
        with pytest.raises(ValueError, match="no captions"):
            judge("a dog", count_ngrams([]))


def test_the_shorter_caption_of_sugarcrepe(shared):
    choices = read_benchmark("sugarcrepe", Folder(str(shared / "data/benchmarks/sugarcrepe")))
    right: dict[str, list[float]] = {}
    for choice in choices:
        positive, negative = count_words(choice.positives[0]), count_words(choice.negatives[0])
        right.setdefault(choice.split, []).append((positive < negative) + (positive == negative) / 2)
    found = {split: round(100 * sum(values) / len(values), 1) for split, values in right.items()}
    assert (found.pop("add_att"), found.pop("add_obj")) == (99.3, 98.7)
    assert len(found) == 5 and all(44 <= value <= 55 for value in found.values())


def test_real_captions_are_likelier_than_their_words_shuffled(shared):
    lines = (shared / "data/flickr8k_800/captions.jsonl").read_text().splitlines()
    captions = [json.loads(line)["captions"] for line in lines]
    counts = count_ngrams(caption for ours in captions[:600] for caption in ours)
    held_out = [ours[0] for ours in captions[600:]]
    backwards = [" ".join(reversed(find_words(caption))) for caption in held_out]
    pairs = zip(held_out, backwards, strict=True)
    wins = [bigram_likelihood(a, counts) > bigram_likelihood(b, counts) for a, b in pairs]
    assert sum(wins) / len(wins) > 0.99
