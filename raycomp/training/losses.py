"""Every loss by name: the parts of a batch that it needs, and the call; the mathematics is in core/losses.py.

Options are checked against a loss's needs without torch, which is loaded only to compute a loss.
"""

from typing import TYPE_CHECKING

from raycomp.config import UserError
from raycomp.config.commands import call_own, is_own, load_own
from raycomp.config.options import check_choice

if TYPE_CHECKING:
    from torch import Tensor

    from raycomp.training.config import FitConfig
    from raycomp.training.towers import Embedded

OPTION = "train.loss"


class Loss:
    """A loss of the global batch; a user's own is a subclass in a file, ``train.loss=FILE.py:NAME``."""

    negatives = False
    """Whether it takes hard negatives: ``negative_NKD``, ``valid_NK`` and ``kind_NK`` of the batch."""
    negative_images = False
    """Whether it also takes ``negative_image_ND``: then a caption has one negative, which has an image."""
    in_shares = False
    """Whether it returns the share of the rows ``batch.own``: the shares of a batch's parts sum to its loss.
    A loss that is not in shares is computed by every rank for the whole batch."""
    bias = False
    """Whether it adds the model's learned bias to the logits; a model without one gets one."""

    def __init__(self, margin_S: "Tensor"):
        """``margin_S``: fp32, a number for each kind of negatives, 0 before the first step.

        A loss may replace it at each step. A checkpoint holds it.
        """
        self.margin_S = margin_S

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        """Return the loss of the batch, or the share of its rows ``own``; a scalar."""
        raise NotImplementedError


class ClipLoss(Loss):
    in_shares = True

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import clip_loss

        return clip_loss(batch.image_ND, batch.text_ND, batch.scale, batch.own)


class NegClipLoss(Loss):
    in_shares = True
    negatives = True

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import negclip_loss

        assert batch.negative_NKD is not None and batch.valid_NK is not None, "a batch without negatives"
        rows = batch.image_ND, batch.text_ND, batch.negative_NKD, batch.valid_NK
        return negclip_loss(*rows, batch.scale, batch.own)


class CeClipLoss(NegClipLoss):
    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import ceclip_parts

        assert batch.negative_NKD is not None and batch.valid_NK is not None, "a batch without negatives"
        assert batch.kind_NK is not None, "a batch without kinds of negatives"
        rows = batch.image_ND, batch.text_ND, batch.negative_NKD, batch.valid_NK, batch.kind_NK
        margin_S = self.margin_S.to(batch.image_ND.device)
        parts = ceclip_parts(*rows, margin_S, batch.scale, own=batch.own)
        self.margin_S = parts.margin_S
        return parts.negclip + config.imc * parts.imc + config.cmr * parts.cmr


class TripletLoss(NegClipLoss):
    negative_images = True

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import triplet_loss

        assert batch.negative_NKD is not None and batch.valid_NK is not None, "a batch without negatives"
        assert batch.negative_image_ND is not None, "a batch without images of negatives"
        rows = batch.image_ND, batch.text_ND, batch.negative_image_ND, batch.negative_NKD[:, 0]
        return triplet_loss(*rows, batch.valid_NK[:, 0], batch.scale, batch.own)


class SigLipLoss(Loss):
    in_shares = True
    bias = True

    def __call__(self, batch: "Embedded", config: "FitConfig") -> "Tensor":
        from raycomp.core.losses import siglip_loss

        assert batch.bias is not None, "siglip: needs a model with a bias"
        return siglip_loss(batch.image_ND, batch.text_ND, batch.scale, batch.bias, batch.own)


LOSSES: dict[str, type[Loss]] = {
    "clip": ClipLoss,
    "negclip": NegClipLoss,
    "ceclip": CeClipLoss,
    "triplet": TripletLoss,
    "siglip": SigLipLoss,
}


def get_loss(name: str) -> type[Loss]:
    """Return the loss that ``train.loss`` names, of ``LOSSES`` or of the user's own file. Raises ValueError,
    one line, for an unknown loss."""
    if not is_own(name):
        check_choice(OPTION, name, tuple(LOSSES), ", or FILE.py:NAME")
        return LOSSES[name]
    found = load_own(OPTION, name)
    if not (isinstance(found, type) and issubclass(found, Loss)):
        raise ValueError(
            f"{OPTION}={name}: must name a subclass of raycomp.training.losses.Loss in that file"
        )
    if found.__call__ is Loss.__call__:
        raise ValueError(f"{OPTION}={name}: must define __call__(self, batch, config)")
    return found


def compute_loss(loss: Loss, batch: "Embedded", config: "FitConfig") -> "Tensor":
    """Return the loss of a batch. Raises UserError, one line, for an error in the user's own file."""
    if config.loss in LOSSES:
        return loss(batch, config)
    found = call_own(OPTION, config.loss, loss, batch, config)
    if getattr(found, "shape", None) != ():
        kind = f"{type(found).__name__} of shape {[*found.shape]}" if hasattr(found, "shape") else repr(found)
        raise UserError(f"{OPTION}={config.loss}: must return a tensor with one number, not {kind[:80]}")
    return found
