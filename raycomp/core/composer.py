"""The reversible composer: maps primitives ("red cube") to the embedding of their composition, and back.

COMPO-REALIGN (ICLR 2026, openreview.net/forum?id=eiTy6AYeQi), first key design. B samples, P primitives of
each at most, N of all samples, V names, D dims, H hidden units. Primitives are frozen text embeddings, of
length 1. Entries where ``valid_BP`` is False are padding and are ignored.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.config.check import check, check_choice

CAYLEY, LINEAR, IDENTITY = "cayley", "linear", "identity"
MIXES = (CAYLEY, LINEAR, IDENTITY)
MEAN, ATTENTION = "mean", "attention"
POOLS = (MEAN, ATTENTION)


def turn(vector_BD: Tensor, theta_DD: Tensor) -> Tensor:
    """Return R v of every row v, float64: R = (I - S)(I + S)^-1, S = (Theta - Theta^T) / 2, by Cayley.

    R is orthogonal whatever Theta is, and I + S is never singular, as the eigenvalues of S are imaginary.
    With (I + S) x = v, R v is (I - S) x = 2 x - v: one solve, no inverse. The transpose of R is R(-Theta).
    """
    theta_DD, vector_BD = theta_DD.double(), vector_BD.double()
    skew_DD = (theta_DD - theta_DD.T) / 2
    eye_DD = torch.eye(len(theta_DD), dtype=torch.float64, device=theta_DD.device)
    return 2 * torch.linalg.solve(eye_DD + skew_DD, vector_BD.T).T - vector_BD


class Composed(NamedTuple):
    """Compositions, and their inputs."""

    composed_BD: Tensor
    """e^_c, of length 1."""
    mean_BD: Tensor
    """u, the mean of the shaped primitives."""
    shaped_BPD: Tensor
    """phi(A e_p); 0 at padding."""


class Composer(nn.Module):
    """The head: e^_c = R u / |R u| with u the mean of phi(A e_p), and the ablations of it.

    A and phi start as the identity (phi(x) = x + outer gelu(inner x) with outer 0), R as I and attention as
    the mean. So a new head returns the direction of the mean of the raw primitives, with any ablation.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        generator: torch.Generator,
        mix: str = CAYLEY,
        pool: str = MEAN,
        is_shaped: bool = True,
    ):
        super().__init__()
        check_choice("mix", mix, MIXES)
        check_choice("pool", pool, POOLS)
        check(dim >= 1, "dim", dim, "at least 1")
        check(hidden >= 1, "hidden", hidden, "at least 1")
        self.dim, self.mix, self.pool, self.is_shaped = dim, mix, pool, is_shaped
        if mix != IDENTITY:
            self.theta_DD = nn.Parameter(torch.eye(dim) if mix == LINEAR else torch.zeros(dim, dim))
        if pool == ATTENTION:
            self.query_D = nn.Parameter(torch.zeros(dim))
        if is_shaped:
            self.adapter_DD = nn.Parameter(torch.zeros(dim, dim))
            self.inner_HD = nn.Parameter(torch.randn(hidden, dim, generator=generator) / dim**0.5)
            self.inner_H = nn.Parameter(torch.zeros(hidden))
            self.outer_DH = nn.Parameter(torch.zeros(dim, hidden))
            self.outer_D = nn.Parameter(torch.zeros(dim))

    def forward(self, primitive_BPD: Tensor, valid_BP: Tensor) -> Composed:
        """Compose every sample. Raises ValueError for one without a primitive, and for other shapes."""
        self._check(primitive_BPD, valid_BP)
        shaped_ND = self.shape(primitive_BPD[valid_BP])
        return self.combine(
            shaped_ND.new_zeros(primitive_BPD.shape).index_put((valid_BP,), shaped_ND), valid_BP
        )

    def combine(self, shaped_BPD: Tensor, valid_BP: Tensor) -> Composed:
        """Compose samples whose primitives are already shaped; padding must be 0."""
        mean_BD = torch.einsum("bp,bpd->bd", self._weigh(shaped_BPD, valid_BP), shaped_BPD)
        composed_BD = F.normalize(self.turn(mean_BD), dim=-1).to(mean_BD.dtype)
        return Composed(composed_BD, mean_BD, shaped_BPD)

    def adapt(self, text_BD: Tensor) -> Tensor:
        """Return captions in the head's space, each a composition of one: the reading ``adapted``."""
        valid_B1 = torch.ones(len(text_BD), 1, dtype=torch.bool, device=text_BD.device)
        return self(text_BD[:, None], valid_B1).composed_BD

    def shape(self, primitive_ND: Tensor) -> Tensor:
        """Return phi(A e_p) of every primitive; without a shaper the primitive."""
        if not self.is_shaped:
            return primitive_ND
        adapted_ND = primitive_ND + primitive_ND @ self.adapter_DD.T
        hidden_NH = F.gelu(adapted_ND @ self.inner_HD.T + self.inner_H)
        return adapted_ND + hidden_NH @ self.outer_DH.T + self.outer_D

    def turn(self, vector_BD: Tensor) -> Tensor:
        """Return R v of every row, float64; with a linear mix R is any matrix."""
        if self.mix == CAYLEY:
            return turn(vector_BD, self.theta_DD)
        vector_BD = vector_BD.double()
        return vector_BD @ self.theta_DD.double().T if self.mix == LINEAR else vector_BD

    @torch.no_grad()
    def matrix(self) -> Tensor:
        """Return R, float64 (D, D)."""
        return self.turn(torch.eye(self.dim, dtype=torch.float64, device=self._device())).T

    @torch.no_grad()
    def decompose(self, composed_BD: Tensor, by_solve: bool = False) -> Tensor:
        """Return the direction of u, float64 of length 1: R^T e^_c, or the solution of R u = e^_c.

        Both are equal if R is orthogonal. A linear mix may have no inverse; then a solution is NaN.
        """
        composed_BD = composed_BD.double()
        matrix_DD = self.matrix().to(composed_BD)
        if not by_solve:
            return F.normalize(composed_BD @ matrix_DD, dim=-1)
        mean_DB, fault = torch.linalg.solve_ex(matrix_DD, composed_BD.T)
        return F.normalize(mean_DB.T, dim=-1) if not fault else torch.full_like(composed_BD, torch.nan)

    @torch.no_grad()
    def read_out(self, direction_BD: Tensor, vocabulary_VD: Tensor) -> Tensor:
        """Return the cosine of each direction with phi(A e_p) of each name, float64 (B, V).

        The m highest are the m composed primitives if these have equal length and no two of the vocabulary
        have a cosine of absolute value 1 / (2 m - 1) or more.
        """
        shaped_VD = F.normalize(self.shape(vocabulary_VD).double(), dim=-1)
        return direction_BD @ shaped_VD.T

    def _weigh(self, shaped_BPD: Tensor, valid_BP: Tensor) -> Tensor:
        """Return the weight of each primitive, with sum 1; 0 at padding."""
        if self.pool == MEAN:
            return valid_BP.to(shaped_BPD.dtype) / valid_BP.sum(1, keepdim=True)
        logit_BP = shaped_BPD @ self.query_D / self.dim**0.5
        return logit_BP.masked_fill(~valid_BP, -torch.inf).softmax(1)

    def _device(self) -> torch.device | None:
        return next((parameter.device for parameter in self.parameters()), None)

    def _check(self, primitive_BPD: Tensor, valid_BP: Tensor) -> None:
        if primitive_BPD.shape != (*valid_BP.shape, self.dim):
            raise ValueError(
                f"primitives {tuple(primitive_BPD.shape)}: must be {(*valid_BP.shape, self.dim)}, as valid is"
            )
        has_B = valid_BP.any(1)
        if not has_B.all():
            raise ValueError(f"primitives of sample {int((~has_B).nonzero()[0])}: must be at least 1, are 0")


class Layout(NamedTuple):
    """Ragged sets of names as arrays."""

    names: tuple[str, ...]
    """The V distinct names, sorted."""
    index_BP: np.ndarray
    """Indices into ``names``, rising; 0 at padding."""
    valid_BP: np.ndarray
    group_B: np.ndarray
    """Numbers of the sets: two samples share a number exactly if they have the same set."""


def make_layout(sets: Sequence[Collection[str]]) -> Layout:
    """Arrange sets of primitives as arrays, each name of a set once and sorted: equal sets give equal rows.

    So texts that differ only in order or in a relation have the same embedding, bit for bit.
    """
    kept = [tuple(sorted(set(names))) for names in sets]
    names = tuple(sorted(set().union(*kept)))
    places = {name: place for place, name in enumerate(names)}
    width = max(map(len, kept), default=0)
    index_BP = np.zeros((len(kept), width), np.int64)
    for row, own in enumerate(kept):
        index_BP[row, : len(own)] = [places[name] for name in own]
    size_B = np.array([len(own) for own in kept], np.int64)
    groups: dict[tuple[str, ...], int] = {}
    group_B = np.array([groups.setdefault(own, len(groups)) for own in kept], np.int64)
    return Layout(names, index_BP, np.arange(width) < size_B[:, None], group_B)
