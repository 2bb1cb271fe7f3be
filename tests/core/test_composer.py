"""The composer against orthogonality, numerical gradients, round trips and sets in any layout."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raycomp.core.compo_realign import LINEAR, MIXES, POOLS, Composer, make_layout, turn

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


def test_the_turn_is_orthogonal_after_training():
    for dim in [96]:
        composer = Composer(dim, 16, torch.Generator().manual_seed(0))
        optimizer = torch.optim.AdamW(composer.parameters(), lr=0.05)
        primitive_BPD, image_BD = (
            draw(8, 2, dim, dtype=torch.float32),
            draw(8, dim, seed=1, dtype=torch.float32),
        )
        for _ in range(4):
            optimizer.zero_grad()
            composed_BD = composer(primitive_BPD, torch.ones(8, 2).bool()).composed_BD
            (-(composed_BD * image_BD).sum()).backward()
            optimizer.step()
        assert composer.theta_DD.abs().max() > 0.1
        matrix_DD = composer.matrix()
        assert matrix_DD.dtype == torch.float64
        assert (matrix_DD.T @ matrix_DD - torch.eye(dim)).abs().max() < 1e-6
        assert (matrix_DD - torch.eye(dim)).abs().max() > 0.1


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


def test_what_cannot_be_composed_is_named():
    composer = build(6)
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
    empty = make_layout([])
    assert empty.names == () and empty.index_BP.shape == (0, 0)


def test_order_and_relations_leave_a_composition_as_it_was_bit_for_bit():
    composer = build(6, noise=0.3)
    layout = make_layout([["b", "c", "a"], ["a", "b", "c"], ["c", "a", "b"]])
    primitive_BPD = draw(3, 6)[torch.from_numpy(layout.index_BP)]
    first, *others = composer(primitive_BPD, torch.from_numpy(layout.valid_BP)).composed_BD
    assert all(first.equal(other) for other in others)


def test_captions_as_compositions_of_one():
    composer, text_BD = build(6, noise=0.3), draw(4, 6, seed=11)
    expected = composer.turn(composer.shape(text_BD))
    assert torch.allclose(composer.adapt(text_BD), expected / expected.norm(dim=1, keepdim=True))
    assert torch.allclose(build(6).adapt(text_BD), text_BD)
