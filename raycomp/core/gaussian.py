"""A normal distribution of embeddings, which identifies a task.

N samples, D dims.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

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
