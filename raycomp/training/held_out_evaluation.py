"""The figures of held-out pairs: the contrastive loss without negatives, and recall@1 both ways.

E evaluated pairs, N tokens of context, H x W x C pixels, D embedding dims.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raycomp.config import ModelConfig, UserError
from raycomp.core.losses import clip_loss
from raycomp.data.arrow import readable
from raycomp.data.folder import Folder
from raycomp.data.model import fetch_model
from raycomp.data.parquet import read_columns
from raycomp.models.images import ImageFault, ImageSpec, prepare_image
from raycomp.models.tokens import load_tokens
from raycomp.training.evaluation import evaluate_model
from raycomp.training.held_out import OPTION, write_start
from raycomp.training.towers import Towers, to_batch
from raycomp.training.training import HeldOutTables, Training
from raycomp.words import CAPTION, HELD_OUT_MEASURES, IMAGE, UID

_EVALUATIONS = 10
_ROWS = 64


class HeldOutEvaluation:
    """Holds the evaluated pairs as pixels and tokens in memory: 150 MB for 1,000 images of 224 x 224."""

    def __init__(
        self,
        held: HeldOutTables,
        model: ModelConfig,
        spec: ImageSpec,
        num_steps: int,
        interval: int | None = None,
    ):
        """``interval``: steps from one evaluation to the next; none = ten evaluations of ``num_steps``.

        Raises UserError where an image does not decode to pixels of the model.
        """
        self.spec, self.num_steps = spec, num_steps
        self.interval = interval or -(-num_steps // _EVALUATIONS)
        rows = list(_read_rows(held.uris))
        self.pixels_EHWC = np.stack([_prepare(uid, image, spec, held.max_pixels) for uid, image, _ in rows])
        texts = [readable(caption) for _, _, caption in rows]
        self.token_EN = load_tokens(fetch_model(model))(texts)

    def is_due(self, step: int) -> bool:
        """Return whether the model is evaluated after so many steps."""
        return step % self.interval == 0 or step == self.num_steps

    def run(self, clip: Any, step: int, row: Mapping[str, float]) -> dict[str, float]:
        """Return the figures after ``step`` steps; the model and all random states stay as they are.

        Raises UserError where ``row``, the step's other metrics, has one of their names.
        """
        for name in HELD_OUT_MEASURES:
            if name in row:
                raise UserError(f"evaluate: returned {name!r}, a measure of {OPTION}; use another name")
        return evaluate_model(self, clip, step)

    def run_before(self, clip: Any, work: Folder, tried: Mapping[str, float]) -> dict[str, float]:
        """Return the figures before the first step, and store them in ``work``.

        ``tried``: what another evaluation returned; raises as ``run``.
        """
        found = self.run(clip, 0, tried)
        write_start(found, work)
        return found

    def __call__(self, clip: Any, step: int) -> dict[str, float]:
        """Return the figures of a model in evaluation mode."""
        towers, device = Towers(clip), clip.logit_scale.device
        parts = []
        for start in range(0, len(self.token_EN), _ROWS):
            rows = slice(start, start + _ROWS)
            batch = {"image": self.pixels_EHWC[rows], "token": self.token_EN[rows]}
            parts.append(towers(to_batch(batch, device, self.spec)))
        image_ED, text_ED = (torch.cat([part[name] for part in parts]) for name in ("image", "text"))
        return measure(image_ED, text_ED, parts[0]["scale"])


def load_held_out(training: Training) -> HeldOutEvaluation | None:
    """Return the evaluation of a training's held-out pairs; none without such pairs."""
    if training.held_out is None:
        return None
    config, steps = training.config, training.num_steps
    interval = config.train.evaluate_steps
    return HeldOutEvaluation(training.held_out, config.model, training.image, steps, interval)


def measure(image_ED: Tensor, text_ED: Tensor, scale: Tensor | float) -> dict[str, float]:
    """Return the contrastive loss among all pairs, log E at chance, and recall@1, 0 to 1, both ways."""
    loss = float(clip_loss(image_ED, text_ED, scale))
    recalls = _recall_at_1(image_ED, text_ED), _recall_at_1(text_ED, image_ED)
    return dict(zip(HELD_OUT_MEASURES, (loss, *recalls), strict=True))


def _recall_at_1(query_ED: Tensor, target_ED: Tensor) -> float:
    """Return the share of queries whose own target scores strictly above all others: ties are wrong."""
    score_EE = query_ED @ target_ED.T
    own_E = score_EE.diagonal().clone()
    score_EE.fill_diagonal_(-torch.inf)
    return float((own_E > score_EE.amax(dim=1)).float().mean())


def _read_rows(uris: Sequence[str]) -> Iterator[tuple[str, bytes, str]]:
    for uri in uris:
        table = read_columns(uri, [UID, IMAGE, CAPTION])
        yield from zip(*(table[name].to_pylist() for name in (UID, IMAGE, CAPTION)), strict=True)


def _prepare(uid: str, image: bytes, spec: ImageSpec, max_pixels: int) -> np.ndarray:
    try:
        return prepare_image(image, spec, max_pixels)[0]
    except ImageFault as fault:
        raise UserError(
            f"{OPTION}: the image of uid {uid} cannot be evaluated: {fault.status} ({fault})"
        ) from fault
