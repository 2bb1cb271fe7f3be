"""What turns one text into another; likelihoods by counts of words; ids of collections and runs of words."""

from math import fsum, log

import pytest

from raycomp.language.concepts import Edit
from raycomp.language.lexicon import Token
from raycomp.language.overlap import (
    DELETION,
    FLOOR,
    PAIRS,
    POLARITY,
    REWORDED,
    SAME,
    bigram_likelihood,
    count_ngrams,
    count_words,
    explain,
    find_source_ids,
    find_words,
    is_regenerated,
    is_same_edit,
    list_grams,
    unigram_likelihood,
)
from raycomp.words import ADD, ATTRIBUTE, OBJECT, RELATION, REPLACE, SWAP

TAGS = {
    "NN": "cat mat man woman table hat bowl soup sky leash horse group umbrella stop sign",
    "NNS": "dogs cats people sheep",
    "JJ": "red black blue small solitary",
    "VBZ": "is sits sleeps chases nags scolds holds",
    "VBG": "sitting holding riding feeding sleeping walking",
    "VBN": "covered",
    "IN": "on under of in with at over",
    "DT": "a an the no some",
    "CD": "two three 4",
    "CC": "and or",
    "PRP": "he she it him",
    "RB": "not exactly",
    "EX": "there",
}
TAG_OF = {word: tag for tag, words in TAGS.items() for word in words.split()}


def tokens(text):
    found, place = [], 0
    for i, word in enumerate(text.split()):
        start = text.index(word, place)
        place = start + len(word)
        found.append(Token(word, start, place, TAG_OF.get(word.lower(), "."), "dep", i))
    return found


def name(positive, negative):
    answer = explain(tokens(positive), tokens(negative))
    return [tuple(call) for call in answer.calls] or answer.reason


def test_the_fewest_calls_are_named():
    for positive, negative, said in [
        # one call
        ("a cat on a mat", "a mat on a cat", [(SWAP, OBJECT)]),
        ("a red cat and a black hat", "a black cat and a red hat", [(SWAP, ATTRIBUTE)]),
        ("two cats and a red hat", "two red cats and a hat", [(SWAP, ATTRIBUTE)]),
        ("a woman nags a man", "a man nags at a woman", [(SWAP, OBJECT)]),
        ("a cat on a mat", "a hat on a mat", [(REPLACE, OBJECT)]),
        ("a red cat", "a black cat", [(REPLACE, ATTRIBUTE)]),
        ("4 cats on a mat", "two cats on a mat", [(REPLACE, ATTRIBUTE)]),
        ("a cat sitting on a mat", "a cat sleeping under a mat", [(REPLACE, RELATION)]),
        ("a bowl of soup on a table", "a red hat on a table", [(REPLACE, OBJECT)]),
        ("a group of cats", "a solitary cat", [(REPLACE, ATTRIBUTE)]),
        ("a cat on a mat", "a cat on a red mat", [(ADD, ATTRIBUTE)]),
        ("a cat on a mat", "a cat and a hat on a mat", [(ADD, OBJECT)]),
        ("a cat on a mat", "a cat with a red leash on a mat", [(ADD, OBJECT)]),
        ("a cat on a mat", "a cat sitting on a mat", [(ADD, RELATION)]),
        # what follows from the edit counts as nothing of its own
        ("a cat is on an umbrella", "cats are on an umbrella", SAME),
        ("a woman holds her hat with him", "a man holds his hat with it", [(REPLACE, OBJECT)]),
        # two calls
        ("a red cat on a mat", "a black cat on a table", [(REPLACE, ATTRIBUTE), (REPLACE, OBJECT)]),
        ("a cat on a mat", "a red cat on a small mat", [(ADD, ATTRIBUTE), (ADD, ATTRIBUTE)]),
        ("a cat on a mat", "a mat under a cat", [(SWAP, OBJECT), (REPLACE, RELATION)]),
        ("a man riding a horse", "a man feeding sheep", [(REPLACE, RELATION), (REPLACE, OBJECT)]),
        # none
        ("a red cat on a mat", "a cat on a mat", DELETION),
        ("there is a cat", "there is no cat", POLARITY),
        ("a red cat on a mat", "a man riding a small horse over some dogs", REWORDED),
    ]:
        assert name(positive, negative) == said


def edit(text, op):
    return Edit(text, op, OBJECT, (), ())


def test_an_edit_is_found_again_by_its_words_or_its_place():
    positive, negative = "A cat on a mat.", "A hat on a mat."
    assert is_regenerated(negative, [edit("a dog on a mat", REPLACE), edit("the hat on a mat", REPLACE)])
    assert not is_regenerated(negative, [edit("a hats on a mat", REPLACE)])
    assert is_same_edit(positive, negative, REPLACE, [edit("an owl on a mat", REPLACE)])
    assert not is_same_edit(positive, negative, REPLACE, [edit("a cat on a table", REPLACE)])
    assert not is_same_edit(positive, negative, SWAP, [edit("an owl on a mat", REPLACE)])
    assert is_same_edit(positive, "A cat on a red mat", ADD, [edit("a cat on a small mat", ADD)])
    assert not is_same_edit(positive, "A red cat on a mat", ADD, [edit("a cat on a small mat", ADD)])


CAPTIONS = ["A dog runs.", "A dog, a cat!", "the dog's cat runs"]


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
    assert count_ngrams(CAPTIONS[:1]) + count_ngrams([]) + count_ngrams(CAPTIONS[1:]) == whole
    assert find_words("A T-shirt; 2 dogs' caf\u00e9.") == ["a", "t", "shirt", "dogs'", "caf"]
    assert count_words("") == count_words("123 ?") == 0
    for judge in [unigram_likelihood, bigram_likelihood]:
        with pytest.raises(ValueError, match="no captions"):
            judge("a dog", count_ngrams([]))


def test_ids_in_names_and_runs_of_eight_words():
    for name, ids in [
        ("COCO_val2014_000000397133.jpg", ["coco:397133"]),
        ("http://images.cocodataset.org/val2017/000000397133.jpg", ["coco:397133"]),
        ("https://farm1.staticflickr.com/2/1000268201_693b08cb0e.jpg", ["flickr:1000268201"]),
        ("1000268201_693b08cb0e_z.jpg", ["flickr:1000268201"]),
        ("https://cs.stanford.edu/people/rak248/VG_100K_2/2321.jpg", ["visual_genome:2321"]),
        *((other, []) for other in ("photo.jpg", "12.jpg", "shard/000000123", None)),
    ]:
        assert find_source_ids(name) == ids
    assert find_source_ids("pool/000000397133.jpg") == [], "a running number of a web shard"
    assert find_source_ids("val2017/000000397133.jpg", is_test=True) == ["coco:397133"]
    assert list_grams("one two three four five six seven") == []
    assert list_grams("a b c d e f g h i") == ["a b c d e f g h", "b c d e f g h i"]
