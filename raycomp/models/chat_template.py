"""Chats as a language model's input tokens: its tokenizer and chat template, without its weights."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from raycomp.config import UserError
from raycomp.models.architecture import LIBRARIES_FAIL, one_line


def render_chats(
    chats: Sequence[str], model: str, revision: str | None = None, trust_remote_code: bool = False
) -> list[list[int]]:
    """Return the token ids of every chat, a JSON list of messages, up to the start of the reply.

    Start tokens are those of the template alone. The tokenizer of ``model``, a hub name or a folder, is
    loaded once per process. Raises UserError where there is none, or its template rejects the chat.
    """
    from jinja2 import TemplateError

    said = f"llm.model={model!r}"
    try:
        tokenizer = _load(model, revision, trust_remote_code)
    except LIBRARIES_FAIL as error:
        raise UserError(f"{said}: no tokenizer can be loaded ({one_line(error)})") from error
    try:
        texts = [
            tokenizer.apply_chat_template(json.loads(chat), tokenize=False, add_generation_prompt=True)
            for chat in chats
        ]
    except (TemplateError, *LIBRARIES_FAIL) as error:
        raise UserError(f"{said}: its chat template does not take the prompts: {one_line(error)}") from error
    return tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []


@lru_cache(maxsize=1)
def _load(model: str, revision: str | None, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
