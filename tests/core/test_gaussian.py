"""Gaussians against scipy's, and at their limits."""

import torch
from scipy.stats import multivariate_normal

from raycomp.core.losses import RIDGE, fit_gaussian, log_density


def draw(num: int, dim: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    turn = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    return torch.randn(num, dim, generator=generator, dtype=torch.float64) @ turn + 3


def test_the_density_is_scipys():
    found, sample = fit_gaussian(draw(30)), draw(7) + 1
    oracle = multivariate_normal(found.mean_D.numpy(), found.covariance_DD.numpy())
    torch.testing.assert_close(log_density(sample, found), torch.from_numpy(oracle.logpdf(sample.numpy())))


def test_the_shrinkage_is_the_papers():
    sample = draw(9)
    raw = torch.cov(sample.T, correction=0)
    num, dim = sample.shape
    trace, square = float(raw.trace()), float((raw @ raw).trace())
    share = ((1 - 2 / dim) * square + trace**2) / ((num + 1 - 2 / dim) * (square - trace**2 / dim))
    assert 0 < share < 1
    wanted = (1 - share) * raw + share * trace / dim * torch.eye(dim)
    torch.testing.assert_close(fit_gaussian(sample).covariance_DD - RIDGE * torch.eye(dim), wanted)


def test_of_few_samples_others_near_them_have_a_density():
    for num in [1, 2, 3]:
        sample = draw(num)
        found = log_density(sample + 0.1, fit_gaussian(sample))
        assert torch.isfinite(found).all()
        if num > 1:
            assert (found > log_density(sample + 100, fit_gaussian(sample))).all()


def test_samples_that_are_all_alike_have_the_ridge_alone():
    found = fit_gaussian(torch.ones(5, 3))
    torch.testing.assert_close(found.covariance_DD, RIDGE * torch.eye(3, dtype=torch.float64))
