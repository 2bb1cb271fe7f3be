"""The objective against plain InfoNCE, slow loops, numerical gradients and its readings' limits."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raycomp.core.compo_realign import (
    ANCHORED,
    LITERAL,
    NEGATIVES,
    OWN,
    QUERIES,
    READINGS,
    Past,
    compo_realign,
)
from raycomp.core.losses import clip_loss

NUM, DIM, SCALE = 6, 5, 1 / 0.07
APART = torch.arange(NUM)
# Samples 1 and 4 are of the same composition.
SAME = torch.tensor([0, 1, 2, 3, 1, 5])


def draw(num: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(num, DIM, generator=generator, dtype=torch.float64), dim=-1)


IMAGE, TEXT, COMPOSED = (draw(NUM, seed) for seed in (1, 2, 3))
# The first entry says what sample 2 says, the second what samples 1 and 4 do, the third what none does.
PAST = Past(draw(3, 4), draw(3, 5), torch.tensor([2, 1, 9]))


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


def test_anchors_are_past_texts_in_the_place_of_images():
    plain = compo_realign(IMAGE, TEXT, COMPOSED, SAME, SCALE)
    found = compo_realign(IMAGE, TEXT, COMPOSED, SAME, SCALE, PAST, ANCHORED)
    assert found[:2] == plain[:2]
    assert float(found.anchor) == pytest.approx(float(clip_loss(PAST.text_KD, PAST.composed_KD, SCALE)))
    assert float(found.total) == pytest.approx(float(plain.total) + float(found.anchor))


def test_an_empty_buffer_changes_nothing():
    for reading in READINGS:
        none = Past(torch.zeros(0, DIM).double(), torch.zeros(0, DIM).double(), torch.zeros(0).long())
        plain = compo_realign(IMAGE, TEXT, COMPOSED, SAME, SCALE)
        for past in (None, none):
            assert compo_realign(IMAGE, TEXT, COMPOSED, SAME, SCALE, past, reading) == plain


def test_limits():
    one = torch.eye(NUM, DIM + 1, dtype=torch.float64)
    right = compo_realign(one, one, one, APART, 100.0)
    assert float(right.total) == pytest.approx(0, abs=1e-12)
    same = torch.ones(NUM, 4, dtype=torch.float64) / 2
    assert float(compo_realign(same, same, same, APART, 9.0).total) == pytest.approx(math.log(NUM))
    assert float(compo_realign(same, same, same, 0 * APART, 9.0).total) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("c2v", QUERIES)
@pytest.mark.parametrize("reading", READINGS)
def test_gradients_are_the_numerical_ones(reading: str, c2v: str):
    def loss(image, text, composed, past_text, past_composed) -> Tensor:
        past = Past(past_text, past_composed, PAST.group_K)
        return compo_realign(image, text, composed, SAME, 5.0, past, reading, c2v).total

    inputs = [IMAGE, TEXT, COMPOSED, PAST.text_KD, PAST.composed_KD]
    assert torch.autograd.gradcheck(loss, [value.clone().requires_grad_() for value in inputs])
