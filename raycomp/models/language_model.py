"""A causal language model, which sees no image: chats as its input tokens, likelihoods of texts.

B texts of a batch, N tokens of the longest, M = B x (N - 1) of them, V words of the vocabulary.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raycomp.config import UserError
from raycomp.models.architecture import LIBRARIES_FAIL, ask_once, one_line, say_unreachable


def render_chats(
    chats: Sequence[str], model: str, revision: str | None = None, trust_remote_code: bool = False
) -> list[list[int]]:
    """Return the token ids of every chat, a JSON list of messages, up to the start of the reply.

    Start tokens are those of the template alone. The tokenizer of ``model``, a hub name or a folder, is
    loaded once per process. Raises UserError where there is none, or its template rejects the chat.
    """
    from jinja2 import TemplateError

    said = f"llm.model={model!r}"
    with ask_once(not Path(model).is_dir()) as answers:
        try:
            tokenizer = _load_tokenizer(model, revision, trust_remote_code)
        except LIBRARIES_FAIL as error:
            why = one_line(error) if answers else say_unreachable()
            raise UserError(f"{said}: no tokenizer can be loaded ({why})") from error
    try:
        texts = [
            tokenizer.apply_chat_template(json.loads(chat), tokenize=False, add_generation_prompt=True)
            for chat in chats
        ]
    except (TemplateError, *LIBRARIES_FAIL) as error:
        raise UserError(f"{said}: its chat template does not take the prompts: {one_line(error)}") from error
    return tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []


@lru_cache(maxsize=1)
def _load_tokenizer(model: str, revision: str | None, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)


# Maximum tokens of a text that count; the longest caption of the benchmarks has about 100.
MAX_TOKENS = 512
# Tokens of a batch, padding included: their logits over 50,000 words take 300 MB.
_TOKENS_PER_PASS = 512
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_WORDS_PER_SUM = 2048
_NO_TOKEN = -100
_OWN = {"local_files_only": True, "trust_remote_code": False}


class LanguageModel:
    """A causal language model, loaded once.

    ``folder`` is written by ``save_pretrained`` of the model and its tokenizer: safetensors, and no code of
    its own. ``option`` is its name in messages. Raises ValueError where no model loads from the folder.
    """

    def __init__(self, folder: str, option: str, place: torch.device, precision: str = "fp32"):
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        said = f"{option}={folder!r}"
        options = {"use_safetensors": True, "dtype": _DTYPES[precision], "output_loading_info": True}
        with _reading(folder, said):
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, **_OWN)
            loaded: Any = AutoModelForCausalLM.from_pretrained(folder, **options, **_OWN)
        model, reported = loaded
        lacks = [*reported["missing_keys"], *reported["mismatched_keys"]]
        if lacks:
            found = f"{len(lacks)} are missing, such as {lacks[0]}"
            raise ValueError(f"{said}: its weights belong to another model: {found}")
        for name, value in model.state_dict().items():
            if not torch.isfinite(value).all():
                raise ValueError(f"{said}: {name} must be finite numbers, holds NaN or infinity")
        self.said, self.place, self.model = said, place, model.eval().to(place)

    def compute_likelihoods(self, texts: Sequence[str]) -> np.ndarray:
        """Return the log-likelihood of every text in nats, summed over its tokens, float64 (T,).

        With a start token every token counts, given that token and those before. Without one the first token
        only conditions the others. No end token is added. At most ``MAX_TOKENS`` tokens of a text count.
        Raises ValueError where a score is not finite.
        """
        start = self.tokenizer.bos_token_id
        prefix = [] if start is None else [start]
        ids = [
            (prefix + self.tokenizer.encode(text, add_special_tokens=False))[: len(prefix) + MAX_TOKENS]
            for text in texts
        ]
        found = np.zeros(len(texts))
        # Batches of similar lengths; texts without a counted token are in none.
        batches: list[list[int]] = []
        for row in sorted(
            (row for row, one in enumerate(ids) if len(one) > 1), key=lambda row: len(ids[row])
        ):
            if not batches or (len(batches[-1]) + 1) * len(ids[row]) > _TOKENS_PER_PASS:
                batches.append([])
            batches[-1].append(row)
        for rows in batches:
            found[rows] = _find(self.model, [ids[row] for row in rows], self.place)
        if not np.isfinite(found).all():
            raise ValueError(f"{self.said}: gives scores of NaN or infinity; name another")
        return found


def check_language_model(folder: str, option: str) -> None:
    """Raise ValueError where a folder holds no config and tokenizer of a language model; loads no weights."""
    from transformers import AutoConfig, AutoTokenizer

    with _reading(folder, f"{option}={folder!r}"):
        for kind in (AutoConfig, AutoTokenizer):
            kind.from_pretrained(folder, **_OWN)


@contextmanager
def _reading(folder: str, said: str) -> Iterator[None]:
    """Raise ValueError where the block finds no language model in a folder."""
    if not Path(folder).is_dir():
        raise ValueError(f"{said}: must be a folder of this machine, with a causal language model")
    try:
        yield
    except LIBRARIES_FAIL as error:
        raise ValueError(f"{said}: no causal language model can be loaded ({one_line(error)})") from error


@torch.inference_mode()
def _find(model: Any, ids: Sequence[Sequence[int]], place: torch.device) -> np.ndarray:
    """Return the log-likelihoods (B,) of texts of two tokens or more; the first token is given."""
    token_BN = _pad(ids, 0).to(place)
    # Padding is at the end, which a causal model's earlier positions do not depend on.
    mask_BN = _pad([[1] * len(one) for one in ids], 0).to(place)
    logits_BNV = model(input_ids=token_BN, attention_mask=mask_BN).logits
    next_BN = _pad([one[1:] for one in ids], _NO_TOKEN).to(place)
    is_real_BN = next_BN != _NO_TOKEN
    found_BN = torch.zeros(next_BN.shape, dtype=torch.float64, device=place)
    found_BN[is_real_BN] = _log_softmax_at(logits_BNV[:, :-1][is_real_BN].float(), next_BN[is_real_BN])
    return found_BN.sum(1).cpu().numpy()


def _log_softmax_at(logits_MV: Tensor, word_M: Tensor) -> Tensor:
    """Return the log-softmax of each row at one word, float64 (M,), with an error of some 1e-6.

    Exponentials are summed in fp32 within some words and in double over these: a single fp32 sum over 50,000
    words is off by 1e-5 to 1e-4, and doubles for all words take four times as long.
    """
    most_M1 = logits_MV.max(1, keepdim=True).values
    sums = [part.sub(most_M1).exp().sum(1).double() for part in logits_MV.split(_WORDS_PER_SUM, dim=1)]
    own_M = logits_MV.gather(1, word_M[:, None]).sub(most_M1).squeeze(1).double()
    return own_M - torch.stack(sums).sum(0).log()


def _pad(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])
