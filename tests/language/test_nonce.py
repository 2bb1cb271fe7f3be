import re

from raycomp.language.phrases import (
    CONSONANT,
    PAST_CONTEXT,
    PLURAL,
    TOKENS_CHANGE,
    VOWEL,
    check_nonce,
    copy_case,
    draw_nonces,
    form_of,
    list_word_spans,
)

POOLS = {
    (1, CONSONANT): ["brero", "sholm", "tairp"],
    (1, VOWEL): ["amoto", "ooza", "eroy"],
    (1, PLURAL): ["mups", "kians", "itos"],
    (2, CONSONANT): ["hurlosk", "gomdank", "jacird"],
}


def draw(target, count=1, key="", seed=0, num_tokens=1):
    return draw_nonces(target, lambda word: num_tokens, count, key, seed, POOLS)


def test_form_follows_plural_and_first_letter():
    for form, words in (
        (PLURAL, "dogs boxes Puppies DVDs firemen children skis"),
        (CONSONANT, "dog bus grass tennis Christmas specimen lens unicorn"),
        (VOWEL, "Apple umbrella"),
    ):
        assert {form_of(word) for word in words.split()} == {form}


def test_surface_of_the_target_stays():
    for target, words, shape in [
        ("dog", ["dog"], "[a-z]+"),
        ("Dog's", ["Dog"], "[A-Z][a-z]+'s"),
        ("dogs'", ["dogs"], "[a-z]+s'"),
        ("Dog\u2019s", ["Dog"], "[A-Z][a-z]+\u2019s"),
        ("T-Shirts", ["Shirts"], "T-[A-Z][a-z]+s"),
        ("mother-in-law's", ["mother", "in", "law"], "[a-z]+-[a-z]+-[a-z]+'s"),
        ("ICE-CREAM", ["ICE", "CREAM"], "[A-Z]+-[A-Z]+"),
        ("MP3", ["MP"], "[A-Z]+3"),
        ("cafe\u0301", ["cafe\u0301"], "[a-z]+"),
    ]:
        assert [target[start:end] for start, end in list_word_spans(target)] == words
        (nonce,) = draw(target)
        assert re.fullmatch(shape, nonce) and nonce != target, target
    pairs = {"Dog": "Brero", "B": "BRERO", "iPhone": "bRero", "DVDs": "BREro"}
    assert {word: copy_case("brero", word) for word in pairs} == pairs
    assert draw("dog", num_tokens=13) == draw("42") == draw("\u72d7") == []


A, B, DOG = [1, 2], [3, 4, 5], [9]


def test_faults_of_a_counterfactual():
    """Of two equal targets the replaced one is found."""
    for counterfactual, target, nonce, length, fault in [
        ([*A, 7, *B], DOG, [7], 77, None),
        ([*A, 7, *B], DOG, [7], 5, None),
        ([*A, 7, *B], DOG, [7], 4, PAST_CONTEXT),
        ([*A, 7, 6, *B], DOG, [7, 6], 77, TOKENS_CHANGE),
        ([*A, 7, *B, 3], DOG, [7], 77, TOKENS_CHANGE),
        ([*A, 7, 3, 4, 6], DOG, [7], 77, TOKENS_CHANGE),
        ([1, 6, 7, *B], DOG, [7], 77, TOKENS_CHANGE),
        ([*A, *DOG, *B], DOG, DOG, 77, TOKENS_CHANGE),
        ([*A, *DOG, *B], DOG, [7], 77, TOKENS_CHANGE),
    ]:
        assert check_nonce([*A, *DOG, *B], counterfactual, target, nonce, length) == fault
    for counterfactual, length, fault in [
        ([9, 1, 7], 5, None),
        ([9, 1, 7], 4, PAST_CONTEXT),
        ([7, 1, 9], 4, None),
    ]:
        assert check_nonce([9, 1, 9], counterfactual, [9], [7], length) == fault
