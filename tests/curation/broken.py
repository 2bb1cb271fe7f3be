"""Models whose weights are finite and whose embeddings are not, or are zeros."""

from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from raycomp.config import ScorerConfig
from raycomp.models.clip import Clip, load_tokenizer

PROJECTIONS = {"images": "visual.proj", "texts": "text_projection"}
HUGE = 3e38
WORD = "zebra"
"""Whose embedding as a token overflows in a model that ``forget_word`` made."""


def break_tower(scorer: ScorerConfig, folder: Path, tower: str, how: str) -> ScorerConfig:
    """Return the scorer with a tower (images, texts) whose last projection is ``zero`` or ``huge``."""
    state = Clip(scorer).model.state_dict()
    projection_WD = torch.zeros_like(state[PROJECTIONS[tower]])
    if how == "huge":  # of either sign, so that infinities cancel to NaN
        projection_WD[::2], projection_WD[1::2] = HUGE, -HUGE
    return _save(scorer, {**state, PROJECTIONS[tower]: projection_WD}, folder)


def forget_word(scorer: ScorerConfig, folder: Path) -> ScorerConfig:
    """Return the scorer with texts that have WORD embedded as NaN, and all others as before."""
    state = dict(Clip(scorer).model.state_dict())
    weight_VW = state["token_embedding.weight"].clone()
    weight_VW[find_token(scorer, WORD)] = HUGE
    return _save(scorer, {**state, "token_embedding.weight": weight_VW}, folder)


def find_token(scorer: ScorerConfig, word: str) -> int:
    """Return the token of a word that is one."""
    token_N = load_tokenizer(scorer)([word])[0].numpy()
    assert np.count_nonzero(token_N) == 3
    return int(token_N[1])


def _save(scorer: ScorerConfig, state: dict[str, torch.Tensor], folder: Path) -> ScorerConfig:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "broken.safetensors"
    safetensors.torch.save_file({name: value.contiguous() for name, value in state.items()}, path)
    return ScorerConfig(model=scorer.model, weights=str(path))
