"""Low-rank experts added to the linear layers of frozen blocks.

E experts of K dims each, R rows of N positions, I and O values into and out of a layer, G tasks so far.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# alpha / r of LoRA, as in raycomp.models.adapters.
_SCALE = 2.0
_BETA = 0.5
_TOP = 2


@dataclass
class Routes:
    """The assumed task of each row of a pass, one object for all layers of a tower."""

    task_R: Tensor | None = None
    """None: positions alone choose."""


class ExpertLinear(nn.Module):
    """Replaces a linear layer of a block: the output of that layer plus the output of its experts.

    Every position weighs the experts by its own softmax, G^I. Where rows have a task the weights are
    beta G^I + (1 - beta) G^T, where G^T is how often the task's positions had each expert among their two
    best; beta is one half. At first nothing is added. In training mode, where a backward pass follows, those
    two are noted for ``take_count``.
    """

    count_E: Tensor
    """How often each expert was counted; the caller of ``take_count`` adds the notes here."""

    def __init__(self, linear: nn.Linear, num: int, rank: int, routes: Routes, generator: torch.Generator):
        super().__init__()
        self.linear, self.routes = linear, routes
        width = linear.in_features

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(*shape, generator=generator) - 1) / width**0.5)

        self.down = draw(num, rank, width)
        self.router = draw(num, width)
        self.up = nn.Parameter(torch.zeros(num, linear.out_features, rank))
        self.register_buffer("count_E", torch.zeros(num, dtype=torch.int64))
        self.task_GE: Tensor | None = None
        """G^T of every task."""
        self.noted: list[Tensor] = []
        """Notes since the last ``take_count``; not a buffer, as ranks receive buffers from rank 0."""

    @property
    def weight(self) -> Tensor:
        """The layer's own weight, whose type open_clip reads."""
        return self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map (R, N, I), or positions without rows where these have no task, from I to O values."""
        weight = torch.softmax(x @ self.router.T, dim=-1)
        if self.training and torch.is_grad_enabled():
            best = weight.detach().topk(min(_TOP, len(self.count_E)), dim=-1).indices
            self.noted.append(best.flatten().bincount(minlength=len(self.count_E)))
        if self.routes.task_R is not None:
            assert self.task_GE is not None
            weight = _BETA * weight + (1 - _BETA) * self.task_GE[self.routes.task_R][:, None]
        low = torch.einsum("...i,eki->...ek", x, self.down) * weight[..., None]
        return self.linear(x) + _SCALE * torch.einsum("...ek,eok->...o", low, self.up)

    def take_count(self) -> Tensor:
        """Return how often each expert was noted, (E,), and reset the notes."""
        noted, self.noted = self.noted, []
        return torch.stack(noted).sum(0) if noted else torch.zeros_like(self.count_E)

    def share(self) -> Tensor:
        """Return the share of each expert's count, (E,), of sum 1; uniform where none was counted."""
        total = self.count_E.sum()
        return (
            self.count_E / total
            if total
            else torch.full_like(self.router[:, 0], 1 / len(self.count_E)).detach()
        )


def add_experts(
    blocks: list[Any], num: int, rank: int, routes: Routes, generator: torch.Generator
) -> Iterator[ExpertLinear]:
    """Add experts to both layers of the blocks' MLPs, in place; yield these, from the first."""
    for block in blocks:
        for name in ("c_fc", "c_proj"):
            made = ExpertLinear(getattr(block.mlp, name), num, rank, routes, generator)
            setattr(block.mlp, name, made)
            yield made
