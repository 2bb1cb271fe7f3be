"""Captions, prompts and replies by anyone: parsed, given nonces and negatives, a row for every row."""

import json
from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycomp.data.parquet import FAULTS, OTHERS, readable
from raycomp.language.phrases import REASONS, make_counterfactual
from raycomp.language.prompts import FORMS, REPLY_REASONS, read_reply
from raycomp.models.architecture import NonceMaker
from raycomp.models.parser import Parser, load_parser, squeeze_spaces
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from raycomp.negatives.write import choose_negatives, list_prompts, write_by_replies, write_by_rules
from raycomp.words import CAPTION, KINDS, NEGATIVE_STATUSES, NEGATIVES, OK, STATUS, UID
from tests.fuzz.child import run
from tests.fuzz.inputs import CAPTIONS, LONG, REPLIES, TEXTS

pytestmark = pytest.mark.slow

SENTENCE = "A brown dog runs next to a red car."


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
        words, places = squeeze_spaces(caption)
        assert len(places) >= len(words) and words == " ".join(words.split())
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


def make_table(captions: list[str | None], others: list[str]) -> pa.Table:
    def clean(text: str | None) -> str | None:
        return text and text.encode("utf-8", "replace").decode()

    columns = {
        UID: pa.array([f"{i:032x}" for i in range(len(captions))], pa.string()),
        CAPTION: pa.array([clean(caption) for caption in captions], pa.string()),
        OTHERS: pa.array([[clean(other) for other in others]] * len(captions), pa.list_(pa.string())),
    }
    return pa.table(columns)


def check_written(found: pa.Table, table: pa.Table) -> None:
    assert found[UID].to_pylist() == table[UID].to_pylist() and found[CAPTION].equals(table[CAPTION])
    for row, others in zip(found.to_pylist(), table[OTHERS].to_pylist(), strict=True):
        assert row[STATUS] in {OK, "no_caption", "empty_caption", *NEGATIVE_STATUSES}
        assert (row[STATUS] == OK) == bool(row[NEGATIVES]) and row.get(FAULTS, "") is not None
        assert all(one["text"] not in (row[CAPTION], "", *others) for one in row[NEGATIVES])


@given(st.lists(st.none() | CAPTIONS, max_size=3), st.lists(CAPTIONS, max_size=2), st.integers(1, 2))
def negatives(captions, others, calls):
    table = make_table(captions, others)
    config = NegativesConfig(negatives=WritingConfig(rank=False, calls=calls, candidates=2))
    written, again = (write_by_rules(table, config) for _ in range(2))
    assert written[NEGATIVES].equals(again[NEGATIVES]) and written[STATUS].equals(again[STATUS])
    check_written(choose_negatives(written, config.negatives), table)


@given(st.lists(REPLIES, min_size=1, max_size=6), st.lists(TEXTS | st.none(), min_size=1, max_size=2))
def written(texts, captions):
    table = make_table([SENTENCE, *captions], [])
    writing = WritingConfig(engine="http", rank=False, calls=2)
    config = NegativesConfig(negatives=writing, llm=LlmConfig(url="http://host/v1"))
    known: dict[str, str] = {}
    for _ in range(2):
        asked = list_prompts(table, config, known)
        known |= {prompt.key: texts[i % len(texts)] for i, prompt in enumerate(asked)}
    check_written(write_by_replies(table, config, known), table)


@given(REPLIES | st.none(), st.sampled_from(sorted(FORMS)))
def replies(text, form):
    fields = read_reply(text, form)
    if isinstance(fields, str):
        assert fields in REPLY_REASONS
        return
    assert all(0 < len(one) <= 300 and one.strip() and one.isprintable() for one in fields)
    text = text.rpartition("</think>")[2]
    found = json.loads(text[text.find("{") : text.rfind("}") + 1])
    assert fields == tuple(found[name] for name in FORMS[form])


def load() -> None:
    """Load the parser, the tokenizer and the lexicon."""
    parsed.hypothesis.inner_test([SENTENCE])
    negatives.hypothesis.inner_test([SENTENCE], [], 1)
    written.hypothesis.inner_test(["{}"], ["a dog"])


def test_texts():
    run(replies, 1500)
    for function in (parsed, negatives, written):
        run(function, 100)
