"""Losses against slow loops, limits and numerical gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raycomp.core.losses import clip_loss


def embeddings(num: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(num, dim, dtype=torch.float64, generator=generator), dim=-1)


def slow_clip_loss(image_BD: Tensor, text_BD: Tensor, scale: float) -> float:
    total = 0.0
    for i, image in enumerate(image_BD):
        own = math.exp(scale * float(image @ text_BD[i]))
        texts = sum(math.exp(scale * float(image @ text)) for text in text_BD)
        images = sum(math.exp(scale * float(other @ text_BD[i])) for other in image_BD)
        total -= (math.log(own / texts) + math.log(own / images)) / 2
    return total / len(image_BD)


@pytest.mark.parametrize("scale", (1.0, 14.3, 100.0))
@pytest.mark.parametrize("num", (1, 2, 9))
def test_clip_loss_equals_a_slow_loop(num: int, scale: float) -> None:
    image_BD, text_BD = embeddings(num, 5, seed=1), embeddings(num, 5, seed=2)
    assert float(clip_loss(image_BD, text_BD, scale)) == pytest.approx(
        slow_clip_loss(image_BD, text_BD, scale), rel=1e-9, abs=1e-12
    )


def test_clip_loss_gradients_are_the_numerical_ones() -> None:
    inputs = [embeddings(4, 3, seed=3), embeddings(4, 3, seed=4), torch.tensor(7.0, dtype=torch.float64)]
    assert torch.autograd.gradcheck(clip_loss, [value.requires_grad_() for value in inputs])


def test_clip_loss_limits() -> None:
    same = embeddings(1, 4, seed=5).expand(6, 4)
    assert float(clip_loss(same, same, 50.0)) == pytest.approx(math.log(6))
    own = torch.eye(6, dtype=torch.float64)
    assert float(clip_loss(own, own, 100.0)) == pytest.approx(0, abs=1e-12)
    assert float(clip_loss(own, own.roll(1, 0), 100.0)) == pytest.approx(100)


def test_clip_loss_has_no_side_and_no_order() -> None:
    image_BD, text_BD = embeddings(8, 5, seed=6), embeddings(8, 5, seed=7)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    loss = float(clip_loss(image_BD, text_BD, 10.0))
    assert float(clip_loss(text_BD, image_BD, 10.0)) == pytest.approx(loss)
    assert float(clip_loss(image_BD[order], text_BD[order], 10.0)) == pytest.approx(loss)


def test_clip_loss_names_shapes_that_differ() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4\), \(2, 4\)"):
        clip_loss(embeddings(3, 4, seed=8), embeddings(2, 4, seed=9), 1.0)
