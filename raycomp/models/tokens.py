"""Texts to token ids in a process that needs nothing else of open_clip, whose import takes 5 s and 600 MB."""

import importlib.util
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.config.json_text import parse_json

_CONTEXT_LENGTH = 77


@lru_cache(maxsize=2)
def load_tokens(config: ModelConfig | ScorerConfig) -> Callable[[list[str]], Any]:
    """Return what ``load_tokenizer`` does, and raise as it: list[str] -> int64 (B, N).

    CLIP's own tokenizer comes from its file alone; another one needs open_clip.
    """
    text = _read_text_config(config.model)
    if text is None or {"hf_tokenizer_name", "tokenizer_kwargs"} & set(text):
        from raycomp.models.clip import load_tokenizer  # see above

        return load_tokenizer(config)
    return _load_module().SimpleTokenizer(context_length=text.get("context_length", _CONTEXT_LENGTH))


def _read_text_config(name: str) -> dict[str, Any] | None:
    """Return what open_clip's config of a model says of texts; None of a hub's and of one named SigLIP."""
    if ":" in name or "siglip" in name.lower():
        return None
    is_file = Path(name).suffix == ".json"
    path = Path(name) if is_file else _find("model_configs") / f"{name.replace('/', '-')}.json"
    return parse_json(path.read_text("utf-8")).get("text_cfg", {}) if path.is_file() else None


def _find(name: str) -> Path:
    """Return the place of something in open_clip's package, which is not imported."""
    spec = importlib.util.find_spec("open_clip")
    assert spec and spec.origin
    return Path(spec.origin).parent / name


def _load_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("open_clip_tokenizer", _find("tokenizer.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
