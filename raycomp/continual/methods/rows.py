"""Texts and their primitives as inputs of the composer.

B texts, C of them, P primitives of each at most, D dims.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Rows(NamedTuple):
    """Texts and their primitives, as inputs of the composer."""

    text_BD: Tensor
    index_BP: Tensor
    """Indices of names; 0 for padding."""
    valid_BP: Tensor
    group_B: Tensor
    """Texts with the same set of primitives share a number."""

    def take(self, row_C: Tensor) -> "Rows":
        return Rows(*(value[row_C] for value in self))


def join_rows(first: Rows, second: Rows) -> Rows:
    """Return the rows of both, padded to the wider one."""
    width = max(first.index_BP.shape[1], second.index_BP.shape[1])

    def widen(value_BP: Tensor) -> Tensor:
        return F.pad(value_BP, (0, width - value_BP.shape[1]))

    return Rows(
        torch.cat([first.text_BD, second.text_BD]),
        torch.cat([widen(first.index_BP), widen(second.index_BP)]),
        torch.cat([widen(first.valid_BP), widen(second.valid_BP)]),
        torch.cat([first.group_B, second.group_B]),
    )
