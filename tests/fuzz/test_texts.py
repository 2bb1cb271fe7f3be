"""Texts before any model: captions tidied, prompts made, and what a language model or its server replies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycomp.language.prompts import FORMS, MAX_REPLY, REPLY_REASONS, make_messages, read_reply
from raycomp.models.parser import MAX_CHARACTERS, squeeze_spaces
from raycomp.negatives.ask import AskServer, Secret, read_seconds
from raycomp.negatives.config import LlmConfig
from raycomp.words import OPERATIONS
from tests.fuzz.child import run
from tests.fuzz.inputs import CAPTIONS, EDITS, JSON_VALUES, LONG, ODD_JSON, REPLIES, TEXTS, damage

pytestmark = pytest.mark.slow

KEY = "sk-never-to-be-seen-4711"
BODIES = (
    REPLIES.map(lambda text: json.dumps({"choices": [{"message": {"content": text}}]}))
    | JSON_VALUES.map(lambda value: json.dumps({"choices": value}))
    | JSON_VALUES.map(lambda value: json.dumps({"choices": [{"message": {"content": value}}]}))
    | REPLIES
)


@given(REPLIES | st.none(), st.sampled_from(sorted(FORMS)))
def replies(text, form):
    fields = read_reply(text, form)
    if isinstance(fields, str):
        assert fields in REPLY_REASONS
        return
    assert all(0 < len(one) <= 300 and one.strip() and one.isprintable() for one in fields)
    assert json.loads(text) == dict(zip(FORMS[form], fields, strict=True))


@given(st.sampled_from(OPERATIONS), TEXTS | ODD_JSON, st.lists(TEXTS, max_size=2))
def prompts(op, caption, taken):
    messages = make_messages(op, caption, taken)
    last = messages[-1]["content"]
    assert last.count("<") == last.count(">") == 4 and len(last.splitlines()) >= 2
    json.dumps(messages, ensure_ascii=False).encode()


@given(
    BODIES, EDITS, st.sampled_from([200, 200, 200, 400, 401, 429, 500, 302, 599]), st.booleans(), st.text()
)
def answers(body, edits, status, has_key, retry_after):
    data = damage(body.encode("utf-8", "surrogatepass"), edits[:1])
    if has_key:
        data = damage(data, [("insert", len(data) // 2, 1, KEY.encode())])
    server = AskServer(LlmConfig(url="http://nowhere"), Secret(KEY))
    assert 0 <= read_seconds(retry_after) <= 86_400
    answer = server._judge(status, 0.0, data)
    assert (answer.reply is None) != (answer.error is None)
    said = answer.reply if answer.error is None else answer.error
    assert KEY not in said and said.encode() is not None
    if answer.error is None:
        assert status == 200 and len(said) <= MAX_REPLY + 1
    else:
        assert 0 < len(said) <= 300 and len(said.splitlines()) == 1


@given(CAPTIONS | LONG | st.text())
def tidied(caption):
    words, places = squeeze_spaces(caption)
    assert len(places) >= len(words) and places == sorted(places)
    assert all(words[i] == " " or words[i] == caption[places[i]] for i in range(len(words)))
    assert len(words) <= MAX_CHARACTERS + 1 and words == " ".join(words.split())
    words.encode()


def test_replies():
    run(replies, 1500)


def test_prompts():
    run(prompts, 500)


def test_answers():
    run(answers, 1500)


def test_tidied():
    run(tidied, 1000)
