"""Ranks that share a batch, each with the loss of its own rows, give the gradient of one process that has it
all."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

# DistributedDataParallel imports this when it is first made. Its functions have the group of that moment as a
# default, which would keep the group, and gloo's threads, alive until the process ends.
import torch.distributed.nn
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from raycomp.core.epochs import slice_of
from raycomp.core.losses import ceclip_parts, clip_loss, negclip_loss, siglip_loss, triplet_loss
from raycomp.training.towers import add_up, gather, share_of

BATCH, SLOTS, DIM = 10, 2, 6  # neither 3 ranks nor 4 share 10 rows evenly
LOSSES = ("clip", "negclip", "ceclip", "siglip", "triplet", "whole")


class Towers(nn.Module):
    """Two layers for two kinds of input, as embeddings of length 1, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(8, DIM), nn.Linear(5, DIM)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image_B8: Tensor, text_B5: Tensor, negative_BK5: Tensor) -> tuple[Tensor, ...]:
        found = self.image(image_B8), self.text(text_B5), self.text(negative_BK5)
        return *(F.normalize(x, dim=-1) for x in found), self.scale.exp()


def measure(name: str, own: slice, image: Tensor, text: Tensor, negative: Tensor, scale: Tensor) -> Tensor:
    """Return the share of a rank's rows; "whole" is a loss that every rank computes of the whole batch."""
    valid = torch.arange(BATCH * SLOTS).reshape(BATCH, SLOTS) % 3 > 0
    if name == "whole":
        return share_of((image.T @ text).square().mean() * scale)
    if name == "clip":
        return clip_loss(image, text, scale, own)
    if name == "negclip":
        return negclip_loss(image, text, negative, valid, scale, own)
    if name == "siglip":
        return siglip_loss(image, text, scale, -3.0, own)
    if name == "triplet":
        return triplet_loss(image, text, text.flip(0), negative[:, 0], valid[:, 0], scale, own)
    margin = torch.tensor([1.0, 4.0], dtype=torch.float64)
    parts = ceclip_parts(image, text, negative, valid, valid.long(), margin, scale, own=own)
    return parts.negclip + parts.imc + parts.cmr


def find_gradients(rank: int, num_ranks: int) -> dict[str, list[Tensor]]:
    """Return the loss and gradients of every loss, as this rank has them after DDP's mean."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((BATCH, 8), (BATCH, 5), (BATCH, SLOTS, 5))
    rows = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    own = slice_of(rank, num_ranks, BATCH)
    found = {}
    for name in LOSSES:
        torch.manual_seed(1)
        model: nn.Module = Towers().double()
        towers = DistributedDataParallel(model) if num_ranks > 1 else model
        *embeddings, scale = towers(*(row[own] for row in rows))
        share = measure(name, own, *(gather(x, BATCH) for x in embeddings), scale)
        (share * num_ranks).backward()
        found[name] = [add_up(share.detach()), *(parameter.grad for parameter in model.parameters())]
    return found


def run_rank(rank: int, num_ranks: int, folder: str) -> None:
    """Save a rank's gradients. Its group must end here, with its threads: one that waits for the interpreter
    when that is finalized aborts the process."""
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=num_ranks)
    group = weakref.ref(dist.distributed_c10d._get_default_group())
    torch.save(find_gradients(rank, num_ranks), f"{folder}/{rank}.pt")
    gc.collect()  # DistributedDataParallel is part of cycles and holds the group
    dist.destroy_process_group()
    assert group() is None, "the process group is still alive"


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_give_the_gradient_of_one_process(num_ranks: int, tmp_path: Path) -> None:
    expected = find_gradients(0, 1)
    mp.spawn(run_rank, (num_ranks, str(tmp_path)), nprocs=num_ranks)
    for rank in range(num_ranks):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name in LOSSES:
            assert len(found[name]) == 6
            for value, wanted in zip(found[name], expected[name], strict=True):
                torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-12)
