"""The global batch over ranks: every rank embeds its rows, and sees the embeddings of all.

B pairs of the global batch, R those of this rank, D embedding dims. Each rank computes the loss of the whole
batch from what was gathered, so all log the same, and each rank has the whole gradient of its own embeddings
without communication.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from raycomp.core.epochs import slice_of


def find_rank() -> tuple[int, int]:
    """Return this process's rank and how many there are: 0 of 1 without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def find_own(num_rows: int) -> slice:
    """Return the slice of this rank in a global batch of that many rows."""
    return slice_of(*find_rank(), num_rows)


def add_up(value: Tensor) -> Tensor:
    """Return the sum over all ranks, the same on each; without a process group the value itself."""
    if find_rank()[1] == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total


def gather(local_RD: Tensor, batch_size: int) -> Tensor:
    """Return the rows of all ranks, (B, D), in the order of the global batch.

    ``slice_of`` divides the rows. Behind DistributedDataParallel, which takes the mean of the ranks'
    gradients, weights get the gradient that one process would give them. Without a process group these are
    the rows of the one rank.
    """
    own = find_own(batch_size)
    assert len(local_RD) == own.stop - own.start, f"{len(local_RD)} rows of {own} came"
    if find_rank()[1] == 1:
        return local_RD
    return _Gather.apply(local_RD, batch_size)


def share(towers: nn.Module) -> nn.Module:
    """Return the model behind DistributedDataParallel where there are several ranks, else as it is."""
    return DistributedDataParallel(towers) if find_rank()[1] > 1 else towers


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local_RD: Tensor, batch_size: int) -> Tensor:
        num_ranks = dist.get_world_size()
        slices = [slice_of(rank, num_ranks, batch_size) for rank in range(num_ranks)]
        sizes = [part.stop - part.start for part in slices]
        ctx.own, ctx.num_ranks = slices[dist.get_rank()], num_ranks
        # All ranks send as many rows as the largest rank has.
        sent = local_RD.new_zeros(max(sizes), *local_RD.shape[1:])
        sent[: len(local_RD)] = local_RD
        received = [torch.empty_like(sent) for _ in slices]
        dist.all_gather(received, sent)
        return torch.cat([rows[:size] for rows, size in zip(received, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Scale the gradient so that the mean over ranks is the sum."""
        return grads[0][ctx.own] * ctx.num_ranks, None
