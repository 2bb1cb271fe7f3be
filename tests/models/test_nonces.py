"""Nonces of phrases keep all other tokens; tokens without open_clip are open_clip's."""

import json
import re
from functools import cache

import open_clip
import pytest
from open_clip.tokenizer import SimpleTokenizer

from raycomp.config import ModelConfig
from raycomp.language.phrases import (
    CONSONANT,
    NO_NONCE_OF_LENGTH,
    NOT_A_WORD,
    PAST_CONTEXT,
    PLURAL,
    TOKENS_CHANGE,
    VOWEL,
    copy_case,
    form_of,
    make_counterfactual,
)
from raycomp.models.architecture import NonceMaker, WordEncoder, load_nonce_pools, load_nonces, load_tokens
from raycomp.models.clip import load_tokenizer
from tests.corpus import read_captions

TOKENIZER = open_clip.get_tokenizer("ViT-B-32")


@cache
def maker() -> NonceMaker:
    return NonceMaker(TOKENIZER)


def make(caption: str, *targets: str, count: int = 1, key: str = "") -> list:
    """Return what the maker finds for the first place of each target."""
    starts = [caption.index(target) for target in targets]
    spans = [(start, start + len(target)) for start, target in zip(starts, targets, strict=True)]
    return maker().make(caption, spans, count, key)


@pytest.fixture(scope="module")
def captions(shared) -> list[str]:
    return [text for some in read_captions(shared, "flickr8k_800", "cc_web_400") for text in some]


def test_pools_hold_what_they_say():
    """One-token nonces are few: 4 at least, so that a target can have several."""
    for (num_tokens, form), pool in load_nonce_pools().items():
        assert len({*pool}) == len(pool) >= (4 if num_tokens == 1 else 16)
        for nonce in pool:
            assert len(TOKENIZER.encode(nonce)) == num_tokens
            assert form_of(nonce) == form
    assert {*load_nonce_pools()} == {(n, form) for n in range(1, 13) for form in (CONSONANT, VOWEL, PLURAL)}


def test_one_token_nonces_miss_no_letter_and_end_no_one_word():
    """Nonces that a letter more, or a beginning, turns into this word and hardly another."""
    ones = [nonce.word for nonce in load_nonces() if nonce.num_tokens == 1]
    for word in "hound hind retro mumps action sashimi binoculars sombrero teriyaki".split():
        shorter = {word[:i] + word[i + 1 :] for i in range(len(word))}
        assert not [nonce for nonce in ones if nonce in shorter or word.endswith(nonce)], word


@pytest.mark.slow
def test_no_nonce_is_a_word_or_name():
    """Of all languages in Latin letters; a one-token nonce may be an entry rarer than Zipf 1.7 (0.05 ppm)."""
    wordfreq = pytest.importorskip("wordfreq", reason="the word list is a development dependency")
    least_zipf = {
        nonce: 1.7 if key[0] == 1 else 0 for key, pool in load_nonce_pools().items() for nonce in pool
    }
    other_scripts = {*"ar bg bn el fa he hi ja ko mk ru ta uk ur zh".split()}
    known = []
    for language in {*wordfreq.available_languages("best")} - other_scripts:
        for centibels, words in enumerate(wordfreq.get_frequency_list(language, "best")):
            found = least_zipf.keys() & {*words}
            known += [(word, language) for word in found if 9 - centibels / 100 >= least_zipf[word]]
    assert known == []


def test_whole_captions_keep_all_other_tokens(captions):
    """Every fifth word of all captions, against plain open_clip encodings of both texts."""
    invalid = 0
    for i, caption in enumerate(captions):
        spans = [match.span() for match in re.finditer(r"[^\W\d_]+", caption)][i % 5 :: 5]
        for (start, end), nonces in zip(spans, maker().make(caption, spans, 1), strict=True):
            if isinstance(nonces, str):
                invalid += 1
                continue
            before, target, after = map(
                TOKENIZER.encode, (caption[:start], caption[start:end], caption[end:])
            )
            counterfactual = TOKENIZER.encode(make_counterfactual(caption, start, end, nonces[0]))
            assert TOKENIZER.encode(caption) == before + target + after
            assert counterfactual == before + TOKENIZER.encode(nonces[0]) + after
            assert len(counterfactual) == len(before) + len(target) + len(after)
            assert len(before) + len(target) <= 75
            assert target != TOKENIZER.encode(nonces[0])
    assert invalid < 100


def test_fast_encoding_is_the_tokenizers_own(captions):
    odd = [
        "<start_of_text> a 'tis & <b>",
        "x\x1b[31mred",
        "tab\there\r\n",
        "don't  WE'LL",
        "\u201cDog\u201d",
        "a\x00b",
    ]
    for caption in [*captions, *odd]:
        assert maker().encode(caption) == TOKENIZER.encode(caption)


# White space, joined words, apostrophes, special tokens and what cleaning changes, around a word.
FRAMES = """{} | {}| a {}'s b|the '{}' c|'{}|{}'|{}'tis|{}s'x|x{}|{}x|{}-shirt|a.{}.b|1{}2|{}2nd|({})!|<{}>
<end_of_text>{}|<start_of_{}> a|&{};|a &amp; {}|{}\u2019s|\u212a{}|{}\u017f|caf\u00e9 {}|\u00e2\u20ac\u2122{}
x\t{}\ty|{}\u2014|don't {} we'll|{} \U0001f600"""
TARGETS = "dog cat S t ll Ve d o's T-shirt F16 1st U.S. start_of_text end 'tis re's".split()


def assert_spliced(tokenizer, caption: str, spans: list[tuple[int, int]], count: int = 2) -> int:
    """Replace every span's letters by nonces of any length, against the whole text; return how many."""
    pool, words = load_nonces(), WordEncoder(tokenizer)
    for place, (start, end) in enumerate(spans):
        for i in range(count):
            nonce = pool[(97 * len(caption) + 31 * place + 7 * i) % len(pool)].word
            other = re.sub(
                "[A-Za-z]+", lambda found, nonce=nonce: copy_case(nonce, found[0]), caption[start:end]
            )
            whole = make_counterfactual(caption, start, end, other)
            assert words.splice(caption, start, end, other) == tokenizer.encode(whole), whole
    return count * len(spans)


def test_spliced_tokens_are_those_of_the_whole_text():
    captions = [frame.replace("{}", target) for frame in re.split(r"[|\n]", FRAMES) for target in TARGETS]
    for caption in captions:
        spans = [found.span() for found in re.finditer(r"[A-Za-z]+|\S+?(?=\W*$)|\S+", caption)]
        spans += [found.span() for target in TARGETS for found in re.finditer(re.escape(target), caption)]
        assert_spliced(TOKENIZER, caption, spans, 4)
    more = SimpleTokenizer(additional_special_tokens=["red dog"])  # joins two words
    assert_spliced(more, "a red dog on a mat", [(2, 5), (6, 9), (15, 18)])


@pytest.mark.slow
def test_spliced_tokens_of_real_captions_are_those_of_the_whole_text(captions):
    """Every run of letters, on 100,000 counterfactuals."""
    num = 0
    for caption in captions:
        spans = [found.span() for found in re.finditer(r"[^\W\d_]+", caption)]
        num += assert_spliced(TOKENIZER, caption, spans, 4)
    assert num > 100_000


def test_everything_behind_the_first_target_past_the_cut_is_past_it():
    caption = "dog " * 25_000
    spans = [(i, i + 3) for i in range(0, len(caption), 4)]
    found = maker().make(caption, spans, 1)
    assert [isinstance(nonces, list) for nonces in found[:75]] == [True] * 75
    assert {*found[75:]} == {PAST_CONTEXT}
    for before in (73, 74):  # of two tokens neither straddles it
        found = make("the " * before + "labradoodles sleep on", "labradoodles")
        assert (found == [PAST_CONTEXT]) == (before > 73), before


def test_odd_captions_and_reasons():
    for caption in [
        "a &lt;b&gt;dog&lt;/b&gt; here",
        "\U0001f436\U0001f436 a dog \u2764\ufe0f",
        "  a\t dog \r\n here ",
        "\u0627\u0644\u0643\u0644\u0628 dog \u05db\u05dc\u05d1",
        "sch\u00c3\u00b6n a dog \ufb01sh",
    ]:
        ((nonce,),) = make(caption, "dog")
        left, right = map(TOKENIZER.encode, (caption, caption.replace("dog", nonce)))
        assert sum(one != two for one, two in zip(left, right, strict=True)) == 1, caption
    for caption, target, reason in [
        ("a catfish", "cat", TOKENS_CHANGE),
        ("black &amp; white", "amp", TOKENS_CHANGE),
        ("gate 42", "42", NOT_A_WORD),
        ("q" + "wxz" * 30, "q" + "wxz" * 30, NO_NONCE_OF_LENGTH),
    ]:
        assert make(caption, target) == [reason], (caption, target, reason)


def test_other_tokenizers_are_refused_by_name():
    class HFTokenizer:
        context_length = 64

    with pytest.raises(ValueError, match=r"ViT-B-16-SigLIP.*HFTokenizer"):
        NonceMaker(HFTokenizer(), model="ViT-B-16-SigLIP")
    for changes in ({"clean": "whitespace"}, {"clean": "canonicalize"}, {"reduction_mask": "simple"}):
        with pytest.raises(ValueError, match=r"tiny.*lower-cases and truncates"):
            NonceMaker(open_clip.tokenizer.SimpleTokenizer(**changes), model="tiny")


def test_a_nonce_suits_the_article_before_it():
    plain = [(article, target) for article in ("a", "AN") for target in ("hour", "dog", "apple", "girls")]
    for before, target in [*plain, ("an", "HOUR"), ("a", "one-way street"), ('she says "an', "unicorn")]:
        caption, start = f"{before} {target} on the grass", len(before) + 1
        [nonces] = maker().make(caption, [(start, start + len(target))], 8)
        vowels = {nonce[0].lower() in "aeiou" for nonce in nonces}
        assert vowels == {before.lower().endswith("n")}, (before, target)


TEXTS = ["a photo", "", "Zwei Hunde &amp; ein Kind, it's 12!", "caf\u00e9 \U0001f408 " * 60, "<end_of_text>"]


def write_model(folder, **text) -> str:
    path = folder / "model.json"
    text = {"context_length": 16, "width": 64, "heads": 1, "layers": 1, **text}
    vision = {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16}
    path.write_text(json.dumps({"embed_dim": 8, "vision_cfg": vision, "text_cfg": text}))
    return str(path)


def test_tokens_are_open_clips(tmp_path):
    for name in ["ViT-B-32", "ViT-B/32", "RN50", "file"]:
        config = ModelConfig(name=write_model(tmp_path) if name == "file" else name, weights="random:0")
        assert load_tokens(config)(TEXTS).tolist() == load_tokenizer(config)(TEXTS).tolist(), name
    (tmp_path / "other").mkdir()
    other = ModelConfig(write_model(tmp_path / "other", tokenizer_kwargs={"clean": "whitespace"}), "random:0")
    found = load_tokens(other)(["A Photo"]).tolist()
    assert found == load_tokenizer(other)(["A Photo"]).tolist()
    assert found != load_tokens(ModelConfig())(["A Photo"])[:, :16].tolist()


def test_a_target_has_the_same_first_nonces_everywhere_unless_the_key_is_the_sample():
    words = "dog cat tree house car bird boat grass road fence".split()
    caption = " ".join(words)
    everywhere, four = make(caption, *words), make(caption, *words, count=4)
    assert [each[:1] for each in four] == everywhere and all(len({*each}) == 4 for each in four)
    assert [make(f"a red {word} !", word)[0] for word in words] == everywhere
    assert make(caption, *words, key="uid 1") != make(caption, *words, key="uid 2") != everywhere
    spans = [match.span() for match in re.finditer(r"\w+", caption)]
    assert NonceMaker(TOKENIZER, seed=1).make(caption, spans, 1) != everywhere
