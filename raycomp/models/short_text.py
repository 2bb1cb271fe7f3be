"""Texts through a text tower no further than the longest of a batch, which trains a CLIP twice as fast.

B texts, N tokens of context, M <= N those up to the last end-of-text token, D embedding dims.
"""

from typing import Any

import torch
from torch import Tensor, nn

from raycomp.models.text import find_causal_tower


def encode_text(model: Any, token_BN: Tensor) -> Tensor:
    """Return what ``model.encode_text`` would, (B, D), with gradients.

    A causal tower that reads its result at the end-of-text token never looks at what comes after it: that is
    cut, where open_clip's own method takes the whole context alone. Any other tower gets all of it.
    """
    tower = find_causal_tower(model)
    if tower is None:
        return model.encode_text(token_BN)
    end_B = token_BN.argmax(1)
    token_BM = token_BN[:, : int(end_B.max()) + 1]
    num_places = token_BM.shape[1]
    dtype = tower.transformer.get_cast_dtype()
    x_BMD = tower.token_embedding(token_BM).to(dtype) + tower.positional_embedding[:num_places].to(dtype)
    x_BMD = tower.transformer(x_BMD, attn_mask=tower.attn_mask[:num_places, :num_places])
    x_BD = tower.ln_final(x_BMD)[torch.arange(len(token_BM), device=token_BM.device), end_B]
    if isinstance(tower.text_projection, nn.Linear):
        return tower.text_projection(x_BD)
    return x_BD if tower.text_projection is None else x_BD @ tower.text_projection
