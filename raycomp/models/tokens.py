"""Texts to token ids in a process that imports neither torch nor open_clip."""

import importlib.util
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.config.json_text import parse_json
from raycomp.models.deferred import load_without

_CONTEXT_LENGTH = 77


class Tokenizer(Protocol):
    """Texts to token ids, int32 (B, N); other attributes are those of open_clip's tokenizer."""

    def __call__(self, texts: list[str]) -> np.ndarray:
        """Return the ids, zeros after the end of each text."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of open_clip's tokenizer."""


@lru_cache(maxsize=2)
def load_tokens(config: ModelConfig | ScorerConfig) -> Tokenizer:
    """Return the model's tokenizer, with the ids and the errors of ``load_tokenizer``.

    CLIP's own tokenizer is loaded from its file alone; another one needs open_clip.
    """
    text = _read_text_config(config.model)
    if text is None or {"hf_tokenizer_name", "tokenizer_kwargs"} & set(text):
        from raycomp.models.clip import load_tokenizer  # which imports open_clip

        return _Tensors(load_tokenizer(config))
    return _load_class()(context_length=text.get("context_length", _CONTEXT_LENGTH))


class _Tensors:
    """A tokenizer of open_clip's whose ids are an array."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def __call__(self, texts: list[str]) -> np.ndarray:
        return self.tokenizer(texts).numpy().astype(np.int32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def _read_text_config(name: str) -> dict[str, Any] | None:
    """Return the text part of a model's config; None for a hub's model and for a SigLIP name."""
    config = None if "siglip" in name.lower() else read_config(name)
    return None if config is None else config.get("text_cfg", {})


def read_config(name: str) -> dict[str, Any] | None:
    """Return open_clip's config of a model; None for ``hf-hub:``, ``local-dir:`` and unknown names.

    Raises ValueError where a json file cannot be read.
    """
    if ":" in name:
        return None
    is_file = Path(name).suffix == ".json"
    path = Path(name) if is_file else _find("model_configs") / f"{name.replace('/', '-')}.json"
    return parse_json(path.read_text("utf-8")) if path.is_file() else None


def _find(name: str) -> Path:
    """Return the path of a file in open_clip's package, which is not imported."""
    spec = importlib.util.find_spec("open_clip")
    assert spec and spec.origin
    return Path(spec.origin).parent / name


@cache
def _load_class() -> Any:
    """Return open_clip's ``SimpleTokenizer``, with its ids as an array."""
    simple: Any = load_without("torch", _find("tokenizer.py")).SimpleTokenizer

    class SimpleTokenizer(simple):
        """CLIP's byte-pair encoding: lower case, cut at the end of the context."""

        def __call__(self, texts: list[str]) -> np.ndarray:
            ids_BN = np.zeros((len(texts), self.context_length), np.int32)
            for row_N, text in zip(ids_BN, texts, strict=True):
                ids = [self.sot_token_id, *self.encode(text)][: len(row_N) - 1]
                row_N[: len(ids) + 1] = [*ids, self.eot_token_id]
            return ids_BN

    return SimpleTokenizer
