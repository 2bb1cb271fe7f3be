"""Losses against slow loops, limits and numerical gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import multivariate_normal
from torch import Tensor

from raycomp.core import losses
from raycomp.core.losses import (
    RIDGE,
    ceclip_parts,
    clip_loss,
    consolidate,
    distil,
    expert_momentum,
    fit_gaussian,
    log_density,
    negclip_loss,
    siglip_loss,
    triplet_loss,
)
from raycomp.training.losses import LOSSES


def embeddings(num: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(num, dim, dtype=torch.float64, generator=generator), dim=-1)


def test_clip_loss_limits() -> None:
    same = embeddings(1, 4, seed=5).expand(6, 4)
    assert float(clip_loss(same, same, 50.0)) == pytest.approx(math.log(6))
    own = torch.eye(6, dtype=torch.float64)
    assert float(clip_loss(own, own, 100.0)) == pytest.approx(0, abs=1e-12)
    assert float(clip_loss(own, own.roll(1, 0), 100.0)) == pytest.approx(100)
    with pytest.raises(ValueError, match=r"\(3, 4\), \(2, 4\)"):
        clip_loss(embeddings(3, 4, seed=8), embeddings(2, 4, seed=9), 1.0)


NUM, SLOTS, DIM, KINDS, SCALE = 6, 3, 5, 4, 9.0


def batch() -> dict[str, Tensor]:
    """Pairs with negatives, of which a third is padding that holds NaN."""
    valid_NK = torch.rand(NUM, SLOTS, generator=torch.Generator().manual_seed(4)) < 0.67
    assert 0 < valid_NK.sum() < valid_NK.numel()
    negative_NKD = embeddings(NUM * SLOTS, DIM, seed=3).reshape(NUM, SLOTS, DIM)
    return {
        "image": embeddings(NUM, DIM, seed=1),
        "text": embeddings(NUM, DIM, seed=2),
        "negative": negative_NKD.where(valid_NK[..., None], math.nan),
        "valid": valid_NK,
        "kind": torch.arange(NUM * SLOTS).reshape(NUM, SLOTS) % (KINDS - 1),  # none of the last kind
        "margin": torch.tensor([0.0, 2.0, 5.0, 7.0], dtype=torch.float64),
    }


def slow_softmax(own: float, others: list[float]) -> float:
    return math.log(sum(math.exp(value) for value in [own, *others])) - own


def slow_negclip(image: Tensor, text: Tensor, negatives: list[Tensor], scale: float) -> float:
    total = 0.0
    for i in range(len(image)):
        others = [text[j] for j in range(len(text)) if j != i] + negatives
        own = scale * float(image[i] @ text[i])
        total += slow_softmax(own, [scale * float(image[i] @ other) for other in others]) / 2
        images = [scale * float(image[j] @ text[i]) for j in range(len(image)) if j != i]
        total += slow_softmax(own, images) / 2
    return total / len(image)


def valid_negatives(b: dict[str, Tensor]) -> list[Tensor]:
    return [b["negative"][i, k] for i in range(NUM) for k in range(SLOTS) if b["valid"][i, k]]


def test_negclip_loss_equals_a_slow_loop() -> None:
    b = batch()
    expected = slow_negclip(b["image"], b["text"], valid_negatives(b), SCALE)
    found = negclip_loss(b["image"], b["text"], b["negative"], b["valid"], SCALE)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_losses_without_negatives_are_clips() -> None:
    b = batch()
    plain = clip_loss(b["image"], b["text"], SCALE)
    assert float(plain) == pytest.approx(slow_negclip(b["image"], b["text"], [], SCALE), rel=1e-9)
    none_NK = torch.zeros_like(b["valid"])
    assert negclip_loss(b["image"], b["text"], b["negative"], none_NK, SCALE) == plain
    first_ND = b["negative"][:, 0]
    assert triplet_loss(b["image"], b["text"], first_ND, first_ND, none_NK[:, 0], SCALE) == plain
    parts = ceclip_parts(b["image"], b["text"], b["negative"], none_NK, b["kind"], b["margin"], SCALE)
    assert (parts.negclip, parts.imc, parts.cmr) == (plain, 0, 0)
    assert parts.margin_S.equal(b["margin"])


def test_triplet_loss_is_negclips_of_both_sides() -> None:
    b = batch()
    other_ND, shown_ND = embeddings(NUM, DIM, seed=7), embeddings(NUM, DIM, seed=8)
    valid_N = torch.tensor([True, False, True, True, False, True])
    rows = valid_N.nonzero()[:, 0].tolist()
    expected = slow_negclip(b["image"], b["text"], [other_ND[i] for i in rows], SCALE)
    shown = slow_negclip(shown_ND[rows], other_ND[rows], [b["text"][i] for i in rows], SCALE)
    expected += len(rows) / NUM * shown
    found = triplet_loss(b["image"], b["text"], shown_ND, other_ND, valid_N, SCALE)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_ceclip_parts_equal_slow_loops() -> None:
    b = batch()
    found = ceclip_parts(b["image"], b["text"], b["negative"], b["valid"], b["kind"], b["margin"], SCALE)
    own = [SCALE * float(b["image"][i] @ b["text"][i]) for i in range(NUM)]
    against = [
        slow_softmax(own[i], [SCALE * float(b["text"][i] @ negative) for negative in valid_negatives(b)])
        for i in range(NUM)
    ]
    assert float(found.imc) == pytest.approx(sum(against) / NUM, rel=1e-9)
    excess, of_kind = 0.0, {kind: [] for kind in range(KINDS)}
    for i, k in b["valid"].nonzero().tolist():
        kind, near = int(b["kind"][i, k]), SCALE * float(b["image"][i] @ b["negative"][i, k])
        of_kind[kind].append(near)
        excess += max(0.0, float(b["margin"][kind]) + near - own[i])
    assert float(found.cmr) == pytest.approx(excess / (NUM * SLOTS), rel=1e-9) and excess > 0
    for kind, near in of_kind.items():
        gap = sum(own) / NUM - sum(near) / len(near) if near else float(b["margin"][kind])
        assert float(found.margin_S[kind]) == pytest.approx(min(10.0, max(0.0, gap)))


def test_a_margin_stays_within_its_bounds() -> None:
    own_ND = torch.eye(4, dtype=torch.float64).requires_grad_()
    all_NK, kind_NK, margin_S = torch.ones(4, 1, dtype=torch.bool), torch.zeros(4, 1).long(), torch.zeros(1)
    for negative_ND, scale, expected in ((-own_ND, 100.0, 10.0), (own_ND, 100.0, 0.0), (-own_ND, 3.0, 6.0)):
        parts = ceclip_parts(own_ND, own_ND, negative_ND[:, None], all_NK, kind_NK, margin_S, scale)
        assert parts.margin_S.tolist() == [expected] and not parts.margin_S.requires_grad


def test_siglip_loss_equals_a_slow_loop_and_open_clips() -> None:
    from open_clip.loss import SigLipLoss

    b, bias = batch(), -3.0
    expected = sum(
        math.log1p(math.exp(-(1 if i == j else -1) * (SCALE * float(b["image"][i] @ b["text"][j]) + bias)))
        for i in range(NUM)
        for j in range(NUM)
    )
    found = siglip_loss(b["image"], b["text"], SCALE, bias)
    assert float(found) == pytest.approx(expected / NUM, rel=1e-9)
    assert float(SigLipLoss()(b["image"], b["text"], SCALE, bias)) == pytest.approx(float(found), rel=1e-9)


def every_loss(b: dict[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
    parts = ceclip_parts(b["image"], b["text"], b["negative"], b["valid"], b["kind"], b["margin"], scale)
    first_ND, first_N = b["negative"][:, 0], b["valid"][:, 0]
    return {
        "clip": clip_loss(b["image"], b["text"], scale),
        "negclip": negclip_loss(b["image"], b["text"], b["negative"], b["valid"], scale),
        "triplet": triplet_loss(b["image"], b["text"], first_ND, first_ND, first_N, scale),
        "ceclip": parts.negclip + 0.3 * parts.imc + 0.2 * parts.cmr,
        "siglip": siglip_loss(b["image"], b["text"], scale, -2.0),
    }


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_the_numerical_ones_and_those_of_tiles(name: str, monkeypatch: pytest.MonkeyPatch):
    scale, found = torch.tensor(SCALE, dtype=torch.float64), []

    def loss(image_ND: Tensor, text_ND: Tensor, negative_NKD: Tensor, scale: Tensor) -> Tensor:
        return every_loss({**b, "image": image_ND, "text": text_ND, "negative": negative_NKD}, scale)[name]

    for tile in (2 * NUM, losses.TILE):
        monkeypatch.setattr(losses, "TILE", tile)
        b = batch()
        leaves = [b[one].requires_grad_() for one in ("image", "text", "negative")]
        value = every_loss(b, scale)[name]
        value.backward()
        found.append([value.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)
    assert all(grad.isfinite().all() for grad in found[0]), "padding of NaN"
    inputs = [leaf.detach().nan_to_num() for leaf in leaves] + [scale]  # NaN cannot be moved
    assert torch.autograd.gradcheck(loss, [value.clone().requires_grad_() for value in inputs])


@pytest.mark.slow
def test_memory_holds_a_tile_not_all_similarities() -> None:
    """All of 65,536 x 65,536 would be 17 GB."""
    import resource

    image_ND, text_ND = (torch.randn(65_536, 16).requires_grad_() for _ in range(2))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clip_loss(F.normalize(image_ND, dim=-1), F.normalize(text_ND, dim=-1), 10.0).backward()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 1_000_000
    assert image_ND.grad.isfinite().all()


def draw_turned(num: int, dim: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    turn = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    return torch.randn(num, dim, generator=generator, dtype=torch.float64) @ turn + 3


def test_the_density_is_scipys():
    found, sample = fit_gaussian(draw_turned(30)), draw_turned(7) + 1
    oracle = multivariate_normal(found.mean_D.numpy(), found.covariance_DD.numpy())
    torch.testing.assert_close(log_density(sample, found), torch.from_numpy(oracle.logpdf(sample.numpy())))


def test_the_shrinkage_is_the_papers():
    sample = draw_turned(9)
    raw = torch.cov(sample.T, correction=0)
    num, dim = sample.shape
    trace, square = float(raw.trace()), float((raw @ raw).trace())
    share = ((1 - 2 / dim) * square + trace**2) / ((num + 1 - 2 / dim) * (square - trace**2 / dim))
    assert 0 < share < 1
    wanted = (1 - share) * raw + share * trace / dim * torch.eye(dim)
    torch.testing.assert_close(fit_gaussian(sample).covariance_DD - RIDGE * torch.eye(dim), wanted)


def test_few_samples_or_equal_ones_have_a_density():
    for num in [1, 2, 3]:
        sample = draw_turned(num)
        found = log_density(sample + 0.1, fit_gaussian(sample))
        assert torch.isfinite(found).all()
        assert num == 1 or (found > log_density(sample + 100, fit_gaussian(sample))).all()
    same = fit_gaussian(torch.ones(5, 3))
    torch.testing.assert_close(same.covariance_DD, RIDGE * torch.eye(3, dtype=torch.float64))


def shares(logits) -> list[float]:
    most = max(logits)
    parts = [math.exp(value - most) for value in logits]
    return [part / sum(parts) for part in parts]


def test_distil_is_a_slow_loop():
    student, teacher = 3 * embeddings(4, 5, 0), 3 * embeddings(4, 5, 1)
    found = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        p, q = shares([value / 2 for value in t]), shares([value / 2 for value in s])
        found += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert distil(student, teacher).item() == pytest.approx(4 * found / 4)
    assert distil(teacher + 3, teacher).item() == pytest.approx(0, abs=1e-12)


def test_consolidate_is_a_slow_loop():
    first, second, *old = (embeddings(4, 3, seed) for seed in range(4))
    new = first, 5 * second
    one, other = (
        [torch.cat([i, t]) / torch.cat([i, t]).norm() for i, t in zip(*p, strict=True)] for p in (new, old)
    )
    terms = []
    for queries, keys in ((one, other), (other, one)):
        for i, query in enumerate(queries):
            logits = [float(query @ key) / 0.07 for key in keys]
            terms.append(-math.log(shares(logits)[i]))
    assert consolidate(new, old).item() == pytest.approx(sum(terms) / len(terms))


def test_experts_of_the_last_task_alone_take_most_of_what_is_new():
    share = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.4, 0.1, 0.2, 0.3], [0.1, 0.2, 0.4, 0.3]])
    # The first two tasks have experts 0 and 1, and 0 and 3 on top, the last one 2 and 3.
    assert expert_momentum(share).tolist() == pytest.approx([0.7, 0.7, 0.3, 0.7])
    assert expert_momentum(share[:2]).tolist() == pytest.approx([0.7, 0.7, 0.7, 0.3])
    assert expert_momentum(share[:2], top=1).tolist() == pytest.approx([0.7] * 4)
    assert expert_momentum(share[:1]).tolist() == [0] * 4
    assert expert_momentum(share[:, :1]).tolist() == pytest.approx([0.7])
