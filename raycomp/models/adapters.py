"""Trained parts of a frozen model: low-rank adapters, prompts, experts; or all of it but frozen towers.

R rows of N positions, I and O values into and out of a layer, W width, of H heads; E experts of K dims each,
C prompts of a layer, G tasks so far, each with a set of prompts.
"""

import copy
import io
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.config import UserError
from raycomp.models.architecture import LIBRARIES_FAIL, one_line
from raycomp.words import TOWERS

# Exceeds the number of layer groups of any tower.
_ALL = 1_000_000
# alpha / r of LoRA; the factor of a position's own weights; experts that are noted.
_SCALE, _BETA, _TOP = 2.0, 0.5, 2


def find_blocks(clip: Any, said: str) -> dict[str, list[Any]]:
    """Return the blocks of each tower, image and text, from the first.

    Raises UserError, which starts with ``said``, where a tower is not made of open_clip's plain blocks: one
    ``nn.MultiheadAttention`` with rows first, and an MLP of two linear layers.
    """

    def is_plain(block: Any) -> bool:
        attention, mlp = getattr(block, "attn", None), getattr(block, "mlp", None)
        return (
            isinstance(attention, nn.MultiheadAttention)
            and attention.batch_first
            and attention.in_proj_weight is not None
            and all(isinstance(getattr(mlp, name, None), nn.Linear) for name in ("c_fc", "c_proj"))
        )

    found = {}
    for name, tower in (("image", clip.visual), ("text", getattr(clip, "text", clip))):
        blocks = list(getattr(getattr(tower, "transformer", None), "resblocks", ()))
        if not blocks or not all(map(is_plain, blocks)):
            raise UserError(
                f"{said}: the {name} tower of the model is not made of open_clip's plain transformer blocks; "
                "take a model such as ViT-B-32, or leave the method out"
            )
        found[name] = blocks
    return found


def freeze(clip: Any, entries: Sequence[str]) -> None:
    """Freeze the weights of towers: ``image``, ``text``, or all of one but its last groups, ``text:3``.

    Groups are open_clip's, from the end: the projection, then each block. Raises UserError where no weight of
    a tower or all weights of both would be frozen, or where its kind can only be frozen as a whole.
    """
    for entry in entries:
        tower, _, count = entry.partition(":")
        weights, said = _list_weights(clip, tower), f"train.freeze={entry!r}"
        if not int(count or 0):
            for parameter in weights:
                parameter.requires_grad_(False)
            continue
        lock = clip.lock_image_tower if tower == "image" else clip.lock_text_tower
        try:
            with redirect_stdout(io.StringIO()):  # some of them print
                lock(_ALL)
                # Weights that are still locked here belong to no group.
                has_rest = not all(parameter.requires_grad for parameter in weights)
                lock(int(count))
        except LIBRARIES_FAIL as error:
            raise UserError(f"{said}: this tower can only be frozen whole ({one_line(error)})") from error
        if has_rest:
            raise UserError(f"{said}: this tower can only be frozen whole, as its groups do not cover it")
        if all(parameter.requires_grad for parameter in weights):
            raise UserError(f"{said}: freezes nothing; the {tower} tower has fewer groups of layers")
    if not any(p.requires_grad for tower in TOWERS for p in _list_weights(clip, tower)):
        raise UserError(f"train.freeze={tuple(entries)}: freezes all weights; leave some to train")


def _list_weights(clip: Any, tower: str) -> list[nn.Parameter]:
    """Return a tower's weights. Logit scale and bias belong to no tower."""
    named = ((name, p) for name, p in clip.named_parameters() if not name.startswith("logit_"))
    return [p for name, p in named if name.startswith("visual.") == (tower == "image")]


def add_adapters(clip: Any, rank: int, seed: int) -> Any:
    """Add adapters to the trained part of both towers' attention; return peft's tuner of the model.

    Hu et al. 2021 (arXiv:2106.09685): 2 B A is added to the matrix of queries, keys and values; B is 0 at
    first, A is drawn by ``seed``. Everything else is frozen except logit scale and bias. Raises UserError
    where a trained tower has no such matrix.
    """
    # peft matches the ends of names: a full name is unique because all share a prefix.
    names = [
        f"clip.{name}.in_proj_weight"
        for name, module in clip.named_modules()
        if isinstance(module, nn.MultiheadAttention)
        and module.in_proj_weight is not None
        and module.in_proj_weight.requires_grad
    ]
    for tower in TOWERS:
        is_adapted = any(name.startswith("clip.visual.") == (tower == "image") for name in names)
        if not is_adapted and any(p.requires_grad for p in _list_weights(clip, tower)):
            raise UserError(
                f"train.lora_rank={rank}: the {tower} tower has no attention layer for adapters; freeze it "
                f"(train.freeze={tower}), or train all weights"
            )
    from peft import LoraConfig  # takes seconds, and few trainings need it
    from peft.tuners.lora import LoraModel

    free = {name for name, p in clip.named_parameters() if p.requires_grad and name.startswith("logit_")}
    # A parameter as a target keeps its bits. Adapters of a whole nn.MultiheadAttention would be added and
    # subtracted in every pass, which makes the weights drift.
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=[], target_parameters=names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tuner = LoraModel(nn.ModuleDict({"clip": clip}), config, "default")
    for name, parameter in clip.named_parameters():
        if name in free:
            parameter.requires_grad_(True)
    return tuner


def merge_adapters(tuner: Any) -> Any:
    """Return a copy of the model with its adapters added to its weights: its modules are as before them."""
    return copy.deepcopy(tuner).merge_and_unload()["clip"]


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
        if total:
            return self.count_E / total
        return torch.full_like(self.router[:, 0], 1 / len(self.count_E)).detach()


def add_experts(
    blocks: list[Any], num: int, rank: int, routes: Routes, generator: torch.Generator
) -> Iterator[ExpertLinear]:
    """Add experts to both layers of the blocks' MLPs, in place; yield these, from the first."""
    for block in blocks:
        for name in ("c_fc", "c_proj"):
            made = ExpertLinear(getattr(block.mlp, name), num, rank, routes, generator)
            setattr(block.mlp, name, made)
            yield made


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
        """Return the attention's output plus the prompts' residual.

        That is the block's queries against the prompts, by the block's output projection, which is linear: so
        the residual may be added before or after it.
        """
        attention, choice = self.attention, self.choice
        plain_RNW = attention(query_RNW, *others, **more)[0]
        if not choice.sets:
            return plain_RNW, None

        def choose(part: str) -> Tensor:
            if choice.set_R is None:
                return getattr(choice.sets[-1], part)[self.layer].expand(len(query_RNW), -1, -1)
            return torch.stack([getattr(one, part)[self.layer] for one in choice.sets])[choice.set_R]

        width = attention.embed_dim
        bias = None if attention.in_proj_bias is None else attention.in_proj_bias[:width]
        own_RNW = F.linear(query_RNW, attention.in_proj_weight[:width], bias)
        # Heads before positions, (R, H, M, W / H).
        query, key, value = (
            part_RMW.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
            for part_RMW in (own_RNW, choose("key"), choose("value"))
        )
        mixed_RNW = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        if choice.share_R is not None:
            mixed_RNW = mixed_RNW * choice.share_R[:, None, None]
        return plain_RNW + F.linear(mixed_RNW, attention.out_proj.weight), None


def add_prompts(blocks: list[Any], depth: int, choice: PromptChoice) -> None:
    """Add prompts to the attention of the first ``depth`` blocks, in place."""
    for layer, block in enumerate(blocks[:depth]):
        block.attn = PromptedAttention(block.attn, layer, choice)
