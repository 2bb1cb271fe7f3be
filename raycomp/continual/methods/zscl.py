"""ZSCL: fine-tuning with distillation from the first model on reference images and texts, and weight
regularization.

N reference images, T reference texts, B of either drawn for a step, L tokens of context, D dims.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Pixels
from raycomp.continual.methods.tuner import TaskBatch, Tuner
from raycomp.core.losses import distil
from raycomp.models.architecture import ScorerSpec
from raycomp.models.clip import Clip
from raycomp.training.towers import Made, gather, slice_own, to_image

# Largest number of reference texts that a step's images are compared with.
_MOST_TEXTS = 1024


class Reference(NamedTuple):
    """Images and texts, not pairs, whose similarities are preserved."""

    pixels: Pixels
    token_TL: np.ndarray


@dataclass(frozen=True)
class HeldBatch(TaskBatch):
    """Rows of a task, and of the reference images that a step draws."""

    reference_RCHW: Tensor | None = None
    drawn: tuple[np.ndarray, np.ndarray] = (np.empty(0, np.int64), np.empty(0, np.int64))
    """Reference images and texts of the step, of all ranks."""


class Zscl(Tuner):
    """Zheng et al. 2023, arXiv:2303.06628, following the authors' code, with CLIP's loss of the task's pairs.

    ``distil`` is applied between images drawn from the reference and the first model's reference texts: each
    image should rank the texts as the first model did (images), and each text the images (texts). The logits
    of both sides have the first model's scale. The text tower is regularized by the other two parts alone:
    the squared distance from the weights at the start of the task (l2), and the mean of those weights and of
    the weights at every ``tune.ensemble``-th step. This mean is the result of a task; without such a step,
    the last weights are.

    The authors' reference is ImageNet with Conceptual Captions. A reference of the stream's own kind
    preserves the model's knowledge of such images, and less of its knowledge of other images, which general
    zero-shot test sets measure. Further choices: no label smoothing, because there are no classes; the logit
    scale is trained as in ``finetune``.
    """

    def __init__(
        self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int, reference: Reference | None
    ):
        """``reference`` may be none where ``tune.distil`` is 0."""
        super().__init__(clip, spec, config, seed)
        assert reference is not None or not self.config.distil, "zscl needs a reference"
        self.reference = reference
        if reference is not None and self.config.distil:
            model = self.model.eval()
            self.image_ND = torch.from_numpy(self.embed_images(model, reference.pixels)).to(self.device)
            self.text_TD = torch.from_numpy(self.embed_texts(model, reference.token_TL)).to(self.device)
            self.scale = self.model.logit_scale.detach().exp()
        self.start: dict[str, Tensor] = {}
        self.mean: dict[str, Tensor] = {}
        self.count = 0
        """Number of weights in the mean, in addition to those of the start."""

    def open(self) -> None:
        """Store the weights at the start of the task."""
        self.start = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        self.mean, self.count = {name: value.clone() for name, value in self.start.items()}, 0

    def batch(self, step: int, row_B: np.ndarray) -> TaskBatch:
        """Return this rank's rows, and those of the reference images that the step draws."""
        plain = super().batch(step, row_B)
        if not self.config.distil:
            return plain
        assert self.reference is not None
        rng = np.random.default_rng([self.seed, self.number, step])
        # Distinct rows, all of them if there are no more than a step takes.
        image_B = np.sort(rng.permutation(len(self.image_ND))[: self.config.batch_size])
        text_T = np.sort(rng.permutation(len(self.text_TD))[:_MOST_TEXTS])
        pixels = torch.from_numpy(self.reference.pixels[image_B[slice_own(len(image_B))]]).to(self.device)
        return HeldBatch(
            **vars(plain), reference_RCHW=to_image(pixels, self.spec.image), drawn=(image_B, text_T)
        )

    def embed_batch(self, batch: TaskBatch) -> Made:
        """Add the reference images, of length 1, and the distance of the weights from the start."""
        made = super().embed_batch(batch)
        if isinstance(batch, HeldBatch):
            made["reference"] = F.normalize(self.model.encode_image(batch.reference_RCHW).float(), dim=-1)
        if self.config.l2:
            far = [(value - self.start[name]).square().sum() for name, value in self.model.named_parameters()]
            made["l2"] = torch.stack(far).sum()
        return made

    def losses(self, made: Made, batch: TaskBatch) -> dict[str, Tensor]:
        """Return CLIP's loss and the regularization losses; a part of weight 0 is left out."""
        parts = super().losses(made, batch)
        if isinstance(batch, HeldBatch):
            image_B, text_T = batch.drawn
            image_BD, text_TD = gather(made["reference"], len(image_B)), self.text_TD[text_T]
            student_BT = self.scale * image_BD @ text_TD.T
            teacher_BT = self.scale * self.image_ND[image_B] @ text_TD.T
            parts["images"] = self.config.distil * distil(student_BT, teacher_BT)
            parts["texts"] = self.config.distil * distil(student_BT.T, teacher_BT.T)
        if self.config.l2:
            parts["l2"] = self.config.l2 * made["l2"]
        return parts

    def after(self, step: int) -> None:
        """Add these weights to the mean at every ``tune.ensemble``-th step."""
        if (step + 1) % self.config.ensemble:
            return
        self.count += 1
        for name, value in self.model.named_parameters():
            self.mean[name] += (value.detach() - self.mean[name]) / (self.count + 1)

    @torch.no_grad()
    def close(self) -> None:
        """Set the weights to the mean."""
        if self.count:
            for name, value in self.model.named_parameters():
                value.copy_(self.mean[name])
        self.start, self.mean, self.count = {}, {}, 0

    def learned(self) -> dict[str, Any]:
        """Return the weights, those of the start and their mean."""
        return {**super().learned(), "start": self.start, "mean": self.mean, "count": self.count}

    def relearn(self, learned: dict[str, Any]) -> None:
        """Restore them."""
        super().relearn(learned)
        self.start, self.mean = (
            {name: value.to(self.device) for name, value in learned[part].items()}
            for part in ("start", "mean")
        )
        self.count = learned["count"]
