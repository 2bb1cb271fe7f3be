"""Batches that a thread makes ahead are the same, in the same order."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from raycomp.models.images import ImageSpec
from raycomp.training.loop import prefetch
from raycomp.training.towers import to_batch

SPEC = ImageSpec(8, 8, (0.5,) * 3, (0.25,) * 3)
CPU = torch.device("cpu")


def draw(num: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(num):
        image = rng.integers(0, 256, (4, 8, 8, 3), np.uint8)
        image.flags.writeable = False  # as from the object store
        yield {"image": image, "token": rng.integers(0, 99, (4, 16), np.int32), "valid": np.eye(4, 2) > 0}


def check(device: torch.device) -> None:
    found = list(prefetch(draw(9), device, SPEC))
    for batch, plain in zip(found, (to_batch(one, CPU, SPEC) for one in draw(9)), strict=True):
        assert batch.image_RCHW.device.type == device.type and batch.token_RN.device.type == "cpu"
        torch.testing.assert_close(batch.image_RCHW.cpu(), plain.image_RCHW)
        assert batch.token_RN.equal(plain.token_RN) and batch.valid_RK.cpu().equal(plain.valid_RK)


def test_batches_are_the_same():
    check(CPU)


@pytest.mark.gpu
def test_batches_are_the_same_on_a_gpu():
    check(torch.device("cuda"))
