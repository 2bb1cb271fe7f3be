"""The training loop: a model, a loss, batches of the plan; the same whether one rank has a batch or many.

B pairs of the global batch, R those of this rank, K hard negatives per caption, C x H x W pixels, N tokens of
context, D embedding dims.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.config.train import FitConfig
from raycomp.loops.train.objective import Embedded, Objective
from raycomp.loops.train.ranks import gather
from raycomp.models.short_text import encode_text

MAX_LOGIT_SCALE = math.log(100)


@dataclass(frozen=True)
class Batch:
    """A rank's rows of a global batch, ready for the model."""

    image_RCHW: Tensor
    token_RN: Tensor
    negative_RKN: Tensor | None = None
    valid_RK: Tensor | None = None
    kind_RK: Tensor | None = None
    negative_image_RCHW: Tensor | None = None


class Told(NamedTuple):
    """What a step tells."""

    step: int
    """Of this step, from 0."""
    loss: float
    """Of the global batch, before the step."""
    learning_rate: float


class Towers(nn.Module):
    """open_clip's model as one call, which is what DistributedDataParallel needs."""

    def __init__(self, clip: Any):
        super().__init__()
        self.clip = clip

    def forward(self, image_ICHW: Tensor, token_TN: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return images (I, D) and texts (T, D) of length 1 in fp32, exp(logit_scale) and the bias."""
        image_ID = F.normalize(self.clip.encode_image(image_ICHW).float(), dim=-1)
        text_TD = F.normalize(encode_text(self.clip, token_TN).float(), dim=-1)
        return image_ID, text_TD, self.clip.logit_scale.exp(), getattr(self.clip, "logit_bias", None)


class Trainer:
    """A model on its way: the step that comes next, the optimiser, and what the loss carries along.

    ``wrap`` puts the model behind DistributedDataParallel where there are several ranks.
    """

    def __init__(
        self,
        clip: Any,
        config: FitConfig,
        num_steps: int,
        batch_size: int,
        num_kinds: int = 0,
        wrap: Any = lambda towers: towers,
    ):
        self.clip, self.config, self.num_steps, self.batch_size = clip, config, num_steps, batch_size
        self.towers = wrap(Towers(clip))
        self.objective = Objective(config, num_kinds)
        self.optimizer = make_optimizer(clip, config)
        self.step = 0

    def run(self, batches: Iterable[Batch]) -> Iterator[Told]:
        """Yield what each step tells, up to ``num_steps``. Raises ValueError where a loss is not finite."""
        self.clip.train()
        for batch in batches:
            if self.step == self.num_steps:
                return
            rate = learning_rate_at(self.step, self.num_steps, self.config)
            loss = self._take(batch, rate)
            self.step += 1
            yield Told(self.step - 1, loss, rate)

    def _take(self, batch: Batch, rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        device = batch.image_RCHW.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.autocast):
            embedded = self._embed(batch)
        loss = self.objective(embedded)
        if not torch.isfinite(loss):
            raise ValueError(
                f"loss={loss.item()} at step {self.step}: must be finite; "
                f"train.learning_rate={self.config.learning_rate} may be too high"
            )
        self.optimizer.zero_grad()
        loss.backward()
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.clip.parameters(), self.config.clip_norm)
        self.optimizer.step()
        with torch.no_grad():
            self.clip.logit_scale.clamp_(0, MAX_LOGIT_SCALE)
        return loss.item()

    def _embed(self, batch: Batch) -> Embedded:
        """Embed all images and all texts of this rank in one call, gather those of all ranks."""
        num, texts, images = len(batch.token_RN), [batch.token_RN], [batch.image_RCHW]
        if batch.negative_RKN is not None:
            texts.append(batch.negative_RKN.flatten(0, 1))
        if batch.negative_image_RCHW is not None:
            images.append(batch.negative_image_RCHW)
        image_ID, text_TD, scale, bias = self.towers(torch.cat(images), torch.cat(texts))
        negative_RKD = None
        if batch.negative_RKN is not None:
            negative_RKD = text_TD[num:].unflatten(0, batch.negative_RKN.shape[:2])
        return Embedded(
            image_ND=self._gather(image_ID[:num]),
            text_ND=self._gather(text_TD[:num]),
            scale=scale,
            bias=bias,
            negative_NKD=self._gather(negative_RKD),
            valid_NK=self._gather(batch.valid_RK),
            kind_NK=self._gather(batch.kind_RK),
            negative_image_ND=self._gather(image_ID[num:]) if len(images) > 1 else None,
        )

    def _gather(self, rows: Any) -> Any:
        return None if rows is None else gather(rows, self.batch_size)


def learning_rate_at(step: int, num_steps: int, config: FitConfig) -> float:
    """Return the learning rate of ``step`` (from 0): open_clip's linear rise, then half a cosine."""
    warmup = round(config.warmup * num_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, num_steps - warmup)
    return config.learning_rate * (1 + math.cos(math.pi * progress)) / 2


def make_optimizer(clip: nn.Module, config: FitConfig) -> torch.optim.AdamW:
    """Return AdamW over what is trained, with no decay where open_clip has none: vectors, scalars, norms."""
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
