"""The theory, run: encoders of one alignment loss, of which one sees composition and the other does not.

Built: g* and g** of ``core/scm.py``, exact. Trained: two text towers that differ in whether they see the order
of the tokens, on the same pairs; what the theorems say exists, training need not find. Both on data whose
order is redundant, and on data in which every scene also occurs mirrored, where it is not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raycomp.core import scm
from raycomp.core.losses import clip_loss
from raycomp.core.probe import held_out_r2, pair_distance, two_way_choice

BUILT, TRAINED = "built", "trained"
BLIND, ORDERED = "order-blind", "order-sensitive"
INFONCE = "infonce"
# What a row measures, and the head of its column.
MEASURES = {
    INFONCE: "InfoNCE",
    "swap": "SWAP",
    "replace": "REPLACE",
    "add": "ADD",
    "paraphrase_distance": "synonyms",
    "text_invariant_r2": "z_inv|g",
    "text_private_r2": "private|g",
    "image_invariant_r2": "z_inv|f",
    "image_private_r2": "private|f",
}
SCALE = 20.0
MIRRORED = (0.0, 1.0)
_NUM_HELD_OUT, _NUM_BATCHES = 1024, 8
_STEPS, _BATCH, _RATE, _WIDTH, _DIM = 400, 256, 2e-3, 64, 32
# Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)

Encode = Callable[[np.ndarray], np.ndarray]


def run_theory(
    seeds: Sequence[int] = range(5), versions: Sequence[str] = (BUILT, TRAINED), steps: int = _STEPS
) -> list[dict[str, Any]]:
    """Return one row per version, share of mirrored scenes, seed and encoder, with every one of ``MEASURES``.

    A seed draws a world, its data and the towers' weights. InfoNCE is the symmetric loss of batches of 128 at
    inverse temperature ``SCALE`` (even g* is not at 0: a batch repeats scenes, and scenes are alike); SWAP,
    REPLACE and ADD are accuracies of the choice between caption and edit given the image; synonyms is
    |g(T) - g(T')| for T' of synonyms; the rest are R^2 of a latent given the text or image embedding, on
    scenes that the regression did not see. Leaves torch's random state and number of threads as they were.
    """
    rows = []
    for version in versions:
        for mirrored in MIRRORED:
            for seed in seeds:
                world = scm.draw_world(seed, mirrored=mirrored)
                make = _build if version == BUILT else _train
                for encoder in (BLIND, ORDERED):
                    text, image = make(world, encoder, seed, steps)
                    head = {"version": version, "mirrored": mirrored, "seed": seed, "encoder": encoder}
                    rows.append(head | measure(world, text, image, np.random.default_rng([seed, 1])))
    return rows


def measure(world: scm.World, text: Encode, image: Encode, rng: np.random.Generator) -> dict[str, float]:
    """Return every one of ``MEASURES`` of a pair of encoders on fresh pairs of ``world``."""
    sample = scm.draw_sample(world, _NUM_HELD_OUT, rng)
    image_ND, text_ND = image(sample.image_NI), text(scm.observe_texts(world, sample.texts))
    batches = zip(np.split(image_ND, _NUM_BATCHES), np.split(text_ND, _NUM_BATCHES), strict=True)
    losses = [clip_loss(torch.tensor(i), torch.tensor(t), SCALE).item() for i, t in batches]
    values = {INFONCE: float(np.mean(losses))}
    for op, edit in scm.OPERATORS.items():
        edited_ND = text(scm.observe_texts(world, edit(sample.texts, rng)))
        values[op.lower()] = float(two_way_choice(image_ND, text_ND, edited_ND).mean())
    same_ND = text(scm.observe_texts(world, scm.paraphrase(sample.texts)))
    values["paraphrase_distance"] = float(pair_distance(text_ND, same_ND).mean())
    style_NM = sample.texts.style_NKP.reshape(_NUM_HELD_OUT, -1)
    sides = (("text", text_ND, style_NM), ("image", image_ND, sample.private_NP))
    for name, embedding_ND, private_NM in sides:
        for block, latent_NM in (("invariant", sample.invariant_NZ), ("private", private_NM)):
            r2 = held_out_r2(embedding_ND, latent_NM, sample.scene_N, np.random.default_rng(0))
            values[f"{name}_{block}_r2"] = r2
    return values


def _build(world: scm.World, encoder: str, seed: int, steps: int) -> tuple[Encode, Encode]:
    encode = scm.encode_by_votes if encoder == BLIND else scm.encode_by_order
    return lambda column_NKE: encode(world, column_NKE), lambda image_NI: scm.encode_images(world, image_NI)


class _TextTower(nn.Module):
    """Tokens one by one through a small network, then their mean, or their sequence, through another."""

    def __init__(self, num_columns: int, column_size: int, is_ordered: bool):
        super().__init__()
        self.token = nn.Sequential(nn.Linear(column_size, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
        self.is_ordered = is_ordered
        self.head = _make_head(_WIDTH * (num_columns if is_ordered else 1))

    def forward(self, column_NKE: Tensor) -> Tensor:
        valid_NK1 = (column_NKE != 0).any(dim=2, keepdim=True)
        hidden_NKW = self.token(column_NKE) * valid_NK1
        pooled = hidden_NKW.flatten(1) if self.is_ordered else hidden_NKW.sum(1) / valid_NK1.sum(1)
        return F.normalize(self.head(pooled), dim=1)


class _ImageTower(nn.Sequential):
    def forward(self, image_NI: Tensor) -> Tensor:
        return F.normalize(super().forward(image_NI), dim=1)


def _make_head(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 256), nn.GELU(), nn.Linear(256, _DIM))


def _train(world: scm.World, encoder: str, seed: int, steps: int) -> tuple[Encode, Encode]:
    """Train both towers by InfoNCE on fresh pairs in every step, one thread."""
    rng = np.random.default_rng([seed, 2])
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sample = scm.draw_sample(world, 1, rng)
        column_NKE = scm.observe_texts(world, sample.texts)
        text = _TextTower(*column_NKE.shape[1:], is_ordered=encoder == ORDERED)
        image = _ImageTower(*_make_head(sample.image_NI.shape[1]))
    optimizer = torch.optim.Adam([*text.parameters(), *image.parameters()], lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        sample = scm.draw_sample(world, _BATCH, rng)
        column_NKE = scm.observe_texts(world, sample.texts)
        loss = clip_loss(image(_tensor(sample.image_NI)), text(_tensor(column_NKE)), SCALE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    torch.set_num_threads(num_threads)
    return _to_arrays(text), _to_arrays(image)


def _tensor(value: np.ndarray) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _to_arrays(tower: nn.Module) -> Encode:
    def encode(value: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return tower(_tensor(value)).numpy()

    return encode
