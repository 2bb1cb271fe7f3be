"""From the embeddings of a global batch to its loss, and what the next step takes of it.

N pairs, K hard negatives per caption, S kinds of them, D embedding dims.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from raycomp.core.alignment import has_unit_length
from raycomp.core.losses import ceclip_parts, clip_loss, negclip_loss, siglip_loss, triplet_loss
from raycomp.train.config import FitConfig


@dataclass(frozen=True)
class Embedded:
    """The global batch as a model embeds it; rows of length 1."""

    image_ND: Tensor
    text_ND: Tensor
    scale: Tensor
    bias: Tensor | None = None
    """siglip: what is added to every logit."""
    negative_NKD: Tensor | None = None
    valid_NK: Tensor | None = None
    """Where there is a negative."""
    kind_NK: Tensor | None = None
    """ceclip: the number of a negative's operation and kind, below S."""
    negative_image_ND: Tensor | None = None
    """triplet: what shows each first negative, where ``valid_NK``."""

    def count_bad(self) -> Tensor:
        """Return how many rows are not finite or not of length 1, and how many there are; int64 (2,).

        Slots without a negative do not count. Asks nothing of the CPU.
        """
        parts: list[tuple[Tensor, Tensor | None]] = [(self.image_ND, None), (self.text_ND, None)]
        if self.negative_NKD is not None:
            parts.append((self.negative_NKD, self.valid_NK))
        if self.negative_image_ND is not None and self.valid_NK is not None:
            parts.append((self.negative_image_ND, self.valid_NK[:, 0]))
        counts = []
        for rows, valid in parts:
            is_bad = ~has_unit_length(rows.detach())
            valid = torch.ones_like(is_bad) if valid is None else valid
            counts.append(torch.stack([(is_bad & valid).sum(), valid.sum()]))
        return torch.stack(counts).sum(0)


class Objective:
    """A loss, and the margins that CE-CLIP's carries from step to step."""

    def __init__(self, config: FitConfig, num_kinds: int = 0):
        self.config = config
        self.margin_S = torch.zeros(num_kinds)

    def __call__(self, batch: Embedded) -> Tensor:
        """Return the loss of a global batch that holds what the loss needs."""
        pairs = batch.image_ND, batch.text_ND
        if self.config.loss == "clip":
            return clip_loss(*pairs, batch.scale)
        if self.config.loss == "siglip":
            assert batch.bias is not None, "siglip: the model has no bias"
            return siglip_loss(*pairs, batch.scale, batch.bias)
        negative_NKD, valid_NK = batch.negative_NKD, batch.valid_NK
        assert negative_NKD is not None and valid_NK is not None, "a batch without negatives"
        if self.config.loss == "negclip":
            return negclip_loss(*pairs, negative_NKD, valid_NK, batch.scale)
        if self.config.loss == "triplet":
            assert batch.negative_image_ND is not None, "a batch without images of negatives"
            return triplet_loss(
                *pairs, batch.negative_image_ND, negative_NKD[:, 0], valid_NK[:, 0], batch.scale
            )
        assert batch.kind_NK is not None, "a batch without kinds of negatives"
        margin_S = self.margin_S.to(batch.image_ND.device)
        parts = ceclip_parts(*pairs, negative_NKD, valid_NK, batch.kind_NK, margin_S, batch.scale)
        self.margin_S = parts.margin_S
        return parts.negclip + self.config.imc * parts.imc + self.config.cmr * parts.cmr
