"""Both towers on a rank's rows, the global batch over ranks, and the objectives: a loss and its trained
weights.

A loss is computed in shares: each rank computes that of its own rows, against the rows of all, and the shares
sum to the loss. The gradient of an embedding is the sum of what every share gives it.

B or N pairs of the global batch (N also tokens of context), R rows of a rank, of I images and T texts in all,
K hard negatives per caption, C x H x W pixels, D embedding dims.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.core.alignment import has_unit_length
from raycomp.core.batches import slice_of
from raycomp.models.adapters import add_adapters, freeze, merge_adapters
from raycomp.models.clip import encode_text
from raycomp.models.images import ImageSpec
from raycomp.training.config import FitConfig
from raycomp.training.losses import compute_loss, get_loss


def find_rank() -> tuple[int, int]:
    """Return this process's rank and how many there are: 0 of 1 without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def slice_own(num_rows: int) -> slice:
    """Return the slice of this rank in a global batch of that many rows."""
    return slice_of(*find_rank(), num_rows)


def add_up(value: Tensor) -> Tensor:
    """Return the sum over all ranks, in their order, the same on each; without a process group the value
    itself."""
    num_ranks = find_rank()[1]
    if num_ranks == 1:
        return value
    received = [torch.empty_like(value) for _ in range(num_ranks)]
    dist.all_gather(received, value.contiguous())
    return _sum_in_order(received)


def share_of(whole: Tensor) -> Tensor:
    """Return this rank's share of a value that all ranks computed: the shares are equal."""
    return whole / find_rank()[1]


def gather(local_RD: Tensor, batch_size: int) -> Tensor:
    """Return the rows of all ranks, (B, D), in the order of the global batch.

    ``slice_of`` divides the rows. The gradient of this rank's rows is the sum of the gradients that all ranks
    find for them, in the order of the ranks, so its bits depend on the number of ranks alone. Without a
    process group these are the rows of the one rank.
    """
    own = slice_own(batch_size)
    assert len(local_RD) == own.stop - own.start, f"{len(local_RD)} rows of {own} came"
    if find_rank()[1] == 1:
        return local_RD
    return _Gather.apply(local_RD, batch_size)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local_RD: Tensor, batch_size: int) -> Tensor:
        num_ranks = dist.get_world_size()
        slices = [slice_of(rank, num_ranks, batch_size) for rank in range(num_ranks)]
        sizes = [part.stop - part.start for part in slices]
        ctx.own, ctx.sizes = slices[dist.get_rank()], sizes
        # All ranks send as many rows as the largest rank has.
        sent = local_RD.new_zeros(max(sizes), *local_RD.shape[1:])
        sent[: len(local_RD)] = local_RD
        received = [torch.empty_like(sent) for _ in slices]
        dist.all_gather(received, sent)
        return torch.cat([rows[:size] for rows, size in zip(received, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Send each rank the gradient of its rows; sum those that came for the own rows."""
        grad_BD = grads[0].contiguous()
        num_own, num_ranks = ctx.own.stop - ctx.own.start, len(ctx.sizes)
        received = grad_BD.new_empty(num_ranks * num_own, *grad_BD.shape[1:])
        dist.all_to_all_single(received, grad_BD, [num_own] * num_ranks, ctx.sizes)
        return _sum_in_order(received.split(num_own)), None


def _sum_in_order(values: Sequence[Tensor]) -> Tensor:
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total


Made = dict[str, Tensor]
"""The outputs of a model for a batch, by name: a value per row, or one for the whole model."""


def is_of_all(name: str, value: Tensor) -> bool:
    """Return whether an output is one for the whole model."""
    return name in ("scale", "bias") or value.ndim == 0


@dataclass(frozen=True)
class Batch:
    """A rank's rows of a global batch, ready for the model. Every tensor field has a value per row; a
    subclass may have fields with another number of rows, or of the whole batch."""

    image_RCHW: Tensor
    token_RN: Tensor
    negative_RKN: Tensor | None = None
    valid_RK: Tensor | None = None
    kind_RK: Tensor | None = None
    negative_image_RCHW: Tensor | None = None

    def cut(self, rows: slice) -> Self:
        """Return some of the rows."""
        return replace(self, **{name: value[rows] for name, value in self._tensors().items()})

    def split(self, num_parts: int) -> list[Self]:
        """Return the rows in so many parts."""
        tensors = self._tensors().items()
        cut = ({name: x[slice_of(i, num_parts, len(x))] for name, x in tensors} for i in range(num_parts))
        return [replace(self, **part) for part in cut]

    def _tensors(self) -> dict[str, Tensor]:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Embedded:
    """The global batch as a model embeds it; rows of length 1."""

    image_ND: Tensor
    text_ND: Tensor
    scale: Tensor
    bias: Tensor | None = None
    """Added to every logit."""
    negative_NKD: Tensor | None = None
    valid_NK: Tensor | None = None
    """Whether a slot holds a negative."""
    kind_NK: Tensor | None = None
    """The number of a negative's operation and kind, below S."""
    negative_image_ND: Tensor | None = None
    """The image of each first negative, where ``valid_NK``."""
    own: slice = field(default_factory=lambda: slice(None))
    """The rows that this rank made."""

    def count_bad(self) -> Tensor:
        """Return how many of this rank's rows are not finite or not of length 1, and how many it has; int64
        (2,). Slots without a negative do not count. Does not synchronize with the CPU."""
        parts: list[tuple[Tensor, Tensor | None]] = [(self.image_ND, None), (self.text_ND, None)]
        if self.negative_NKD is not None:
            parts.append((self.negative_NKD, self.valid_NK))
        if self.negative_image_ND is not None and self.valid_NK is not None:
            parts.append((self.negative_image_ND, self.valid_NK[:, 0]))
        counts = []
        for rows, valid in parts:
            is_bad = ~has_unit_length(rows[self.own].detach())
            valid = torch.ones_like(is_bad) if valid is None else valid[self.own]
            counts.append(torch.stack([(is_bad & valid).sum(), valid.sum()]))
        return torch.stack(counts).sum(0)


class Towers(nn.Module):
    """open_clip's model as one call, which is what DistributedDataParallel needs."""

    def __init__(self, clip: Any):
        super().__init__()
        self.clip = clip

    def forward(self, batch: Batch) -> Made:
        """Return embeddings of length 1 in fp32, exp(logit_scale), and the bias of a model that has one.

        All images pass together, and all texts.
        """
        num, texts, images = len(batch.token_RN), [batch.token_RN], [batch.image_RCHW]
        if batch.negative_RKN is not None:
            texts.append(batch.negative_RKN.flatten(0, 1))
        if batch.negative_image_RCHW is not None:
            images.append(batch.negative_image_RCHW)
        image_ID = F.normalize(self.clip.encode_image(torch.cat(images)).float(), dim=-1)
        text_TD = F.normalize(encode_text(self.clip, torch.cat(texts)).float(), dim=-1)
        made = {"image": image_ID[:num], "text": text_TD[:num], "scale": self.clip.logit_scale.exp()}
        if getattr(self.clip, "logit_bias", None) is not None:
            made["bias"] = self.clip.logit_bias
        if batch.negative_RKN is not None:
            made["negative"] = text_TD[num:].unflatten(0, batch.negative_RKN.shape[:2])
        if batch.negative_image_RCHW is not None:
            made["negative_image"] = image_ID[num:]
        return made


def to_batch(arrays: Mapping[str, np.ndarray], device: torch.device | str, spec: ImageSpec) -> Batch:
    """Return a rank's rows on its device, pixels normalised as open_clip does."""

    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
    # Tokens stay on the CPU: their lengths are needed there, without waiting for a GPU.
    moved = {
        name: value.long() if name in ("token", "negative") else value.to(device, non_blocking=True)
        for name, value in tensors.items()
    }
    pixels = {name: to_image(moved[name], spec) for name in ("image", "negative_image") if name in moved}
    return Batch(
        pixels["image"],
        moved["token"],
        negative_RKN=moved.get("negative"),
        valid_RK=moved.get("valid"),
        kind_RK=moved.get("kind"),
        negative_image_RCHW=pixels.get("negative_image"),
    )


def to_image(pixels_RHWC: Tensor, spec: ImageSpec) -> Tensor:
    """Return uint8 pixels as open_clip normalises them for the model, (R, C, H, W), on their own device."""
    device = pixels_RHWC.device
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (spec.mean, spec.std))
    image_RCHW = pixels_RHWC.permute(0, 3, 1, 2).contiguous().float()
    return image_RCHW.div_(255).sub_(mean).div_(std)


def make_optimizer(clip: nn.Module, config: FitConfig) -> torch.optim.AdamW:
    """Return AdamW over the trained weights, without decay where open_clip has none: vectors, scalars,
    norms."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in clip.named_parameters():
        if parameter.requires_grad:
            is_free = parameter.ndim < 2 or any(part in name for part in ("bn", "ln", "bias", "logit_scale"))
            (free if is_free else decayed).append(parameter)
    return torch.optim.AdamW(
        [{"params": free, "weight_decay": 0.0}, {"params": decayed, "weight_decay": config.weight_decay}],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


class Judged(NamedTuple):
    """This rank's share of a step's loss. The shares of all ranks sum to the loss; so do the parts and
    counts."""

    loss: Tensor
    parts: Mapping[str, Tensor] = {}
    """Its summands by name, if it is a sum."""
    counts: Tensor | None = None
    """Number of bad rows and of all rows, int64 (2,); none where they are not counted."""


class Objective(Protocol):
    """A loss, the weights trained by it, and the options of the optimizer.

    fit: the trainer reads ``accumulate``, ``autocast``, ``clip_norm`` and AdamW's options from it; group: the
    group of options that it belongs to. batch_size: rows of the global batch. key: seeds the model's random
    draws, together with step, rank and part. where: follows a step's number in messages, " of task 2" or
    nothing. said_weights: the initial weights in messages, none where earlier steps trained them; said_rate:
    the learning rate. clip: the model whose logit scale is kept within its bounds. trained: the module that
    holds all trained weights; towers: holds the same and embeds a ``Batch`` in one call, giving ``Made``.
    """

    @property
    def fit(self) -> FitConfig: ...
    @property
    def group(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def key(self) -> tuple[int, ...]: ...
    @property
    def where(self) -> str: ...
    @property
    def said_weights(self) -> str | None: ...
    @property
    def said_rate(self) -> str: ...
    @property
    def clip(self) -> Any: ...
    @property
    def trained(self) -> nn.Module: ...
    @property
    def towers(self) -> nn.Module: ...

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""

    def judge(self, made: Made, batch: Batch) -> Judged:
        """Return this rank's share of the loss of the global batch, given its embeddings."""


class PairsObjective:
    """``train.loss`` of pairs and their negatives."""

    group, where = "train", ""

    def __init__(
        self,
        clip: Any,
        config: FitConfig,
        num_steps: int,
        batch_size: int,
        num_kinds: int = 0,
        said_weights: str = "model.weights",
    ):
        """Raise UserError where the model cannot be trained as the config says."""
        self.clip = self.trained = clip
        self.fit, self.num_steps, self.batch_size = config, num_steps, batch_size
        self.key, self.said_weights = (config.seed,), said_weights
        self.said_rate = f"train.learning_rate={config.learning_rate}"
        self.loss = get_loss(config.loss)(torch.zeros(num_kinds))
        if not self.loss.bias and getattr(clip, "logit_bias", None) is not None:
            # A bias on all logits, as in open_clip's loss, changes no softmax.
            clip.logit_bias.requires_grad_(False)
        if config.freeze:
            freeze(clip, config.freeze)
        self.adapters = add_adapters(clip, config.lora_rank, config.seed) if config.lora_rank else None
        self.towers = Towers(clip)

    def rate_at(self, step: int) -> float:
        """Return the learning rate of ``step`` (from 0): open_clip's linear rise, then half a cosine."""
        warmup, rate = round(self.fit.warmup * self.num_steps), self.fit.learning_rate
        if step < warmup:
            return rate * (step + 1) / warmup
        progress = (step - warmup) / max(1, self.num_steps - warmup)
        return rate * (1 + math.cos(math.pi * progress)) / 2

    def plain_model(self) -> Any:
        """Return the current model without adapters: itself, or a copy with the adapters merged."""
        return merge_adapters(self.adapters) if self.adapters else self.clip

    def judge(self, made: Made, batch: Batch) -> Judged:
        """Return this rank's share of the loss, and how many of its rows are bad."""

        def collect(rows: Tensor | None) -> Any:
            return None if rows is None else gather(rows, self.batch_size)

        embedded = Embedded(
            image_ND=collect(made["image"]),
            text_ND=collect(made["text"]),
            scale=made["scale"],
            bias=made.get("bias"),
            negative_NKD=collect(made.get("negative")),
            valid_NK=collect(batch.valid_RK),
            kind_NK=collect(batch.kind_RK),
            negative_image_ND=collect(made.get("negative_image")),
            own=slice_own(self.batch_size),
        )
        loss = compute_loss(self.loss, embedded, self.fit)
        return Judged(loss if self.loss.in_shares else share_of(loss), counts=embedded.count_bad())
