"""The packaged parser and lexicon, and the language of a text."""

import random
import re
import subprocess
import sys

import pytest
from score_heads import score_heads

from raycomp.language.lexicon import ABSTRACT, OPPOSITE
from raycomp.models.parser import (
    MAX_CHARACTERS,
    Parser,
    load_lexicon,
    load_parser,
    name_language,
    squeeze_spaces,
)
from raycomp.words import KINDS, OBJECT, RELATION
from tests.corpus import read_captions

HOSTILE = [
    *("", "   \n\t ", "a dog " * 20000, "x" * 100_000, "\U0001f600\U0001f436\u2764\ufe0f", "(((((((((("),
    "\u05db\u05dc\u05d1 \u05e8\u05e5 \u202e \u0643\u0644\u0628 \u72ac\u304c\u8d70\u308b",
    '<p class="x">a <b>black dog</b> &amp; a cat</p> <script>alert("hi")</script>',
    "see https://example.com/dog.jpg or mail dog@example.com",
    "a\x00b \ud800 \u200d dog 1 2 3 4k 1840s",
]


# What is no word, said plainly; its time grows with the cube of a caption's length.
PLAIN_NO_WORDS = re.compile(
    r"</?[A-Za-z][^<>]*>|<!--.*?-->|&#?\w{1,8};|(?:https?://|www\.)\S+|\S+@\S+\.\w+"
    r"|\b[\w-]+(?:\.[\w-]+)*\.(?:com|net|org|jpe?g|png)\b\S*|[\ud800-\udfff]"
)
PARTS = (
    "@ . - < > / ; & # _ a b \u00e9 <b> </ <!-- --> &amp; &#1 com org. .jpg .png www. http:// \ud800".split()
)


@pytest.fixture(scope="module")
def parser() -> Parser:
    return load_parser("raycomp")


@pytest.fixture(scope="module")
def captions(shared) -> list[str]:
    """400 real captions, 200 of each photo set, as drawn."""
    found = []
    for source in ("flickr8k_800", "cc_web_400"):
        texts = [caption for some in read_captions(shared, source) for caption in some]
        found += random.Random(1).sample(texts, 200)
    return found


def tidy_plainly(caption: str) -> tuple[str, list[int]]:
    blank = PLAIN_NO_WORDS.sub(lambda found: " " * len(found.group()), caption)
    words = list(re.finditer(r"\S+", blank))
    places = [place for word in words for place in range(word.start(), word.end() + 1)]
    return " ".join(word.group() for word in words), places


def test_tidying_equals_the_plain_pattern_on_short_strings():
    rng = random.Random(0)
    for _ in range(20_000):
        caption = "".join(rng.choice([*PARTS, " ", "\n"]) for _ in range(rng.randrange(1, 12)))
        assert squeeze_spaces(caption) == tidy_plainly(caption), ascii(caption)


IN_LITTLE_TIME = """
import resource, sys
from raycomp.models.parser import MAX_CHARACTERS, squeeze_spaces
used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
resource.setrlimit(resource.RLIMIT_CPU, (used + 12,) * 2)
for part in "@. @ . a. a- - -. a@ x@y. ;@ >@. <b>x <a <!-- &a www <".split():
    for end in ("", " ", ".com", "@a.b"):
        squeeze_spaces((part * MAX_CHARACTERS)[: MAX_CHARACTERS - len(end)] + end)
"""


def test_no_caption_takes_long_to_tidy():
    done = subprocess.run([sys.executable, "-c", IN_LITTLE_TIME], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_heads_against_hand_labels(parser):
    scores = score_heads(parser.parse)
    assert scores["flickr8k_800"]["f1"] >= 0.97
    assert scores["cc_web_400"]["f1"] >= 0.965
    assert scores["both"]["kind_agreement"] >= 0.95


def test_a_caption_has_the_same_tokens_alone_and_in_any_company(parser, captions):
    together = parser.tokens(captions)
    order = random.Random(2).sample(range(len(captions)), len(captions))
    shuffled = parser.tokens([captions[i] for i in order])
    assert [together[i] for i in order] == shuffled
    assert [parser.tokens([caption])[0] for caption in captions[::4]] == together[::4]


def test_any_text_is_parsed_and_none_crashes(parser):
    for caption, phrases in zip(HOSTILE, parser.parse(HOSTILE), strict=True):
        free, most = 0, min(len(caption), MAX_CHARACTERS)
        for one in phrases:
            assert free <= one.start <= one.target_start < one.target_end <= one.end <= most
            target, free = caption[one.target_start : one.target_end], one.end
            assert one.kind in KINDS and any(map(str.isalpha, target)) and not any(map(str.isspace, target))
    assert parser.parse([]) == []


def test_the_fingerprint_follows_the_files(parser, tmp_path):
    copy = tmp_path / "copy"
    parser.nlp.to_disk(copy)
    first, again = load_parser(str(copy)), load_parser(str(copy))
    assert first.fingerprint == again.fingerprint
    (copy / "NOTICE").write_text("changed")
    assert load_parser(str(copy)).fingerprint != first.fingerprint
    assert len(parser.fingerprint) == 64


def test_what_is_no_parser_is_named_in_one_line(tmp_path):
    import spacy

    spacy.blank("en").to_disk(tmp_path / "blank")
    said = r"spacy download|needs a tagger and a parser"
    for name in ["en_core_web_none", "/no/such/folder", str(tmp_path / "blank")]:
        with pytest.raises(ValueError, match=rf"^parser\.name='{name}': .*({said})") as caught:
            load_parser(name)
        assert "\n" not in str(caught.value), name


def test_the_language_of_a_text():
    for text, language in [
        ("A brown dog runs over the wet grass with a ball", "en"),
        ("Ein brauner Hund rennt mit einem Ball \u00fcber das nasse Gras", "de"),
        ("\u4e00\u53ea\u68d5\u8272\u7684\u72d7\u5728\u6e7f\u8349\u5730\u4e0a\u5954\u8dd1", "zh"),
        *((text, None) for text in ("", "  ", "123 456", "!?", "\U0001f600")),
    ]:
        assert name_language(text) == language, text


def test_words_of_the_lexicon_lead_somewhere_and_back():
    lexicon = load_lexicon()
    rows = lexicon.rows.values()
    objects = [row for row in rows if row.kind == OBJECT and row.category != ABSTRACT]
    assert sum(len(row.words) for row in objects) > 1000 and len({row.category for row in objects}) >= 40
    known = {word for row in rows for word in (*row.words, *row.parents, row.category)}
    for row in rows:
        assert {*row.fits} <= known and not {*row.parents} & {*row.words}, row
        assert row.instead or OPPOSITE not in row.marks, row
        for word in row.words if row.kind == OBJECT else ():
            plural = lexicon.plural(word)
            # Of "glass" and "glasses", "step" and "steps" the second is a thing of its own.
            assert lexicon.are_synonyms(plural, word) or lexicon.find(plural, OBJECT).word == plural
    for word in ("to the left of", "above", "in front of", "inside", "up", "into", "on", "small", "wet"):
        other = lexicon.opposite(word)
        assert other not in (None, word) and lexicon.are_synonyms(lexicon.opposite(other), word), word
    assert lexicon.opposite("red") is None


def test_verbs_inflect():
    lexicon = load_lexicon()
    for forms in [
        "hold holds holding held held",
        "carry carries carrying carried carried",
        "hug hugs hugging hugged hugged",
        "tie ties tying tied tied",
        "push pushes pushing pushed pushed",
    ]:
        verb, *inflected = forms.split()
        assert [lexicon.inflect(verb, tag) for tag in ("VBZ", "VBG", "VBD", "VBN")] == inflected
        assert all(lexicon.find(form, RELATION).word == verb for form in inflected), verb
