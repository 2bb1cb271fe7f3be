"""Chats become the tokens of the model's own template; what cannot is the user's to mend."""

import json

import pytest

from raycomp.config import UserError
from raycomp.models.language_model import render_chats
from tests.negatives.llm import TEMPLATE, write_tiny_tokenizer

CHATS = [
    json.dumps([{"role": "system", "content": "Edit."}, {"role": "user", "content": text}])
    for text in ("A dog", "caf\u00e9 \u732b <|end|> \U0001f415", "")
]


def test_tokens_are_those_of_the_rendered_text(tmp_path):
    tokenizer = write_tiny_tokenizer(tmp_path)
    found = render_chats(CHATS, str(tmp_path))
    for chat, tokens in zip(CHATS, found, strict=True):
        said = "".join(f"<|{one['role']}|>{one['content']}<|end|>" for one in json.loads(chat))
        assert tokenizer.decode(tokens) == f"{said}<|assistant|>"
        assert tokens == tokenizer.apply_chat_template(
            json.loads(chat), add_generation_prompt=True, return_dict=False
        )
    assert render_chats([], str(tmp_path)) == []


def test_a_template_that_takes_no_chat_is_reported(tmp_path_factory):
    for template, said in [
        (None, "does not take the prompts"),
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{% for m in messages %}", "does not take the prompts"),
    ]:
        tmp_path = tmp_path_factory.mktemp("case")
        tokenizer = write_tiny_tokenizer(tmp_path)
        (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path)
        with pytest.raises(UserError, match=f"llm.model=.*{said}") as error:
            render_chats(CHATS, str(tmp_path))
        assert "\n" not in str(error.value), (template, said)
        assert TEMPLATE, (template, said)


def test_a_folder_without_a_tokenizer_is_reported(tmp_path):
    with pytest.raises(UserError, match=r"llm.model=.*: no tokenizer can be loaded"):
        render_chats(CHATS, str(tmp_path / "none"))
