"""Captions and replies by anyone: parsed, given nonces and negatives, a row for every row."""

from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycomp.data.parquet import FAULTS, OTHERS, readable
from raycomp.language.phrases import REASONS, make_counterfactual
from raycomp.models.architecture import NonceMaker
from raycomp.models.parser import Parser, load_parser
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from raycomp.negatives.write import choose_negatives, list_prompts, write_by_replies, write_by_rules
from raycomp.words import (
    CAPTION,
    KINDS,
    NEGATIVE_STATUSES,
    NEGATIVES,
    OK,
    STATUS,
    UID,
)
from tests.fuzz.child import run
from tests.fuzz.inputs import CAPTIONS, LONG, REPLIES, TEXTS

pytestmark = pytest.mark.slow


@cache
def tools() -> tuple[Parser, NonceMaker]:
    """Return the packaged parser, and nonces under CLIP's tokenizer."""
    from open_clip.tokenizer import SimpleTokenizer

    return load_parser(), NonceMaker(SimpleTokenizer())


@given(st.lists(CAPTIONS | LONG, max_size=3))
def parsed(captions):
    parser, maker = tools()
    found = parser.parse(captions)
    assert len(found) == len(captions) and found == [parser.parse([caption])[0] for caption in captions]
    for caption, phrases in zip(captions, found, strict=True):
        text = readable(caption)
        targets = [(phrase.target_start, phrase.target_end) for phrase in phrases]
        for phrase in phrases:
            assert phrase.kind in KINDS
            assert 0 <= phrase.start <= phrase.target_start < phrase.target_end <= phrase.end <= len(caption)
        drawn = maker.make(text, targets, 2) if text == caption else []
        for (start, end), nonces in zip(targets, drawn, strict=bool(drawn)):
            assert nonces in REASONS if isinstance(nonces, str) else 0 < len(nonces) <= 2
            if not isinstance(nonces, str):
                changed = [maker.encode(make_counterfactual(caption, start, end, nonce)) for nonce in nonces]
                assert {len(tokens) for tokens in changed} == {len(maker.encode(caption))}


@given(st.lists(st.none() | CAPTIONS, max_size=3), st.lists(CAPTIONS, max_size=2), st.integers(1, 2))
def negatives(captions, others, calls):
    captions = [caption and caption.encode("utf-8", "replace").decode() for caption in captions]
    others = [other.encode("utf-8", "replace").decode() for other in others]
    table = pa.table(
        {
            UID: pa.array([f"{i:032x}" for i in range(len(captions))], pa.string()),
            CAPTION: pa.array(captions, pa.string()),
            OTHERS: pa.array([others] * len(captions), pa.list_(pa.string())),
        }
    )
    config = NegativesConfig(negatives=WritingConfig(rank=False, calls=calls, candidates=2))
    written, again = (write_by_rules(table, config) for _ in range(2))
    assert written[NEGATIVES].equals(again[NEGATIVES]) and written[STATUS].equals(again[STATUS])
    chosen = choose_negatives(written, config.negatives)
    assert chosen[UID].to_pylist() == table[UID].to_pylist() and chosen[CAPTION].equals(table[CAPTION])
    for row in chosen.to_pylist():
        assert row[STATUS] in {OK, "no_caption", "empty_caption", *NEGATIVE_STATUSES}
        assert (row[STATUS] == OK) == bool(row[NEGATIVES]) and row[FAULTS] is not None
        assert all(one["text"] not in (row[CAPTION], "", *others) for one in row[NEGATIVES])


@given(st.lists(REPLIES, min_size=1, max_size=6), st.lists(TEXTS | st.none(), min_size=1, max_size=2))
def written(texts, captions):
    captions = ["A brown dog runs next to a red car.", *captions]
    captions = [caption and caption.encode("utf-8", "replace").decode() for caption in captions]
    table = pa.table(
        {
            UID: pa.array([f"{i:032x}" for i in range(len(captions))], pa.string()),
            CAPTION: pa.array(captions, pa.string()),
            OTHERS: pa.array([[]] * len(captions), pa.list_(pa.string())),
        }
    )
    config = NegativesConfig(
        negatives=WritingConfig(engine="http", rank=False, calls=2), llm=LlmConfig(url="http://host/v1")
    )
    known: dict[str, str] = {}
    for _ in range(2):
        asked = list_prompts(table, config, known)
        known |= {prompt.key: texts[i % len(texts)] for i, prompt in enumerate(asked)}
    found = write_by_replies(table, config, known)
    assert found[UID].to_pylist() == table[UID].to_pylist() and found[CAPTION].equals(table[CAPTION])
    for row in found.to_pylist():
        assert row[STATUS] in {OK, "no_caption", "empty_caption", *NEGATIVE_STATUSES}
        assert (row[STATUS] == OK) == bool(row[NEGATIVES])


def load() -> None:
    """Load the parser, the tokenizer and the lexicon."""
    parsed.hypothesis.inner_test(["A brown dog runs next to a red car."])
    negatives.hypothesis.inner_test(["A brown dog runs next to a red car."], [], 1)
    written.hypothesis.inner_test(["{}"], ["a dog"])


def test_parsed():
    run(parsed, 150)


def test_negatives():
    run(negatives, 60)


def test_written():
    run(written, 100)
