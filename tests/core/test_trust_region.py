"""Sigma three ways, and what alpha does to a step."""

import itertools
import json
import math

import pytest
import torch
import torch.nn.functional as F
from test_composer import RAGGED, VARIANTS, build, draw
from torch import Tensor

from raycomp.core.compo_realign import (
    CAYLEY,
    FIXED,
    MEAN,
    OFF,
    UPDATE,
    Composer,
    TrustRegion,
    compute_sigma,
    measure_step,
    power_sigma,
    shaped_sigma,
    take_step,
)

IMAGE_BD, PRIMITIVE_BPD = draw(5, 6, seed=20), draw(5, 4, 6, seed=21)


def jacobian_norms(composer: Composer) -> dict[str, Tensor]:
    """Return sigma by formulas: d s / d u pulled back through the mean, then through phi and A."""
    composed = composer(PRIMITIVE_BPD, RAGGED)
    similarity_B1 = (IMAGE_BD * composed.composed_BD).sum(-1, keepdim=True)
    off_BD = IMAGE_BD - similarity_B1 * composed.composed_BD
    slope_BD = off_BD @ composer.matrix() / composed.mean_BD.norm(dim=1, keepdim=True)
    shaped_BPD = slope_BD[:, None] * RAGGED[..., None] / RAGGED.sum(1)[:, None, None]
    adapter_DD = torch.eye(6).double() + composer.adapter_DD
    hidden_BPH = PRIMITIVE_BPD @ adapter_DD.T @ composer.inner_HD.T + composer.inner_H
    normal = torch.distributions.Normal(torch.tensor(0.0).double(), torch.tensor(1.0).double())
    bend_BPH = normal.cdf(hidden_BPH) + hidden_BPH * normal.log_prob(hidden_BPH).exp()
    adapted_BPD = shaped_BPD + (shaped_BPD @ composer.outer_DH * bend_BPH) @ composer.inner_HD
    raw_BPD = adapted_BPD @ adapter_DD
    return {"shaped": shaped_BPD.flatten(1).norm(dim=1), "raw": raw_BPD.flatten(1).norm(dim=1)}


def autograd_norms(composer: Composer) -> dict[str, Tensor]:
    leaf_BPD = PRIMITIVE_BPD.clone().requires_grad_()
    composed = composer(leaf_BPD, RAGGED)
    similarity_B = (IMAGE_BD * composed.composed_BD).sum(-1)
    return {
        "shaped": compute_sigma(similarity_B, composed.shaped_BPD),
        "raw": compute_sigma(similarity_B, leaf_BPD),
    }


def power_norms(composer: Composer, num_steps: int) -> dict[str, Tensor]:
    def of_raw(primitive_BPD: Tensor) -> Tensor:
        return (IMAGE_BD * composer(primitive_BPD, RAGGED).composed_BD).sum(-1)

    def of_shaped(shaped_BPD: Tensor) -> Tensor:
        mean_BD = torch.einsum("bp,bpd->bd", composer._weigh(shaped_BPD, RAGGED), shaped_BPD)
        return (IMAGE_BD * F.normalize(composer.turn(mean_BD), dim=-1)).sum(-1)

    shaped_BPD = composer(PRIMITIVE_BPD, RAGGED).shaped_BPD.detach()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return {
            "shaped": power_sigma(of_shaped, shaped_BPD, num_steps, generator),
            "raw": power_sigma(of_raw, PRIMITIVE_BPD, num_steps, generator),
        }


def test_sigma_by_formula_by_autograd_and_by_power_iteration():
    for num_steps in [1, 2]:
        composer = build(6, noise=0.3, mix=CAYLEY, pool=MEAN)
        ways = jacobian_norms(composer), autograd_norms(composer), power_norms(composer, num_steps)
        for first, second in itertools.pairwise(ways):
            for of in ("shaped", "raw"):
                torch.testing.assert_close(first[of], second[of], rtol=1e-9, atol=1e-12)
        assert not torch.allclose(ways[0]["raw"], ways[0]["shaped"], rtol=0.05)
        composed = composer(PRIMITIVE_BPD, RAGGED)
        similarity_B = (IMAGE_BD * composed.composed_BD).sum(-1)
        closed_B = shaped_sigma(similarity_B, composed.mean_BD, RAGGED.sum(1))
        torch.testing.assert_close(closed_B, ways[1]["shaped"], rtol=1e-9, atol=1e-12)


def test_autograd_and_power_iteration_agree_for_every_variant():
    for variant in VARIANTS:
        composer = build(6, noise=0.3, **variant)
        exact, iterated = autograd_norms(composer), power_norms(composer, 1)
        for of in ("shaped", "raw"):
            torch.testing.assert_close(iterated[of], exact[of], rtol=1e-9, atol=1e-12)


def test_alpha_is_gamma_over_the_largest_sigma():
    for sigma, alpha in [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (2.0, 0.5), (8.0, 0.125), (math.inf, 0.0)]:
        region = TrustRegion(gamma=1.0)
        assert region.take_alpha(torch.tensor([sigma / 3, sigma, 0.0])) == alpha
        assert region.num_short == (alpha < 1)


def test_gamma_is_a_quantile_of_the_first_steps_which_are_whole():
    region = TrustRegion(quantile=0.75, num_first=5)
    assert [region.take_alpha(torch.tensor([sigma, 0.0])) for sigma in (3, 1, 2, 5, 4)] == [1] * 5
    assert region.gamma == 4 and region.num_short == 0
    assert region.take_alpha(torch.tensor([8.0])) == 0.5
    assert region.mean_alpha == pytest.approx(5.5 / 6)


def test_first_steps_without_any_slope_leave_a_gamma_above_nothing():
    region = TrustRegion(num_first=1)
    assert region.take_alpha(torch.tensor([0.0])) == 1 and region.gamma > 0
    assert region.take_alpha(torch.tensor([0.0])) == 1


def test_fixed_takes_the_mean_that_another_run_realised_and_off_nothing():
    spectral = TrustRegion(gamma=1.0)
    for sigma in (1.0, 2.0, 4.0):
        spectral.take_alpha(torch.tensor([sigma]))
    fixed = TrustRegion(FIXED, alpha=spectral.mean_alpha)
    found = [fixed.take_alpha(torch.tensor([sigma])) for sigma in (0.1, 9.0)]
    assert found == pytest.approx([7 / 12] * 2)
    assert TrustRegion(OFF).take_alpha(torch.tensor([1e9])) == 1
    assert TrustRegion(OFF).mean_alpha == 1


def test_a_region_goes_on_from_what_was_saved():
    sigmas = [3.0, 1.0, 2.0, 9.0, 4.0, 0.5]
    straight, broken = TrustRegion(num_first=4), TrustRegion(num_first=4)
    expected = [straight.take_alpha(torch.tensor([sigma])) for sigma in sigmas]
    found = []
    for sigma in sigmas:
        saved = json.loads(json.dumps(broken.to_dict()))
        broken = TrustRegion(num_first=4)
        broken.restore(saved)
        found.append(broken.take_alpha(torch.tensor([sigma])))
    assert found == expected and broken.to_dict() == straight.to_dict()


def test_a_sigma_that_is_no_number_ends_the_training():
    with pytest.raises(ValueError, match="sigma=nan: must be at least 0"):
        TrustRegion(gamma=1.0).take_alpha(torch.tensor([1.0, math.nan]))


def make(kind: str) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """Return a weight and its optimiser after three whole steps."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    optimizer = {
        "sgd": lambda: torch.optim.SGD([weight], lr=0.1),
        "adamw": lambda: torch.optim.AdamW([weight], lr=0.1, weight_decay=0.05),
    }[kind]()
    for step in range(3):
        weight.grad = weight.detach() - step
        optimizer.step()
    weight.grad = torch.tensor([0.3, 0.1, -0.2], dtype=torch.float64)
    return weight, optimizer


def test_an_update_goes_alpha_times_as_far():
    for kind in ["sgd", "adamw"]:
        for alpha in [0.25, 1.0]:
            (weight, optimizer), (counterpart, plain) = make(kind), make(kind)
            before = weight.detach().clone()
            take_step(optimizer, alpha, UPDATE)
            plain.step()
            torch.testing.assert_close(weight - before, alpha * (counterpart - before), rtol=1e-12, atol=0)
            assert alpha != 1 or weight.equal(counterpart)


def test_measuring_a_step_is_taking_it():
    (weight, optimizer), (counterpart, plain) = make("adamw"), make("adamw")
    for alpha in (0.5, 0.9):
        measure_step(optimizer, alpha)
        take_step(plain, alpha)
    assert weight.equal(counterpart)
    weight, optimizer = make("sgd")
    weight.grad = None
    assert math.isnan(measure_step(optimizer, 0.5))
