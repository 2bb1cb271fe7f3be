"""The composer against orthogonality, numerical gradients, round trips and sets in any layout."""

import itertools
import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raycomp.core.compo_realign import (
    ANCHORED,
    CAYLEY,
    FIXED,
    LINEAR,
    LITERAL,
    MEAN,
    MIXES,
    NEGATIVES,
    OFF,
    OWN,
    POOLS,
    QUERIES,
    READINGS,
    UPDATE,
    Composer,
    Past,
    TrustRegion,
    compo_realign,
    compute_sigma,
    make_layout,
    measure_step,
    power_sigma,
    shaped_sigma,
    take_step,
    turn,
)
from raycomp.core.losses import clip_loss

VARIANTS = [
    dict(mix=mix, pool=pool, is_shaped=is_shaped)
    for mix, pool, is_shaped in itertools.product(MIXES, POOLS, (True, False))
]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator, dtype=dtype), dim=-1)


def build(dim: int, hidden: int = 8, noise: float = 0.0, **variant) -> Composer:
    """Return a composer in fp64, with noise on every weight as training would leave it."""
    generator = torch.Generator().manual_seed(1)
    composer = Composer(dim, hidden, generator, **variant).double()
    with torch.no_grad():
        for parameter in composer.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return composer


RAGGED = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()


def test_turn_is_the_cayley_transform_and_keeps_lengths():
    for size in [0.0, 1e-3, 1.0, 1e6]:
        theta_DD, eye_DD = size * draw(7, 7, seed=2), torch.eye(7, dtype=torch.float64)
        skew_DD = (theta_DD - theta_DD.T) / 2
        expected = (eye_DD - skew_DD) @ torch.linalg.inv(eye_DD + skew_DD)
        assert torch.allclose(turn(eye_DD, theta_DD).T, expected, atol=1e-8)
        vector_BD = draw(5, 7, seed=3)
        assert torch.allclose(turn(vector_BD, theta_DD).norm(dim=1), torch.ones(5, dtype=torch.float64))
        assert torch.allclose(turn(turn(vector_BD, theta_DD), -theta_DD), vector_BD, atol=1e-8)
        assert torch.equal(turn(vector_BD, theta_DD + theta_DD.T), turn(vector_BD, 0 * theta_DD))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_gradients_of_every_variant_are_the_numerical_ones(variant: dict):
    composer = build(4, 3, noise=0.3, **variant)
    names = [name for name, _ in composer.named_parameters()]

    def compose(primitive_BPD: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(composer, given, (primitive_BPD, RAGGED)).composed_BD

    leaves = [draw(5, 4, 4, seed=6), *(parameter.detach() for parameter in composer.parameters())]
    assert torch.autograd.gradcheck(compose, [leaf.clone().requires_grad_() for leaf in leaves])


def test_a_new_head_says_the_mean_of_raw_primitives():
    for variant in VARIANTS:
        primitive_BPD = draw(5, 4, 6, seed=7)
        composed_BD = build(6, **variant)(primitive_BPD, RAGGED).composed_BD
        for row, primitive_PD, valid_P in zip(composed_BD, primitive_BPD, RAGGED, strict=True):
            expected = primitive_PD[valid_P].mean(0)
            assert torch.allclose(row, expected / expected.norm(), atol=1e-12)


def test_padding_takes_no_part_whatever_it_holds():
    for variant in VARIANTS:
        composer, primitive_BPD = build(6, noise=0.3, **variant), draw(5, 4, 6, seed=8)
        wide_BPD = torch.cat([primitive_BPD, torch.zeros(5, 3, 6).double()], 1)
        wide_BPD[~F.pad(RAGGED, (0, 3))] = math.nan
        found = []
        for given_BPD, valid_BP in ((primitive_BPD, RAGGED), (wide_BPD, F.pad(RAGGED, (0, 3)))):
            composer.zero_grad()
            leaf_BPD = given_BPD.clone().requires_grad_()
            composed_BD = composer(leaf_BPD, valid_BP).composed_BD
            (composed_BD[:, 0].sum()).backward()
            assert leaf_BPD.grad[~valid_BP].eq(0).all()
            slopes = [parameter.grad for parameter in composer.parameters()]
            found.append([composed_BD.detach(), leaf_BPD.grad[valid_BP], *slopes])
        for narrow, wide in zip(*found, strict=True):
            torch.testing.assert_close(wide, narrow, rtol=1e-12, atol=1e-14)


def test_decomposing_gives_the_direction_that_was_composed():
    for pool in POOLS:
        for mix in MIXES:
            composer = build(16, noise=0.2, mix=mix, pool=pool)
            composed = composer(draw(5, 4, 16, seed=9), RAGGED)
            expected = F.normalize(composed.mean_BD, dim=-1)
            solved, transposed = (
                composer.decompose(composed.composed_BD, by_solve=on) for on in (True, False)
            )
            assert torch.allclose(solved, expected, atol=1e-9)
            assert torch.allclose(transposed, expected, atol=1e-9) == (mix != LINEAR)
            assert torch.allclose(transposed.norm(dim=1), torch.ones(5).double())


def test_read_out_finds_primitives_at_right_angles():
    composer = build(12, noise=0.0, is_shaped=False)
    composer.theta_DD.data.copy_(draw(12, 12, seed=10))
    vocabulary_VD = torch.eye(12, dtype=torch.float64)[:9]
    layout = make_layout([["a", "b", "c"], ["d"], ["c", "e", "f", "g", "h", "i"]])
    primitive_BPD = vocabulary_VD[torch.from_numpy(layout.index_BP)]
    composed_BD = composer(primitive_BPD, torch.from_numpy(layout.valid_BP)).composed_BD
    score_BV = composer.read_out(composer.decompose(composed_BD), vocabulary_VD)
    expected = [[3**-0.5] * 3 + [0] * 6, [0] * 3 + [1] + [0] * 5, [0, 0, 6**-0.5, 0] + [6**-0.5] * 5]
    assert score_BV.flatten().tolist() == pytest.approx([one for row in expected for one in row], abs=1e-9)


def test_primitives_that_cancel_have_no_direction_but_a_finite_slope():
    composer, one_BD = build(6), draw(2, 6)
    composed_BD = composer(torch.stack([one_BD, -one_BD], 1), torch.ones(2, 2).bool()).composed_BD
    composed_BD.sum().backward()
    assert composed_BD.eq(0).all() and composer.theta_DD.grad.isfinite().all()
    with pytest.raises(ValueError, match="primitives of sample 1: must be at least 1, are 0"):
        composer(draw(3, 2, 6), torch.tensor([[1, 0], [0, 0], [1, 1]]).bool())
    with pytest.raises(ValueError, match=r"primitives \(3, 2, 5\): must be \(3, 2, 6\)"):
        composer(draw(3, 2, 5), torch.ones(3, 2).bool())


def test_sets_are_listed_once_each_in_one_order():
    layout = make_layout([["red cube", "blue ball"], ["blue ball", "red cube", "red cube"], [], ["cone"]])
    assert layout.names == ("blue ball", "cone", "red cube")
    assert layout.index_BP.tolist() == [[0, 2], [0, 2], [0, 0], [1, 0]]
    assert layout.valid_BP.tolist() == [[True, True], [True, True], [False, False], [True, False]]
    assert layout.group_B.tolist() == [0, 0, 1, 2]
    primitive_BPD = draw(3, 6, seed=1)[torch.from_numpy(layout.index_BP[[0, 1]])]
    first, same = build(6, noise=0.3)(primitive_BPD, torch.from_numpy(layout.valid_BP[[0, 1]])).composed_BD
    assert first.equal(same), "order leaves a composition as it was bit for bit"
    empty = make_layout([])
    assert empty.names == () and empty.index_BP.shape == (0, 0)


def test_captions_as_compositions_of_one():
    composer, text_BD = build(6, noise=0.3), draw(4, 6, seed=11)
    expected = composer.turn(composer.shape(text_BD))
    assert torch.allclose(composer.adapt(text_BD), expected / expected.norm(dim=1, keepdim=True))
    assert torch.allclose(build(6).adapt(text_BD), text_BD)


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
    composer = build(6, noise=0.3, mix=CAYLEY, pool=MEAN)
    ways = (
        jacobian_norms(composer),
        autograd_norms(composer),
        power_norms(composer, 1),
        power_norms(composer, 2),
    )
    for first, second in itertools.pairwise(ways):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(ways[0]["raw"], ways[0]["shaped"], rtol=0.05)
    composed = composer(PRIMITIVE_BPD, RAGGED)
    similarity_B = (IMAGE_BD * composed.composed_BD).sum(-1)
    closed_B = shaped_sigma(similarity_B, composed.mean_BD, RAGGED.sum(1))
    torch.testing.assert_close(closed_B, ways[1]["shaped"], rtol=1e-9, atol=1e-12)
    for variant in VARIANTS:
        composer = build(6, noise=0.3, **variant)
        exact, iterated = autograd_norms(composer), power_norms(composer, 1)
        torch.testing.assert_close(iterated, exact, rtol=1e-9, atol=1e-12)


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
    flat = TrustRegion(num_first=1)
    assert [flat.take_alpha(torch.tensor([0.0])) for _ in range(2)] == [1, 1] and flat.gamma > 0
    with pytest.raises(ValueError, match="sigma=nan: must be at least 0"):
        flat.take_alpha(torch.tensor([1.0, math.nan]))


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


NUM, DIM, SCALE = 6, 5, 1 / 0.07
APART = torch.arange(NUM)
# Samples 1 and 4 are of the same composition.
SAME = torch.tensor([0, 1, 2, 3, 1, 5])


def draw_rows(num: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(num, DIM, generator=generator, dtype=torch.float64), dim=-1)


IMAGE, TEXT, COMPOSED = (draw_rows(NUM, seed) for seed in (1, 2, 3))
# The first entry says what sample 2 says, the second what samples 1 and 4 do, the third what none does.
PAST = Past(draw_rows(3, 4), draw_rows(3, 5), torch.tensor([2, 1, 9]))


def add(scores: list[float]) -> float:
    return sum(math.exp(SCALE * score) for score in scores)


def slow_loss(views: list[tuple[Tensor, int]], group: list[int], c2v: str, negatives=()) -> float:
    """Return L_Tri by loops, of (embedding, sample) and (negative, group)."""
    picked, asked = [], []
    for i, image in enumerate(IMAGE):
        own = [float(image @ view) for view, owner in views if owner == i]
        others = [float(image @ v) for v, owner in views if owner != i and group[owner] != group[i]]
        others += [float(image @ text) for text, of in negatives if of != group[i]]
        picked.append(math.log(add(own + others)) - math.log(add(own)))
    rivals = [[j for j in range(NUM) if j == i or group[j] != group[i]] for i in range(NUM)]
    if c2v == OWN:
        for view, owner in views:
            found = add([float(IMAGE[j] @ view) for j in rivals[owner]])
            asked.append(math.log(found) - SCALE * float(IMAGE[owner] @ view))
    else:
        for i in range(NUM):
            own = [view for view, owner in views if owner == i]
            found = add([float(IMAGE[j] @ view) for j in rivals[i] for view in own])
            asked.append(math.log(found) - math.log(add([float(IMAGE[i] @ view) for view in own])))
    return (sum(picked) / len(picked) + sum(asked) / len(asked)) / 2


def both(*more: tuple[Tensor, int]) -> list[tuple[Tensor, int]]:
    return [*zip(TEXT, range(NUM), strict=True), *zip(COMPOSED, range(NUM), strict=True), *more]


def test_with_one_positive_it_is_plain_infonce():
    for c2v in QUERIES:
        found = compo_realign(IMAGE, TEXT, None, APART, SCALE, c2v=c2v)
        assert float(found.total) == pytest.approx(float(clip_loss(IMAGE, TEXT, SCALE)), rel=1e-12)
        assert found.anchor == 0


def test_two_positives_equal_a_slow_loop():
    for group in [APART, SAME]:
        for c2v in QUERIES:
            found = compo_realign(IMAGE, TEXT, COMPOSED, group, SCALE, c2v=c2v)
            assert float(found.total) == pytest.approx(slow_loss(both(), group.tolist(), c2v), rel=1e-12)


def test_past_texts_as_positives_and_as_negatives_equal_a_slow_loop():
    for c2v in QUERIES:
        more = [(PAST.text_KD[0], 2), (PAST.text_KD[1], 1), (PAST.text_KD[1], 4)]
        found = compo_realign(IMAGE, TEXT, COMPOSED, SAME, SCALE, PAST, LITERAL, c2v)
        assert float(found.total) == pytest.approx(slow_loss(both(*more), SAME.tolist(), c2v), rel=1e-12)
        found = compo_realign(IMAGE, TEXT, COMPOSED, SAME, SCALE, PAST, NEGATIVES, c2v)
        others = list(zip(PAST.text_KD, PAST.group_K.tolist(), strict=True))
        assert float(found.total) == pytest.approx(slow_loss(both(), SAME.tolist(), c2v, others), rel=1e-12)


def test_samples_of_the_same_composition_are_negatives_on_request():
    more = [(PAST.text_KD[0], 2), (PAST.text_KD[1], 1), (PAST.text_KD[1], 4)]
    for reading, views, others in ((LITERAL, more, ()), (NEGATIVES, [], [(one, -1) for one in PAST.text_KD])):
        args = IMAGE, TEXT, COMPOSED, SAME, SCALE, PAST, reading, OWN
        slow = slow_loss(both(*views), APART.tolist(), OWN, others)
        assert float(compo_realign(*args, NEGATIVES).total) == pytest.approx(slow, rel=1e-12)
        assert float(compo_realign(*args).total) < slow - 1e-3


def test_anchors_are_past_texts_in_the_place_of_images():
    plain = compo_realign(IMAGE, TEXT, COMPOSED, SAME, SCALE)
    found = compo_realign(IMAGE, TEXT, COMPOSED, SAME, SCALE, PAST, ANCHORED)
    assert found[:2] == plain[:2]
    assert float(found.anchor) == pytest.approx(float(clip_loss(PAST.text_KD, PAST.composed_KD, SCALE)))
    assert float(found.total) == pytest.approx(float(plain.total) + float(found.anchor))
    none = Past(torch.zeros(0, DIM).double(), torch.zeros(0, DIM).double(), torch.zeros(0).long())
    for reading in READINGS:
        assert compo_realign(IMAGE, TEXT, COMPOSED, SAME, SCALE, none, reading) == plain


@pytest.mark.parametrize("c2v", QUERIES)
@pytest.mark.parametrize("reading", READINGS)
def test_gradients_are_the_numerical_ones(reading: str, c2v: str):
    def loss(image, text, composed, past_text, past_composed) -> Tensor:
        past = Past(past_text, past_composed, PAST.group_K)
        return compo_realign(image, text, composed, SAME, 5.0, past, reading, c2v).total

    inputs = [IMAGE, TEXT, COMPOSED, PAST.text_KD, PAST.composed_KD]
    assert torch.autograd.gradcheck(loss, [value.clone().requires_grad_() for value in inputs])
