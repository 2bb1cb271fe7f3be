"""The spectral trust region: it scales the gradient down if alignment is too sensitive to the primitives.

COMPO-REALIGN (ICLR 2026, openreview.net/forum?id=eiTy6AYeQi), fourth key design: J_p = d s(z_v, e^_c) / d
vec(U_p), U_p the primitives of a sample, and alpha = min(1, gamma / sigma_max(J_p)). J_p is one row, so its
singular value is its length. U_p are the primitives before the shaper (raw) or after it (shaped). B samples,
P primitives of each at most, D dims.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vjp

from raycomp.config.check import UserError, check, check_choice

SPECTRAL, FIXED, OFF = "spectral", "fixed", "off"
MODES = (SPECTRAL, FIXED, OFF)
MAX, MEAN = "max", "mean"
REDUCTIONS = (MAX, MEAN)
UPDATE, GRADIENT = "update", "gradient"
APPLIES = (UPDATE, GRADIENT)
"""alpha scales the optimiser's step, or its gradient (the paper). Adam cancels a constant scale of the
gradient."""


def find_sigma(similarity_B: Tensor, primitive_BPD: Tensor) -> Tensor:
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
    check(num_steps >= 1, "num_steps", num_steps, "at least 1")
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

    def __init__(
        self,
        mode: str = SPECTRAL,
        gamma: float | None = None,
        quantile: float = 0.5,
        num_first: int = 50,
        reduce: str = MAX,
        alpha: float = 1.0,
    ):
        check_choice("trust.mode", mode, MODES)
        check_choice("trust.reduce", reduce, REDUCTIONS)
        check(gamma is None or 0 < gamma < float("inf"), "trust.gamma", gamma, "above 0, and finite")
        check(0 <= quantile <= 1, "trust.quantile", quantile, "between 0 and 1")
        check(num_first >= 1, "trust.num_first", num_first, "at least 1")
        check(0 < alpha <= 1, "trust.alpha", alpha, "above 0, and at most 1")
        self.mode, self.reduce, self.alpha = mode, reduce, alpha
        self.gamma, self.quantile, self.num_first = gamma, quantile, num_first
        self.first: list[float] = []
        """Sigmas of the steps that determine gamma."""
        self.num_steps, self.num_short, self.sum_alpha = 0, 0, 0.0

    def take_alpha(self, sigma_B: Tensor) -> float:
        """Return alpha of this step, above 0 to 1, and count it. Raises ValueError on a sigma that is NaN."""
        alpha = self._find_alpha(sigma_B)
        self.num_steps += 1
        self.num_short += alpha < 1
        self.sum_alpha += alpha
        return alpha

    def _find_alpha(self, sigma_B: Tensor) -> float:
        if self.mode != SPECTRAL:
            return self.alpha if self.mode == FIXED else 1.0
        sigma = float(sigma_B.max() if self.reduce == MAX else sigma_B.mean())
        if not sigma >= 0:
            raise UserError(f"sigma={sigma}: must be at least 0; head.learning_rate may be too high")
        if self.gamma is None:
            self.first.append(sigma)
            if len(self.first) == self.num_first:
                self.gamma = max(float(np.quantile(self.first, self.quantile)), np.finfo(np.float64).tiny)
            return 1.0
        return min(1.0, self.gamma / sigma) if sigma else 1.0

    @property
    def mean_alpha(self) -> float:
        """The mean of all steps so far; 1 before the first."""
        return self.sum_alpha / self.num_steps if self.num_steps else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the state that changes from step to step, for json."""
        counts = {"num_steps": self.num_steps, "num_short": self.num_short, "sum_alpha": self.sum_alpha}
        return {"gamma": self.gamma, "first": [*self.first], **counts}

    def restore(self, values: dict[str, Any]) -> None:
        """Resume from the result of ``to_dict``."""
        self.gamma, self.first = values["gamma"], [*values["first"]]
        self.num_steps, self.num_short = values["num_steps"], values["num_short"]
        self.sum_alpha = values["sum_alpha"]


def take_step(optimizer: torch.optim.Optimizer, alpha: float, apply: str = GRADIENT) -> None:
    """Let the optimiser step with gradients times ``alpha``; with ``update`` it steps ``alpha`` times as far.

    Both are equal for SGD without momentum or weight decay; with a constant alpha Adam takes the full step.
    Weight decay is part of an update, momentum is not.
    """
    check_choice("trust.apply", apply, APPLIES)
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
