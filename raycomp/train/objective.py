"""What a training makes small, and of which weights: ``Trainer`` takes the steps of any objective alike."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from raycomp.models.adapters import add_adapters, freeze, merge_adapters
from raycomp.train.config import FitConfig
from raycomp.train.losses import compute_loss, find_loss
from raycomp.train.ranks import gather
from raycomp.train.schedule import learning_rate_at
from raycomp.train.towers import Batch, Embedded, Made, Towers


class Judged(NamedTuple):
    """A step's loss, the same on all ranks."""

    loss: Tensor
    parts: Mapping[str, Tensor] = {}
    """What it is the sum of, by name, where it is one."""
    counts: Tensor | None = None
    """How many rows are bad, and how many there are, int64 (2,); none where they are not counted."""


class Objective(Protocol):
    """A loss, the weights that are trained by it, and how."""

    @property
    def fit(self) -> FitConfig:
        """Of which a trainer reads ``accumulate``, ``autocast``, ``clip_norm`` and what AdamW takes."""

    @property
    def group(self) -> str:
        """The group of options that ``fit`` is of, as messages name them."""

    @property
    def batch_size(self) -> int:
        """Rows of the global batch."""

    @property
    def key(self) -> tuple[int, ...]:
        """With the step, the rank and the part what a model draws from."""

    @property
    def where(self) -> str:
        """What the steps are of, as a message says it after a step's number: " of task 2", or nothing."""

    @property
    def said_weights(self) -> str | None:
        """What the first step's weights are, as a message says it; none where earlier steps trained them."""

    @property
    def said_rate(self) -> str:
        """The learning rate, as a message says it."""

    @property
    def clip(self) -> Any:
        """The model whose logit scale is kept within its bounds."""

    @property
    def trained(self) -> nn.Module:
        """The module that holds all weights that are trained."""

    @property
    def towers(self) -> nn.Module:
        """From a ``Batch`` to what is ``Made`` of it, as one call; it holds what ``trained`` holds."""

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""

    def judge(self, made: Made, batch: Batch) -> Judged:
        """Return the loss of the global batch, from what this rank made of its rows."""


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
            # Added to all logits alike, as open_clip's loss does, it changes nothing that is picked.
            clip.logit_bias.requires_grad_(False)
        freeze(clip, config.freeze)
        self.adapters = add_adapters(clip, config.lora_rank, config.seed) if config.lora_rank else None
        self.towers = Towers(clip)

    @property
    def said_rate(self) -> str:
        return f"train.learning_rate={self.fit.learning_rate}"

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step: a rise, then half a cosine."""
        return learning_rate_at(step, self.num_steps, self.fit)

    def plain_model(self) -> Any:
        """Return the model as it is now, without adapters: itself, or a copy with what they learned."""
        return merge_adapters(self.adapters) if self.adapters else self.clip

    def judge(self, made: Made, batch: Batch) -> Judged:
        """Return the loss of the global batch, and how many of its rows are bad."""
        embedded = Embedded(
            image_ND=self._gather(made["image"]),
            text_ND=self._gather(made["text"]),
            scale=made["scale"],
            bias=made.get("bias"),
            negative_NKD=self._gather(made.get("negative")),
            valid_NK=self._gather(batch.valid_RK),
            kind_NK=self._gather(batch.kind_RK),
            negative_image_ND=self._gather(made.get("negative_image")),
        )
        return Judged(compute_loss(self.loss, embedded, self.fit), counts=embedded.count_bad())

    def _gather(self, rows: Any) -> Any:
        return None if rows is None else gather(rows, self.batch_size)
