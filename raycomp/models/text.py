"""Captions and their counterfactuals through the text tower together, sharing prefixes exactly.

A causal tower reads its result at the end-of-text token, and a counterfactual shares every position before
its target with its caption. So a caption is encoded once, and of a counterfactual only the suffix from the
first changed token, which attends to the caption's prefix and to itself. Positions after end-of-text never
matter and are cut. Nothing is approximated.

One group (a caption and its suffixes) fills one row from its start; rows are as wide as their own group
needs, rounded up, and each width runs in a fixed number of rows. A row's result then depends on that group
alone, whatever shares its batch.

R rows of W positions, T texts, D dims, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.core.alignment import normalise

_WIDTH_STEP = 16
_MAX_WIDTH = 512
_POSITIONS_PER_PASS = {"cpu": 1024, "cuda": 8192}
_TEXTS_PER_PROJECTION = 128


@dataclass(frozen=True)
class TextGroup:
    """One caption and its counterfactuals, as the tokenizer pads them, int [context length] each.

    Counterfactuals have the caption's number of tokens (Go et al., arXiv 2605.22651, Eq. 4).
    """

    caption_N: np.ndarray
    counterfactuals_N: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True)
class _Row:
    """A laid out group: per position its token, place in the text, segment, and length of shared prefix."""

    token_W: np.ndarray
    place_W: np.ndarray
    segment_W: np.ndarray
    prefix_W: np.ndarray
    last_T: np.ndarray
    """Position of each text's end-of-text token: the caption's first."""


def _lay_out(group: TextGroup, lengths: Sequence[int]) -> _Row:
    """Put a caption and the changed suffix of each counterfactual one after another.

    ``lengths`` counts each text's tokens up to and with end-of-text, the caption's first.
    """
    length = lengths[0]
    caption_N = group.caption_N[:length]
    others_N = [other_N[:length] for other_N in group.counterfactuals_N]
    if any(other != length for other in lengths):
        raise ValueError(f"a caption has {length} tokens, its counterfactuals {list(lengths[1:])}")
    suffixes = []
    for other_N in others_N:
        changed = np.flatnonzero(other_N != caption_N)
        suffixes.append(int(changed[0]) if len(changed) else length - 1)
    places = [np.arange(length), *(np.arange(first, length) for first in suffixes)]
    sizes = [len(place) for place in places]
    return _Row(
        token_W=np.concatenate(
            [caption_N, *(t[first:] for t, first in zip(others_N, suffixes, strict=True))]
        ),
        place_W=np.concatenate(places),
        segment_W=np.repeat(np.arange(len(sizes)), sizes),
        prefix_W=np.repeat([0, *suffixes], sizes),
        last_T=np.cumsum(sizes) - 1,
    )


def _split_wide(group: TextGroup, length: int) -> list[TextGroup]:
    """Split a group wider than a row by its own lengths; every part carries the caption again."""
    others = group.counterfactuals_N
    if length * (1 + len(others)) <= _MAX_WIDTH:
        return [group]
    per_part = max(1, _MAX_WIDTH // length - 1)
    return [TextGroup(group.caption_N, others[i : i + per_part]) for i in range(0, len(others), per_part)]


def find_tower(model: nn.Module) -> nn.Module | None:
    """Return the text tower if prefixes are exact in it: causal, pooled at end-of-text, plain blocks."""
    tower = getattr(model, "text", model)
    pool = getattr(tower, "text_pool_type", getattr(tower, "pool_type", None))
    blocks = getattr(getattr(tower, "transformer", None), "resblocks", None)
    is_plain = (
        blocks is not None
        and pool in ("argmax", "eos")
        and getattr(tower, "attn_mask", None) is not None
        and getattr(tower, "cls_emb", None) is None
        and all(isinstance(getattr(block, "attn", None), nn.MultiheadAttention) for block in blocks)
    )
    return tower if is_plain else None


class TextEncoder:
    """Embed groups of texts. Towers that cannot share prefixes exactly encode every text by itself."""

    def __init__(self, model: nn.Module, device: torch.device):
        self.model = model
        self.device = device
        self.tower = find_tower(model)
        self.budget = _POSITIONS_PER_PASS[device.type]

    def _length(self, token_N: np.ndarray) -> int:
        """Tokens up to and with the one that the tower pools."""
        pool = getattr(self.tower, "text_pool_type", getattr(self.tower, "pool_type", None))
        if pool == "argmax":
            return int(token_N.argmax()) + 1
        eos = getattr(self.tower, "text_eos_id", getattr(self.tower, "eos_id", None))
        return int((token_N == eos).argmax()) + 1

    @torch.inference_mode()
    def embed(self, groups: Sequence[TextGroup]) -> list[Tensor]:
        """Return, per group, fp32 [1 + counterfactuals, D] of length 1: the caption first; on the CPU."""
        if self.tower is None:
            return self._embed_plain(groups)
        parts, owners = [], []
        for index, group in enumerate(groups):
            for part in _split_wide(group, self._length(group.caption_N)):
                owners.append(index)
                texts = (part.caption_N, *part.counterfactuals_N)
                parts.append(_lay_out(part, [self._length(text_N) for text_N in texts]))
        embedded = self._embed_rows(parts)
        joined: list[list[Tensor]] = [[] for _ in groups]
        for owner, text_TD in zip(owners, embedded, strict=True):
            joined[owner].append(text_TD[1:] if joined[owner] else text_TD)
        return [torch.cat(texts) for texts in joined]

    def _embed_rows(self, rows: list[_Row]) -> list[Tensor]:
        by_width = defaultdict(list)
        for index, row in enumerate(rows):
            by_width[-(-len(row.token_W) // _WIDTH_STEP) * _WIDTH_STEP].append(index)
        embedded: list[Tensor] = [torch.empty(0)] * len(rows)
        for width, indices in sorted(by_width.items()):
            per_pass = max(1, self.budget // width)
            for start in range(0, len(indices), per_pass):
                chosen = indices[start : start + per_pass]
                text_TD = self._forward([rows[i] for i in chosen], per_pass, width)
                counts = [len(rows[i].last_T) for i in chosen]
                for i, part_TD in zip(chosen, text_TD.split(counts), strict=True):
                    embedded[i] = part_TD
        return embedded

    def _forward(self, rows: list[_Row], num_rows: int, width: int) -> Tensor:
        """Encode rows padded to [num_rows, width]; returns the texts of all rows in order, fp32 [T, D]."""
        fields_4RW = np.zeros((4, num_rows, width), dtype=np.int64)
        fields_4RW[2] = -1  # padding is a segment of its own
        for r, row in enumerate(rows):
            size = len(row.token_W)
            fields_4RW[:, r, :size] = (row.token_W, row.place_W, row.segment_W, row.prefix_W)
        token_RW, place_RW, segment_RW, prefix_RW = torch.from_numpy(fields_4RW).to(self.device)
        mask_RWW = _attention_mask(place_RW, segment_RW, prefix_RW)
        x_RWD = self._blocks(token_RW, place_RW, mask_RWW)
        flat_T = np.concatenate([r * width + row.last_T for r, row in enumerate(rows)])
        pooled_TD = x_RWD.flatten(0, 1)[torch.from_numpy(flat_T).to(self.device)]
        return self._project(pooled_TD).cpu()

    def _blocks(self, token_RW: Tensor, place_RW: Tensor, mask_RWW: Tensor) -> Tensor:
        tower = self.tower
        dtype = tower.transformer.get_cast_dtype()
        x = tower.token_embedding(token_RW).to(dtype) + tower.positional_embedding.to(dtype)[place_RW]
        for block in tower.transformer.resblocks:
            x = x + block.ls_1(_attend(block.attn, block.ln_1(x), mask_RWW))
            x = x + block.ls_2(block.mlp(block.ln_2(x)))
        return x

    def _project(self, pooled_TD: Tensor) -> Tensor:
        """Final norm, projection and unit length, in chunks of a fixed number of texts."""
        tower, projected = self.tower, []
        for start in range(0, len(pooled_TD), _TEXTS_PER_PROJECTION):
            part = pooled_TD[start : start + _TEXTS_PER_PROJECTION]
            padded = F.pad(part, (0, 0, 0, _TEXTS_PER_PROJECTION - len(part)))
            x = tower.ln_final(padded)
            if isinstance(tower.text_projection, nn.Linear):
                x = tower.text_projection(x)
            elif tower.text_projection is not None:
                x = x @ tower.text_projection
            projected.append(normalise(x.float())[: len(part)])
        return torch.cat(projected)

    def _embed_plain(self, groups: Sequence[TextGroup]) -> list[Tensor]:
        texts = [text for group in groups for text in (group.caption_N, *group.counterfactuals_N)]
        context = getattr(self.model, "text", self.model).context_length
        token_TN = np.zeros((-(-len(texts) // 32) * 32, context), dtype=np.int64)
        for i, text in enumerate(texts):
            token_TN[i, : len(text)] = text
        parts = [
            normalise(self.model.encode_text(chunk.to(self.device)).float()).cpu()
            for chunk in torch.from_numpy(token_TN).split(32)
        ]
        counts = [1 + len(group.counterfactuals_N) for group in groups]
        return list(torch.cat(parts)[: len(texts)].split(counts))


def _attention_mask(place_RW: Tensor, segment_RW: Tensor, prefix_RW: Tensor) -> Tensor:
    """Return bool [R, W, W], True where query (rows) may look at key (columns).

    A position sees its own segment up to itself, and of the caption what lies before its own first change.
    """
    same = segment_RW[:, :, None] == segment_RW[:, None, :]
    causal = place_RW[:, None, :] <= place_RW[:, :, None]
    shared = (segment_RW[:, None, :] == 0) & (place_RW[:, None, :] < prefix_RW[:, :, None])
    return (same & causal) | shared


def _attend(attention: nn.MultiheadAttention, x_RWD: Tensor, mask_RWW: Tensor) -> Tensor:
    """``attention(x, x, x)`` under a mask per row."""
    qkv = F.linear(x_RWD, attention.in_proj_weight, attention.in_proj_bias)
    heads = (*x_RWD.shape[:2], 3, attention.num_heads, attention.head_dim)
    q, k, v = qkv.view(heads).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_RWW[:, None])
    return attention.out_proj(mixed.transpose(1, 2).flatten(2))
