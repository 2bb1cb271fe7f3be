"""Prompts added to the attention of frozen blocks: a residual of keys and values, chosen per row.

R rows of N positions, C prompts of a layer, W width, of H heads; G sets of prompts, one of each task.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Prompts(nn.Module):
    """A task's keys and values of one tower: keys from -1 to 1, values 0, which at first change nothing."""

    def __init__(self, depth: int, contexts: int, width: int, generator: torch.Generator):
        super().__init__()
        drawn = torch.rand(depth, contexts, width, generator=generator)
        self.key = nn.Parameter(2 * drawn - 1)
        self.value = nn.Parameter(torch.zeros(depth, contexts, width))


@dataclass
class PromptChoice:
    """The prompts of the rows of a pass, one object for all blocks of a tower."""

    sets: list[Prompts] = field(default_factory=list)
    """The prompts of all tasks."""
    set_R: Tensor | None = None
    """The index in ``sets``, 0 to G - 1, of each row; None = the last one for all."""
    share_R: Tensor | None = None
    """The factor of each row's residual; None = 1."""


class PromptedAttention(nn.Module):
    """Replaces a block's attention."""

    def __init__(self, attention: nn.MultiheadAttention, layer: int, choice: PromptChoice):
        super().__init__()
        self.attention, self.layer, self.choice = attention, layer, choice

    def forward(self, query_RNW: Tensor, *others: Tensor, **more: Any) -> tuple[Tensor, None]:
        """Return the attention's output plus the prompts' residual."""
        plain_RNW = self.attention(query_RNW, *others, **more)[0]
        return (plain_RNW + self._attend(query_RNW) if self.choice.sets else plain_RNW), None

    def _attend(self, x_RNW: Tensor) -> Tensor:
        """Return the residual: the block's queries against the prompts, by the block's output projection.

        The projection is linear, so the residual may be added before or after it.
        """
        attention, choice = self.attention, self.choice
        width = attention.embed_dim
        bias = None if attention.in_proj_bias is None else attention.in_proj_bias[:width]
        query_RNW = F.linear(x_RNW, attention.in_proj_weight[:width], bias)
        key_RCW, value_RCW = self._choose("key", len(x_RNW)), self._choose("value", len(x_RNW))
        query, key, value = (self._split(part) for part in (query_RNW, key_RCW, value_RCW))
        mixed_RNW = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        if choice.share_R is not None:
            mixed_RNW = mixed_RNW * choice.share_R[:, None, None]
        return F.linear(mixed_RNW, attention.out_proj.weight)

    def _choose(self, part: str, num_rows: int) -> Tensor:
        sets = self.choice.sets
        if self.choice.set_R is None:
            return getattr(sets[-1], part)[self.layer].expand(num_rows, -1, -1)
        return torch.stack([getattr(one, part)[self.layer] for one in sets])[self.choice.set_R]

    def _split(self, part_RMW: Tensor) -> Tensor:
        """Return it with heads before positions, (R, H, M, W / H)."""
        return part_RMW.unflatten(-1, (self.attention.num_heads, -1)).transpose(1, 2)


def add_prompts(blocks: list[Any], depth: int, choice: PromptChoice) -> None:
    """Add prompts to the attention of the first ``depth`` blocks, in place."""
    for layer, block in enumerate(blocks[:depth]):
        block.attn = PromptedAttention(block.attn, layer, choice)
