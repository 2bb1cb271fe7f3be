"""The global batch over ranks: every rank embeds its rows, and sees the embeddings of all.

B pairs of the global batch, R those of this rank, W ranks, D embedding dims. A loss is computed in shares:
each rank computes that of its own rows, against the rows of all, and the shares sum to the loss. The gradient
of an embedding is the sum of what every share gives it.
"""

from collections.abc import Sequence
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
    """Return the sum over all ranks, in their order, the same on each; without a process group the value
    itself."""
    num_ranks = find_rank()[1]
    if num_ranks == 1:
        return value
    received = [torch.empty_like(value) for _ in range(num_ranks)]
    dist.all_gather(received, value.contiguous())
    return _sum_in_order(received)


def share_of(whole: Tensor) -> Tensor:
    """Return this rank's share of a value that all ranks computed: the shares are equal."""
    return whole / find_rank()[1]


def gather(local_RD: Tensor, batch_size: int) -> Tensor:
    """Return the rows of all ranks, (B, D), in the order of the global batch.

    ``slice_of`` divides the rows. The gradient of this rank's rows is the sum of the gradients that all ranks
    find for them, in the order of the ranks, so its bits depend on the number of ranks alone. Without a
    process group these are the rows of the one rank.
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
        ctx.own, ctx.sizes = slices[dist.get_rank()], sizes
        # All ranks send as many rows as the largest rank has.
        sent = local_RD.new_zeros(max(sizes), *local_RD.shape[1:])
        sent[: len(local_RD)] = local_RD
        received = [torch.empty_like(sent) for _ in slices]
        dist.all_gather(received, sent)
        return torch.cat([rows[:size] for rows, size in zip(received, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Send each rank the gradient of its rows; sum those that came for the own rows."""
        grad_BD = grads[0].contiguous()
        num_own, num_ranks = ctx.own.stop - ctx.own.start, len(ctx.sizes)
        received = grad_BD.new_empty(num_ranks * num_own, *grad_BD.shape[1:])
        dist.all_to_all_single(received, grad_BD, [num_own] * num_ranks, ctx.sizes)
        return _sum_in_order(received.split(num_own)), None


def _sum_in_order(values: Sequence[Tensor]) -> Tensor:
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total
