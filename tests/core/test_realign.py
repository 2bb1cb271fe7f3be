"""The objective against plain InfoNCE, slow loops, numerical gradients and its readings' limits."""

import copy
import math
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raycomp.core.compo_realign import (
    ANCHORED,
    JOINT,
    LITERAL,
    NEGATIVES,
    OWN,
    QUERIES,
    READINGS,
    Composer,
    Past,
    Views,
    compo_realign,
    contrast_views,
    turn,
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


def test_only_own_queries_draw_a_composition_to_its_image():
    """e^_c far from its image, e_c near: one quotient leaves e^_c alone, or sends it away."""
    image = torch.eye(2, dtype=torch.float64)
    text, composed = image.clone(), image.flip(0) * 0.2
    pulls = {}
    for c2v in QUERIES:
        leaf = composed.clone().requires_grad_()
        contrast_views(
            image, Views(torch.cat([text, leaf]), torch.tensor([0, 1, 0, 1])), APART[:2], SCALE, c2v
        ).composition_to_image.backward()
        pulls[c2v] = -float(leaf.grad.diagonal().sum())
    assert pulls[OWN] > 1 and abs(pulls[JOINT]) < 0.01


class Toy(NamedTuple):
    """Images that are one turn of the mean of two words, with something of their own; captions near them."""

    composer: Composer
    primitive_BPD: Tensor
    image_BD: Tensor
    text_BD: Tensor

    def compose(self, rows: slice) -> Tensor:
        primitive_BPD = self.primitive_BPD[rows]
        return self.composer(primitive_BPD, torch.ones(len(primitive_BPD), 2).bool()).composed_BD

    def learn(self, rows: slice, past: slice | None = None, c2v: str = OWN, reading: str = ANCHORED) -> None:
        number_B, optimizer = torch.arange(36), torch.optim.AdamW(self.composer.parameters(), lr=0.02)
        for _ in range(80):
            kept = None if past is None else Past(self.text_BD[past], self.compose(past), number_B[past])
            batch = self.image_BD[rows], self.text_BD[rows], self.compose(rows), number_B[rows]
            optimizer.zero_grad()
            compo_realign(*batch, SCALE, kept, reading, c2v).total.backward()
            optimizer.step()

    @torch.no_grad()
    def hits(self, rows: slice) -> float:
        """Return how many images find their composition among all."""
        found_B = (self.image_BD @ self.compose(slice(0, 36)).T).argmax(1)
        return float((found_B == torch.arange(36))[rows].float().mean())


def make_toy(own: float) -> Toy:
    generator = torch.Generator().manual_seed(3)
    word_VD, own_BD, noise_BD = (torch.randn(num, 16, generator=generator) for num in (12, 36, 36))
    word_VD, pair_B = F.normalize(word_VD, dim=-1), torch.randperm(36, generator=generator)
    primitive_BPD = torch.stack([word_VD[pair_B // 6], word_VD[6 + pair_B % 6]], 1)
    turned_BD = turn(primitive_BPD.mean(1), 3 * torch.randn(16, 16, generator=generator)).float()
    image_BD = F.normalize(F.normalize(turned_BD, dim=-1) + own * F.normalize(own_BD, dim=-1), dim=-1)
    text_BD = F.normalize(image_BD + 0.05 * noise_BD, dim=-1)
    return Toy(Composer(16, 8, generator), primitive_BPD, image_BD, text_BD)


ALL, FIRST, SECOND = slice(0, 36), slice(0, 18), slice(18, 36)


def test_a_head_learns_how_images_are_turned_and_stays_orthogonal():
    toy = make_toy(own=0.0)
    assert toy.hits(ALL) < 0.2
    toy.learn(ALL)
    assert toy.hits(ALL) > 0.9
    matrix_DD = toy.composer.matrix()
    assert (matrix_DD.T @ matrix_DD - torch.eye(16)).abs().max() < 1e-12


def test_anchors_keep_what_the_next_task_would_overwrite():
    kept, learned = {}, make_toy(own=0.5)
    learned.learn(FIRST)
    for reading in (ANCHORED, LITERAL):
        toy = copy.deepcopy(learned)
        toy.learn(SECOND, past=FIRST, reading=reading)
        assert toy.hits(SECOND) > 0.9
        kept[reading] = toy.hits(FIRST)
    # Nobody says again what a past text said: as a paraphrase it does nothing.
    assert kept[ANCHORED] > 0.95 > 0.9 > kept[LITERAL]
