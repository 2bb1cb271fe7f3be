import os
import re
import subprocess
import sys

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
    make_counterfactual,
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
    for word, form in [
        ("dog", CONSONANT),
        ("Apple", VOWEL),
        ("dogs", PLURAL),
        ("boxes", PLURAL),
        ("Puppies", PLURAL),
        ("DVDs", PLURAL),
        ("firemen", PLURAL),
        ("children", PLURAL),
        ("bus", CONSONANT),
        ("grass", CONSONANT),
        ("tennis", CONSONANT),
        ("Christmas", CONSONANT),
        ("specimen", CONSONANT),
        ("lens", CONSONANT),
        ("skis", PLURAL),
        ("umbrella", VOWEL),
        ("unicorn", CONSONANT),
    ]:
        assert form_of(word) == form


def test_capitals_are_copied():
    for nonce, word, expected in [
        ("brero", "dog", "brero"),
        ("brero", "Dog", "Brero"),
        ("brero", "DOG", "BRERO"),
        ("brero", "B", "BRERO"),
        ("brero", "iPhone", "bRero"),
        ("hurlosk", "McDonald", "HuRlosk"),
        ("mups", "DVDs", "MUPs"),
        ("itos", "\u00c9l\u00e8ves", "Itos"),
    ]:
        assert copy_case(nonce, word) == expected


def test_words_of_a_target():
    for target, words in [
        ("dog", ["dog"]),
        ("dog's", ["dog"]),
        ("dogs'", ["dogs"]),
        ("Dog\u2019s", ["Dog"]),
        ("T-shirt", ["shirt"]),
        ("mother-in-law's", ["mother", "in", "law"]),
        ("F16", ["F"]),
        ("mp3", ["mp"]),
        ("caf\u00e9", ["caf\u00e9"]),
        ("cafe\u0301", ["cafe\u0301"]),
        ("42", []),
        ("\U0001f436", []),
        ("\u72d7", []),
        ("\u0441\u043e\u0431\u0430\u043a\u0430", []),
    ]:
        assert [target[start:end] for start, end in list_word_spans(target)] == words


def test_surface_of_the_target_stays():
    for target, shape in [
        ("Dog's", "[A-Z][a-z]+'s"),
        ("dogs'", "[a-z]+s'"),
        ("T-Shirts", "T-[A-Z][a-z]+s"),
        ("ICE-CREAM", "[A-Z]+-[A-Z]+"),
        ("MP3", "[A-Z]+3"),
    ]:
        (nonce,) = draw(target)
        assert re.fullmatch(shape, nonce)
        assert nonce != target


def test_nonces_are_distinct_and_never_the_target():
    assert sorted(draw("dog", count=9)) == ["brero", "sholm", "tairp"]
    assert sorted(draw("Sholm", count=9)) == ["Brero", "Tairp"]


def test_first_nonces_do_not_depend_on_how_many_are_drawn():
    assert draw("dog", count=3)[:1] == draw("dog", count=1)


def test_nonce_depends_on_target_length_key_and_seed_alone():
    assert draw("dog") == draw("dog")
    assert draw("Dog") == [draw("dog")[0].capitalize()]
    targets = [f"w{letter}g" for letter in "abcdefghijklmnop"]
    drawn = [draw(target) for target in targets]
    assert drawn != [draw(target, seed=1) for target in targets]
    assert drawn != [draw(target, key="sample") for target in targets]
    assert {*map(tuple, drawn)} == {("brero",), ("sholm",), ("tairp",)}
    assert draw("dog", num_tokens=2)[0] in POOLS[2, CONSONANT]


def test_nonces_are_the_same_in_every_process():
    targets = [f"w{letter}g" for letter in "abcdefghijklmnop"]
    code = (
        "from raycomp.language.phrases import draw_nonces; "
        f"print([draw_nonces(target, lambda word: 1, 2, 'uid', 3, {POOLS!r}) for target in {targets!r}])"
    )
    here = [draw(target, count=2, key="uid", seed=3) for target in targets]
    for hash_seed in ("1", "2"):
        process = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert process.stdout == f"{here}\n"


def test_no_nonce_where_a_word_is_too_long_or_there_is_none():
    assert draw("dog", num_tokens=13) == []
    assert draw("42") == []


def test_counterfactual_replaces_exactly_the_span():
    assert make_counterfactual("a dog, a dog", 2, 5, "brero") == "a brero, a dog"


A, B, DOG, TWO = [1, 2], [3, 4, 5], [9], [9, 8]


def test_faults_of_a_counterfactual():
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


def test_a_shared_first_token_belongs_to_the_target():
    for nonce, length, fault in [([9, 6], 6, None), ([9, 6], 5, PAST_CONTEXT)]:
        assert check_nonce([*A, *TWO, *B], [*A, *nonce, *B], TWO, nonce, length) == fault


def test_the_replaced_one_of_two_equal_targets_is_found():
    assert check_nonce([9, 1, 9], [9, 1, 7], [9], [7], 5) is None
    assert check_nonce([9, 1, 9], [9, 1, 7], [9], [7], 4) == PAST_CONTEXT
    assert check_nonce([9, 1, 9], [7, 1, 9], [9], [7], 4) is None
