"""Distillation and consolidation against slow loops and where they must be 0 or least."""

import math

import pytest
import torch

from raycomp.core.losses import consolidate, distil, expert_momentum


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shares(logits) -> list[float]:
    most = max(logits)
    parts = [math.exp(value - most) for value in logits]
    return [part / sum(parts) for part in parts]


def test_distil_is_a_slow_loop():
    student, teacher = 3 * draw(0, 4, 5), 3 * draw(1, 4, 5)
    found = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        p, q = shares([value / 2 for value in t]), shares([value / 2 for value in s])
        found += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert distil(student, teacher).item() == pytest.approx(4 * found / 4)


def test_distil_is_zero_where_both_agree_up_to_a_shift():
    teacher = draw(1, 4, 5)
    assert distil(teacher + 3, teacher).item() == pytest.approx(0, abs=1e-12)
    assert distil(-teacher, teacher).item() > 0.1


def test_consolidate_is_a_slow_loop():
    new, old = (draw(0, 4, 3), 5 * draw(1, 4, 3)), (draw(2, 4, 3), draw(3, 4, 3))
    one, other = (
        [torch.cat([i, t]) / torch.cat([i, t]).norm() for i, t in zip(*p, strict=True)] for p in (new, old)
    )
    terms = []
    for queries, keys in ((one, other), (other, one)):
        for i, query in enumerate(queries):
            logits = [float(query @ key) / 0.07 for key in keys]
            terms.append(-math.log(shares(logits)[i]))
    assert consolidate(new, old).item() == pytest.approx(sum(terms) / len(terms))


def test_consolidate_knows_no_length_of_the_pair_but_that_of_its_parts():
    image, text, old = draw(0, 4, 3), draw(1, 4, 3), (draw(2, 4, 3), draw(3, 4, 3))
    whole = consolidate((image, text), old).item()
    assert consolidate((7 * image, 7 * text), old).item() == pytest.approx(whole)
    assert consolidate((7 * image, text), old).item() != pytest.approx(whole, abs=1e-2)


def test_experts_of_the_last_task_alone_take_most_of_what_is_new():
    share = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.4, 0.1, 0.2, 0.3], [0.1, 0.2, 0.4, 0.3]])
    # The first two tasks have experts 0 and 1, and 0 and 3 on top, the last one 2 and 3.
    assert expert_momentum(share).tolist() == pytest.approx([0.7, 0.7, 0.3, 0.7])
    assert expert_momentum(share[:2]).tolist() == pytest.approx([0.7, 0.7, 0.7, 0.3])
    assert expert_momentum(share[:2], top=1).tolist() == pytest.approx([0.7] * 4)
    assert expert_momentum(share[:1]).tolist() == [0] * 4
    assert expert_momentum(share[:, :1]).tolist() == pytest.approx([0.7])
