"""Losses and merges that keep a model near an earlier one, and a normal distribution that identifies a
task.

N or B samples, M keys, D dims.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import MultivariateNormal

from raycomp.core.losses import clip_loss

# Added to all variances, as in DIKI: identical samples have variance 0.
RIDGE = 1e-7


class Gaussian(NamedTuple):
    """Mean and covariance, float64."""

    mean_D: Tensor
    covariance_DD: Tensor


def fit_gaussian(sample_ND: Tensor) -> Gaussian:
    """Return the samples' mean and their covariance, shrunk towards a sphere, more so for few samples.

    Oracle approximating shrinkage, Chen et al. 2010 (arXiv:0907.4698), equation 23. With N well above D the
    covariance is nearly that of the samples; below, the sample covariance would be singular.
    """
    sample_ND = sample_ND.double()
    num, dim = sample_ND.shape
    mean_D = sample_ND.mean(0)
    away_ND = sample_ND - mean_D
    raw_DD = away_ND.T @ away_ND / num
    trace, square = raw_DD.trace(), raw_DD.square().sum()
    rest = (num + 1 - 2 / dim) * (square - trace**2 / dim)
    share = ((1 - 2 / dim) * square + trace**2) / rest if rest > 0 else torch.ones_like(rest)
    share = share.clamp(0, 1)
    sphere_DD = torch.eye(dim, dtype=raw_DD.dtype, device=raw_DD.device)
    return Gaussian(mean_D, (1 - share) * raw_DD + (share * trace / dim + RIDGE) * sphere_DD)


def log_density(sample_ND: Tensor, gaussian: Gaussian) -> Tensor:
    """Return the log density of each sample, (N,), float64."""
    return MultivariateNormal(*gaussian, validate_args=False).log_prob(sample_ND.double())


TEMPERATURE = 2.0
"""ZSCL's temperature, of both softmaxes."""
TAU = 0.07
"""C-CLIP's temperature, of new features against old ones."""


def distil(student_BM: Tensor, teacher_BM: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return T^2 KL(softmax(teacher / T) || softmax(student / T)), the mean over rows of logits.

    Zheng et al. 2023 (arXiv:2303.06628), whose cross-entropy has the same gradients; 0 if both agree.
    """
    teacher = F.log_softmax(teacher_BM / temperature, dim=1)
    student = F.log_softmax(student_BM / temperature, dim=1)
    return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def consolidate(new: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor], tau: float = TAU) -> Tensor:
    """Return the symmetric InfoNCE of pairs under a model and under its earlier state.

    C-CLIP (Liu et al., ICLR 2025), equation 5. Each model's images and texts, (B, D) at the length of the
    tower outputs (for the new model: the projector's), are concatenated to (B, 2 D) and only then scaled to
    length 1: the longer of the two weighs more. Other pairs of the batch are the negatives.
    """
    new_BX, old_BX = (F.normalize(torch.cat(pair, dim=1), dim=-1) for pair in (new, old))
    return clip_loss(new_BX, old_BX, 1 / tau)


def expert_momentum(share_GE: Tensor, top: int = 2, keep: float = 0.7) -> Tensor:
    """Return lambda of each of E experts; the last of G tasks sets the expert to lambda old + (1 - lambda)
    new.

    CL-MoE (arXiv:2503.00413): lambda is ``keep`` for an expert with shared knowledge and 1 - ``keep`` for one
    of this task alone. The latter is among the ``top`` experts of this task, by how often they were chosen
    (``share_GE``), and of no earlier task. After the first task lambda is 0: nothing of the initial experts
    is kept.
    """
    num_tasks, num_experts = share_GE.shape
    if num_tasks == 1:
        return torch.zeros(num_experts)
    order_GE = share_GE.argsort(dim=1, descending=True, stable=True)[:, :top]
    is_top_GE = torch.zeros(num_tasks, num_experts, dtype=torch.bool).scatter(1, order_GE.cpu(), True)
    is_own_E = is_top_GE[-1] & ~is_top_GE[:-1].any(0)
    return torch.where(is_own_E, 1 - keep, keep)
