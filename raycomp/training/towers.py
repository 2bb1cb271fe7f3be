"""Embeds a rank's rows with both towers, and holds the global batch for a loss.

N pairs of the global batch (and tokens of context), R rows of a rank, of I images and T texts in all, K hard
negatives per caption, C x H x W pixels, D embedding dims.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.core.alignment import has_unit_length
from raycomp.core.epochs import slice_of
from raycomp.models.images import ImageSpec
from raycomp.models.short_text import encode_text

Made = dict[str, Tensor]
"""The outputs of a model for a batch, by name: a value per row, or one for the whole model."""
OF_ALL = ("scale", "bias", "l2")
"""The names of the outputs that are one for the whole model."""


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
        return self._take(lambda _: rows)

    def split(self, num_parts: int) -> list[Self]:
        """Return the rows in so many parts."""
        return [
            self._take(lambda num, part=part: slice_of(part, num_parts, num))  # type: ignore[misc]
            for part in range(num_parts)
        ]

    def _take(self, choose: Callable[[int], slice]) -> Self:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        rows = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **{name: value[choose(len(value))] for name, value in rows.items()})


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


def join_parts(parts: list[Made]) -> Made:
    """Return the outputs of a batch, joined from those of its parts."""
    return {
        name: value if name in OF_ALL else torch.cat([part[name] for part in parts])
        for name, value in parts[0].items()
    }


def to_batch(arrays: Mapping[str, np.ndarray], device: torch.device | str, spec: ImageSpec) -> Batch:
    """Return a rank's rows on its device, pixels normalised as open_clip does."""

    def move(name: str) -> Tensor | None:
        return torch.from_numpy(arrays[name]).to(device, non_blocking=True) if name in arrays else None

    def normalise(name: str) -> Any:
        pixels_RHWC = move(name)
        return None if pixels_RHWC is None else to_image(pixels_RHWC, spec)

    return Batch(
        normalise("image"),
        # Tokens stay on the CPU: their lengths are needed there, without waiting for a GPU.
        token_RN=torch.from_numpy(arrays["token"]).long(),
        negative_RKN=torch.from_numpy(arrays["negative"]).long() if "negative" in arrays else None,
        valid_RK=move("valid"),
        kind_RK=move("kind"),
        negative_image_RCHW=normalise("negative_image"),
    )


def to_image(pixels_RHWC: Tensor, spec: ImageSpec) -> Tensor:
    """Return uint8 pixels as open_clip normalises them for the model, (R, C, H, W), on their own device."""
    device = pixels_RHWC.device
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (spec.mean, spec.std))
    image_RCHW = pixels_RHWC.permute(0, 3, 1, 2).contiguous().float()
    return image_RCHW.div_(255).sub_(mean).div_(std)
