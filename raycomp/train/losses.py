"""Every loss by name: the parts of a batch that it needs, and the call; the mathematics is in core/losses.py.

Options are checked against a loss's needs without torch, which is loaded only to compute a loss.
"""

import hashlib
import os
import traceback
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from raycomp.config import UserError
from raycomp.config.check import check_choice
from raycomp.config.jobs import in_one_line, run_file
from raycomp.models.faults import one_line

if TYPE_CHECKING:
    from torch import Tensor

    from raycomp.train.config import FitConfig
    from raycomp.train.towers import Embedded


class Loss:
    """A loss of the global batch; a user's own is a subclass in a file, ``train.loss=FILE.py:NAME``."""

    negatives = False
    """Whether it takes hard negatives: ``negative_NKD``, ``valid_NK`` and ``kind_NK`` of the batch."""
    negative_images = False
    """Whether it also takes ``negative_image_ND``: then a caption has one negative, which has an image."""
    bias = False
    """Whether it adds the model's learned bias to the logits; a model without one gets one."""

    def __init__(self, margin_S: "Tensor"):
        """``margin_S``: fp32, a number for each kind of negatives, 0 before the first step.

        A loss may replace it at each step. A checkpoint holds it.
        """
        self.margin_S = margin_S

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        """Return the loss, a scalar; every rank computes it of the same batch."""
        raise NotImplementedError


class ClipLoss(Loss):
    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import clip_loss

        return clip_loss(batch.image_ND, batch.text_ND, batch.scale)


class NegClipLoss(Loss):
    negatives = True

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import negclip_loss

        assert batch.negative_NKD is not None and batch.valid_NK is not None, "a batch without negatives"
        return negclip_loss(batch.image_ND, batch.text_ND, batch.negative_NKD, batch.valid_NK, batch.scale)


class CeClipLoss(Loss):
    negatives = True

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import ceclip_parts

        assert batch.negative_NKD is not None and batch.valid_NK is not None, "a batch without negatives"
        assert batch.kind_NK is not None, "a batch without kinds of negatives"
        parts = ceclip_parts(
            batch.image_ND,
            batch.text_ND,
            batch.negative_NKD,
            batch.valid_NK,
            batch.kind_NK,
            self.margin_S.to(batch.image_ND.device),
            batch.scale,
        )
        self.margin_S = parts.margin_S
        return parts.negclip + config.imc * parts.imc + config.cmr * parts.cmr


class TripletLoss(Loss):
    negatives = True
    negative_images = True

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import triplet_loss

        assert batch.negative_NKD is not None and batch.valid_NK is not None, "a batch without negatives"
        assert batch.negative_image_ND is not None, "a batch without images of negatives"
        return triplet_loss(
            batch.image_ND,
            batch.text_ND,
            batch.negative_image_ND,
            batch.negative_NKD[:, 0],
            batch.valid_NK[:, 0],
            batch.scale,
        )


class SigLipLoss(Loss):
    bias = True

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import siglip_loss

        assert batch.bias is not None, "siglip: needs a model with a bias"
        return siglip_loss(batch.image_ND, batch.text_ND, batch.scale, batch.bias)


LOSSES: dict[str, type[Loss]] = {
    "clip": ClipLoss,
    "negclip": NegClipLoss,
    "ceclip": CeClipLoss,
    "triplet": TripletLoss,
    "siglip": SigLipLoss,
}


def find_loss(name: str) -> type[Loss]:
    """Return the loss that ``train.loss`` names, of ``LOSSES`` or of the user's own file. Raises ValueError,
    one line, for an unknown loss."""
    path, _, own = name.rpartition(":")
    if not path.endswith(".py"):
        check_choice("train.loss", name, tuple(LOSSES), ", or FILE.py:NAME")
        return LOSSES[name]
    if not os.path.isfile(path):
        raise ValueError(f"train.loss={name!r}: no such file; it must be a Python file, FILE.py:NAME")
    return _load(path, own, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=8)
def _load(path: str, own: str, mtime_ns: int) -> type[Loss]:
    name = f"train.loss={path}:{own}"
    with in_one_line(name, "define a loss"):
        found = getattr(run_file(path), own, None)
    if not (isinstance(found, type) and issubclass(found, Loss)):
        raise ValueError(f"{name}: must name a subclass of raycomp.train.losses.Loss in that file")
    if found.__call__ is Loss.__call__:
        raise ValueError(f"{name}: must define __call__(self, batch, config)")
    return found


def compute_loss(loss: Loss, batch: "Embedded", config: "FitConfig") -> "Tensor":
    """Return the loss of a batch. Raises UserError, one line, for an error in the user's own file."""
    if config.loss in LOSSES:
        return loss(batch, config)
    try:
        found = loss(batch, config)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {one_line(error)} ({line.filename}, line {line.lineno})"
        raise UserError(f"train.loss={config.loss}: {said}") from error
    if getattr(found, "shape", None) != ():
        kind = f"{type(found).__name__} of shape {[*found.shape]}" if hasattr(found, "shape") else repr(found)
        raise UserError(f"train.loss={config.loss}: must return a tensor with one number, not {kind[:80]}")
    return found


def fingerprint_loss(name: str) -> dict[str, str]:
    """Return the SHA-256 of the user's file that a loss comes from, under "loss"; empty for raycomp's own
    losses."""
    if name in LOSSES:
        return {}
    return {"loss": hashlib.sha256(Path(name.rpartition(":")[0]).read_bytes()).hexdigest()}
