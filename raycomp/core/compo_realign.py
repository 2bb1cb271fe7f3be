"""COMPO-REALIGN: the reversible composer, the multi-positive loss, the spectral trust region.

COMPO-REALIGN (ICLR 2026, openreview.net/forum?id=eiTy6AYeQi). Readings that the paper leaves open have names
here. B samples, P primitives of each at most, N of all samples, V names, D dims, H hidden units, M views of
all samples, K entries of the buffer.

First key design: primitives are frozen text embeddings; entries where ``valid_BP`` is False are padding.
Second and third: embeddings have length 1, ``scale`` is 1 / tau. Samples with the same number in ``group_B``
have the same composition: they are neither positive nor negative for each other. Fourth: J_p = d s(z_v,
e^_c) / d vec(U_p), U_p the primitives before the shaper (raw) or after it (shaped), and alpha =
min(1, gamma / sigma_max(J_p)). J_p is one row, so its singular value is its length.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jvp, vjp

from raycomp.config.options import UserError

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
        if primitive_BPD.shape != (*valid_BP.shape, self.dim):
            raise ValueError(
                f"primitives {tuple(primitive_BPD.shape)}: must be {(*valid_BP.shape, self.dim)}, as valid is"
            )
        has_B = valid_BP.any(1)
        if not has_B.all():
            raise ValueError(f"primitives of sample {int((~has_B).nonzero()[0])}: must be at least 1, are 0")
        shaped_ND = self.shape(primitive_BPD[valid_BP])
        empty_BPD = shaped_ND.new_zeros(primitive_BPD.shape)
        return self.combine(empty_BPD.index_put((valid_BP,), shaped_ND), valid_BP)

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
        device = next((parameter.device for parameter in self.parameters()), None)
        return self.turn(torch.eye(self.dim, dtype=torch.float64, device=device)).T

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


OWN, JOINT = "own", "joint"
QUERIES = (OWN, JOINT)
"""From compositions to images: each view has its own term, or all views of a sample share one quotient, which
trains the composed view away from images."""
ANCHORED, LITERAL, NEGATIVES, PARAPHRASE = "anchored", "literal", "negatives", "paraphrase"
READINGS = (ANCHORED, LITERAL, NEGATIVES, PARAPHRASE)
"""The use of the buffer's texts. literal: one more positive of the samples of the same composition;
paraphrase: so are texts made for the batch (``core.continual.reword``). anchored: each text aligns its own
composition with itself, as an image does. negatives: one more negative of all images."""


class Views(NamedTuple):
    """M views of B samples, at least one of each."""

    view_MD: Tensor
    owner_M: Tensor
    """The sample of each view, 0 to B - 1."""


class Past(NamedTuple):
    """K entries drawn from the buffer."""

    text_KD: Tensor
    """e'_c, frozen."""
    composed_KD: Tensor
    """e^'_c, by the current head."""
    group_K: Tensor
    """The number of the composition, as in the batch."""


class Parts(NamedTuple):
    """The terms of a loss, each a mean over queries."""

    image_to_composition: Tensor
    composition_to_image: Tensor
    anchor: Tensor
    """The term of past texts and their compositions; 0 without."""

    @property
    def total(self) -> Tensor:
        """L_Tri, plus the anchors' term."""
        return (self.image_to_composition + self.composition_to_image) / 2 + self.anchor


def compo_realign(
    image_BD: Tensor,
    text_BD: Tensor,
    composed_BD: Tensor | None,
    group_B: Tensor,
    scale: Tensor | float,
    past: Past | None = None,
    reading: str = LITERAL,
    c2v: str = OWN,
    same: str = "excluded",
) -> Parts:
    """Return the objective of a batch: e_c and e^_c both belong to their image.

    Without ``composed_BD``, the ablation, only e_c does; if it is frozen, there is no gradient and no
    training. ``text_BD`` are frozen captions, or in the reading ``adapted`` the result of ``Composer.adapt``
    on them. ``reading`` specifies the use of ``past``, ``same`` whether samples leave the denominator.
    """
    past = past if past is not None and len(past.text_KD) else None
    own_B = torch.arange(len(image_BD), device=image_BD.device)
    views = [(text_BD, own_B)] + ([] if composed_BD is None else [(composed_BD, own_B)])
    if past is not None and reading in (LITERAL, PARAPHRASE):
        says_BK = group_B[:, None] == past.group_K
        said_S = says_BK.any(1).nonzero()[:, 0]
        views.append((past.text_KD[says_BK.int().argmax(1)[said_S]], said_S))
    view_MD, owner_M = (torch.cat(parts) for parts in zip(*views, strict=True))
    if same == NEGATIVES:  # as if each text had a composition of its own
        group_B = own_B
        past = past and past._replace(group_K=-1 - torch.arange(len(past.text_KD), device=own_B.device))
    others = (past.text_KD, past.group_K) if past is not None and reading == NEGATIVES else None
    found = contrast_views(image_BD, Views(view_MD, owner_M), group_B, scale, c2v, others)
    if past is None or reading != ANCHORED:
        return found
    own_K = torch.arange(len(past.text_KD), device=image_BD.device)
    anchored = contrast_views(past.text_KD, Views(past.composed_KD, own_K), past.group_K, scale)
    return found._replace(anchor=anchored.total)


def contrast_views(
    image_BD: Tensor,
    views: Views,
    group_B: Tensor,
    scale: Tensor | float,
    c2v: str = OWN,
    negatives: tuple[Tensor, Tensor] | None = None,
) -> Parts:
    """Return both directions of the multi-positive InfoNCE; with one view of each sample it is ``clip_loss``.

    Image to composition: - log of the share of an image's own views among all views, with exp(scale * s)
    summed. Composition to image: by ``c2v``, over images. ``negatives``: further negative texts of all
    images, and their compositions.
    """
    own_B = torch.arange(len(image_BD), device=image_BD.device)
    is_own_BM = own_B[:, None] == views.owner_M
    logit_BM = scale * image_BD @ views.view_MD.T
    own_BM = logit_BM.masked_fill(~is_own_BM, -torch.inf)
    is_same_BM = (group_B[:, None] == group_B[views.owner_M]) & ~is_own_BM
    rival_BM = logit_BM.masked_fill(is_same_BM, -torch.inf)
    all_BX = rival_BM
    if negatives is not None:
        text_KD, group_K = negatives
        other_BK = scale * image_BD @ text_KD.T
        all_BX = torch.cat([rival_BM, other_BK.masked_fill(group_B[:, None] == group_K, -torch.inf)], 1)
    picked_B = all_BX.logsumexp(1) - own_BM.logsumexp(1)
    if c2v == OWN:
        asked = rival_BM.logsumexp(0) - logit_BM[views.owner_M, torch.arange(len(views.owner_M))]
    else:
        sum_BM = rival_BM.logsumexp(0).expand_as(logit_BM).masked_fill(~is_own_BM, -torch.inf)
        asked = sum_BM.logsumexp(1) - own_BM.logsumexp(1)
    return Parts(picked_B.mean(), asked.mean(), torch.zeros_like(picked_B[0]))


SPECTRAL, FIXED, OFF = "spectral", "fixed", "off"
MAX, MEAN_SIGMA = "max", "mean"
UPDATE, GRADIENT = "update", "gradient"
"""alpha scales the optimiser's step, or its gradient (the paper). Adam cancels a constant scale of the
gradient."""


def compute_sigma(similarity_B: Tensor, primitive_BPD: Tensor) -> Tensor:
    """Return the length of each sample's J_p, 0 or more: exact, for any head, by one backward pass.

    ``similarity_B`` is s(z_v, e^_c) with its graph, which is retained for the loss; a sample's similarity
    depends only on its own primitives. Raw primitives must require gradients.
    """
    (slope_BPD,) = torch.autograd.grad(similarity_B.sum(), primitive_BPD, retain_graph=True)
    return slope_BPD.flatten(1).norm(dim=1)


def shaped_sigma(similarity_B: Tensor, mean_BD: Tensor, num_B: Tensor) -> Tensor:
    """Return the same for shaped primitives, m = ``num_B`` of each, if R is orthogonal and u their mean.

    sqrt(1 - s^2) / (sqrt(m) |u|): d s / d u is R^T (z_v - s e^_c) / |u|, and each primitive has weight 1 / m.
    """
    off_B = (1 - similarity_B.square()).clamp_min(0).sqrt()
    return off_B / (num_B.to(off_B.dtype).sqrt() * mean_BD.norm(dim=1))


def power_sigma(
    similarity: Callable[[Tensor], Tensor], primitive_BPD: Tensor, num_steps: int, generator: torch.Generator
) -> Tensor:
    """Return |J v| after ``num_steps`` power iterations on J^T J from a random v: the paper's estimate.

    ``similarity`` gives s(z_v, e^_c) (B,) of primitives. J v is a JVP, J^T (J v) its pull-back. As J is one
    row, J^T J has rank 1, and one iteration is exact except for rounding. Without an iteration |J v| of a
    random v of length 1 is about sigma |N(0, 1)| / sqrt(m d), far too low.
    """
    shape, dtype = primitive_BPD.shape, primitive_BPD.dtype
    v_BPD = torch.randn(shape, generator=generator, dtype=dtype).to(primitive_BPD.device)
    pull_back = vjp(similarity, primitive_BPD)[1]
    for _ in range(num_steps):
        along_B = jvp(similarity, (primitive_BPD,), (v_BPD,))[1]
        (v_BPD,) = pull_back(along_B)
        length_B = v_BPD.flatten(1).norm(dim=1).clamp_min(torch.finfo(dtype).tiny)
        v_BPD = v_BPD / length_B[:, None, None]
    return jvp(similarity, (primitive_BPD,), (v_BPD,))[1].abs()


class TrustRegion:
    """The limit of each step, and statistics of the steps so far.

    ``spectral``: alpha = min(1, gamma / sigma), sigma the largest (or mean) of the batch. Without a ``gamma``
    the first ``num_first`` steps are full steps, and gamma is then this quantile of their sigmas. ``fixed``:
    always ``alpha``, for example the mean of another run. ``off``: 1.
    """

    _STATE = ("gamma", "first", "num_steps", "num_short", "sum_alpha")

    def __init__(
        self,
        mode: str = SPECTRAL,
        gamma: float | None = None,
        quantile: float = 0.5,
        num_first: int = 50,
        reduce: str = MAX,
        alpha: float = 1.0,
    ):
        self.mode, self.reduce, self.alpha = mode, reduce, alpha
        self.gamma, self.quantile, self.num_first = gamma, quantile, num_first
        self.first: list[float] = []
        """Sigmas of the steps that determine gamma."""
        self.num_steps, self.num_short, self.sum_alpha = 0, 0, 0.0

    def take_alpha(self, sigma_B: Tensor) -> float:
        """Return alpha of this step, above 0 to 1, and count it. Raises ValueError on a sigma that is NaN."""
        alpha = self.alpha if self.mode == FIXED else 1.0
        if self.mode == SPECTRAL:
            sigma = float(sigma_B.max() if self.reduce == MAX else sigma_B.mean())
            if not sigma >= 0:
                raise UserError(f"sigma={sigma}: must be at least 0; head.learning_rate may be too high")
            if self.gamma is not None:
                alpha = min(1.0, self.gamma / sigma) if sigma else 1.0
            else:
                self.first.append(sigma)
                if len(self.first) == self.num_first:
                    gamma = float(np.quantile(self.first, self.quantile))
                    self.gamma = max(gamma, np.finfo(np.float64).tiny)
        self.num_steps += 1
        self.num_short += alpha < 1
        self.sum_alpha += alpha
        return alpha

    @property
    def mean_alpha(self) -> float:
        """The mean of all steps so far; 1 before the first."""
        return self.sum_alpha / self.num_steps if self.num_steps else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the state that changes from step to step, for json."""
        return {name: getattr(self, name) for name in self._STATE} | {"first": [*self.first]}

    def restore(self, values: dict[str, Any]) -> None:
        """Resume from the result of ``to_dict``."""
        for name in self._STATE:
            setattr(self, name, values[name])
        self.first = [*values["first"]]


def take_step(optimizer: torch.optim.Optimizer, alpha: float, apply: str = GRADIENT) -> None:
    """Let the optimiser step with gradients times ``alpha``; with ``update`` it steps ``alpha`` times as far.

    Both are equal for SGD without momentum or weight decay; with a constant alpha Adam takes the full step.
    Weight decay is part of an update, momentum is not.
    """
    parameters = list_parameters(optimizer)
    if apply == GRADIENT:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(alpha)
        optimizer.step()
        return
    before = [parameter.detach().clone() for parameter in parameters] if alpha != 1 else []
    optimizer.step()
    with torch.no_grad():
        for old, parameter in zip(before, parameters, strict=bool(before)):
            parameter.copy_(old.lerp(parameter, alpha))


def measure_step(optimizer: torch.optim.Optimizer, alpha: float, apply: str = GRADIENT) -> float:
    """Take this step and return its length in units of the full step, which a copy takes without alpha.

    NaN if the full step is 0. It copies the state: use it for some steps, not for all.
    """
    whole = copy.deepcopy(optimizer)
    parameters, clones = list_parameters(optimizer), list_parameters(whole)
    for clone, parameter in zip(clones, parameters, strict=True):
        clone.grad = None if parameter.grad is None else parameter.grad.clone()
    before = [parameter.detach().clone() for parameter in parameters]
    take_step(optimizer, alpha, apply)
    whole.step()
    length = _distance(before, clones)
    return _distance(before, parameters) / length if length else float("nan")


def list_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters that the optimiser updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@torch.no_grad()
def _distance(first: list[Tensor], second: list[Tensor]) -> float:
    return sum(float((a - b).double().square().sum()) for a, b in zip(first, second, strict=True)) ** 0.5
