"""Objectives: the minimized loss and the trained weights. ``Trainer`` runs any of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from raycomp.models.adapters import add_adapters, freeze, merge_adapters
from raycomp.training.config import FitConfig
from raycomp.training.losses import compute_loss, find_loss
from raycomp.training.ranks import find_own, gather, share_of
from raycomp.training.schedule import learning_rate_at
from raycomp.training.towers import Batch, Embedded, Made, Towers


class Judged(NamedTuple):
    """This rank's share of a step's loss. The shares of all ranks sum to the loss; so do the parts and
    counts."""

    loss: Tensor
    parts: Mapping[str, Tensor] = {}
    """Its summands by name, if it is a sum."""
    counts: Tensor | None = None
    """Number of bad rows and of all rows, int64 (2,); none where they are not counted."""


class Objective(Protocol):
    """A loss, the weights trained by it, and the options of the optimizer."""

    @property
    def fit(self) -> FitConfig:
        """The trainer reads ``accumulate``, ``autocast``, ``clip_norm`` and AdamW's options from it."""

    @property
    def group(self) -> str:
        """The group of options that ``fit`` belongs to, for messages."""

    @property
    def batch_size(self) -> int:
        """Rows of the global batch."""

    @property
    def key(self) -> tuple[int, ...]:
        """Seeds the model's random draws, together with step, rank and part."""

    @property
    def where(self) -> str:
        """Follows a step's number in messages: " of task 2", or nothing."""

    @property
    def said_weights(self) -> str | None:
        """The initial weights, for messages; none where earlier steps trained them."""

    @property
    def said_rate(self) -> str:
        """The learning rate, for messages."""

    @property
    def clip(self) -> Any:
        """The model whose logit scale is kept within its bounds."""

    @property
    def trained(self) -> nn.Module:
        """The module that holds all weights that are trained."""

    @property
    def towers(self) -> nn.Module:
        """Embeds a ``Batch`` in one call, giving ``Made``; it holds the same weights as ``trained``."""

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
        self.loss = find_loss(config.loss)(torch.zeros(num_kinds))
        if not self.loss.bias and getattr(clip, "logit_bias", None) is not None:
            # A bias on all logits, as in open_clip's loss, changes no softmax.
            clip.logit_bias.requires_grad_(False)
        freeze(clip, config.freeze)
        self.adapters = add_adapters(clip, config.lora_rank, config.seed) if config.lora_rank else None
        self.towers = Towers(clip)

    @property
    def said_rate(self) -> str:
        return f"train.learning_rate={self.fit.learning_rate}"

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, then half a cosine."""
        return learning_rate_at(step, self.num_steps, self.fit)

    def plain_model(self) -> Any:
        """Return the current model without adapters: itself, or a copy with the adapters merged."""
        return merge_adapters(self.adapters) if self.adapters else self.clip

    def judge(self, made: Made, batch: Batch) -> Judged:
        """Return this rank's share of the loss, and how many of its rows are bad."""
        embedded = Embedded(
            image_ND=self._gather(made["image"]),
            text_ND=self._gather(made["text"]),
            scale=made["scale"],
            bias=made.get("bias"),
            negative_NKD=self._gather(made.get("negative")),
            valid_NK=self._gather(batch.valid_RK),
            kind_NK=self._gather(batch.kind_RK),
            negative_image_ND=self._gather(made.get("negative_image")),
            own=find_own(self.batch_size),
        )
        loss = compute_loss(self.loss, embedded, self.fit)
        return Judged(loss if self.loss.in_shares else share_of(loss), counts=embedded.count_bad())

    def _gather(self, rows: Any) -> Any:
        return None if rows is None else gather(rows, self.batch_size)
