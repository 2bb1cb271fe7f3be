"""The loop against open_clip's own parts, over ranks, and what stops it."""

from collections.abc import Iterator
from pathlib import Path

import open_clip
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from open_clip.loss import ClipLoss
from open_clip_train.scheduler import cosine_lr
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from raycomp.config import ScorerConfig
from raycomp.config.train import FitConfig
from raycomp.core.epochs import slice_of
from raycomp.loops.train.fit import Batch, Trainer, learning_rate_at
from raycomp.models.clip import Clip

STEPS, BATCH, SLOTS = 20, 12, 2
CONFIG = FitConfig(learning_rate=3e-4, warmup=0.25)
CAPTIONS = [
    f"a {size} {colour} {thing}"
    for size in ("big", "tiny")
    for colour in ("red", "blue")
    for thing in ("cube", "ball", "cone")
]


def draw_images(generator: torch.Generator) -> Tensor:
    return torch.randn(BATCH, 3, 32, 32, generator=generator)


def batches(own: slice, loss: str = "clip") -> Iterator[Batch]:
    """Yield a rank's rows of the same batches."""
    generator = torch.Generator().manual_seed(0)
    token_BN = open_clip.tokenize(CAPTIONS)
    for _ in range(STEPS):
        image, shown = draw_images(generator), draw_images(generator)
        order = torch.randperm(BATCH, generator=generator)
        batch = Batch(image[own], token_BN[order][own])
        if loss != "clip":
            negative_BKN = torch.stack([token_BN[order.roll(1)], token_BN[order.roll(2)]], 1)
            valid_BK = torch.rand(BATCH, SLOTS, generator=generator) < 0.7
            kind_BK = torch.arange(BATCH * SLOTS).reshape(BATCH, SLOTS) % 3
            shown = shown if loss == "triplet" else None
            batch = Batch(
                batch.image_RCHW,
                batch.token_RN,
                negative_BKN[own],
                valid_BK[own],
                kind_BK[own],
                None if shown is None else shown[own],
            )
        yield batch


def start(scorer: ScorerConfig):
    return Clip(scorer, device="cpu").model


def curve(scorer: ScorerConfig, loss: str, rank: int = 0, num_ranks: int = 1) -> list[float]:
    wrap = DistributedDataParallel if num_ranks > 1 else (lambda towers: towers)
    config = FitConfig(loss=loss, learning_rate=3e-4, warmup=0.25)
    trainer = Trainer(start(scorer), config, STEPS, BATCH, num_kinds=3, wrap=wrap)
    return [told.loss for told in trainer.run(batches(slice_of(rank, num_ranks, BATCH), loss))]


def test_twenty_steps_have_the_losses_of_open_clips_own_parts(tiny_scorer):
    found = curve(tiny_scorer, "clip")
    model = start(tiny_scorer).train()
    named = list(model.named_parameters())
    free = [p for n, p in named if p.ndim < 2 or any(w in n for w in ("bn", "ln", "bias", "logit_scale"))]
    decayed = [p for _, p in named if all(p is not q for q in free)]
    groups = [{"params": free, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.2}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.98), eps=1e-6)
    schedule = cosine_lr(optimizer, 3e-4, STEPS // 4, STEPS)
    expected = []
    for step, batch in enumerate(batches(slice(None))):
        schedule(step)
        loss = ClipLoss()(*model(batch.image_RCHW, batch.token_RN)[:3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6052)
        expected.append(loss.item())
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(found) == STEPS and min(found) < found[0]


def test_the_rate_is_open_clips(tiny_scorer):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = cosine_lr(optimizer, CONFIG.learning_rate, 5, STEPS)
    for step in range(STEPS):
        schedule(step)
        assert learning_rate_at(step, STEPS, CONFIG) == pytest.approx(optimizer.param_groups[0]["lr"])
    assert learning_rate_at(0, 1, FitConfig(warmup=0.0)) == FitConfig().learning_rate


def run_rank(rank: int, num_ranks: int, scorer: ScorerConfig, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=num_ranks)
    curves = {loss: curve(scorer, loss, rank, num_ranks) for loss in ("clip", "ceclip", "triplet")}
    torch.save(curves, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_have_the_curve_of_one_process(tiny_scorer, tmp_path: Path, num_ranks: int) -> None:
    mp.spawn(run_rank, (num_ranks, tiny_scorer, str(tmp_path)), nprocs=num_ranks)
    for rank in range(num_ranks):
        for loss, found in torch.load(tmp_path / f"{rank}.pt", weights_only=True).items():
            assert found == pytest.approx(curve(tiny_scorer, loss), abs=1e-5), loss


def test_a_loss_that_is_not_finite_stops_the_run(tiny_scorer):
    clip = start(tiny_scorer)
    trainer = Trainer(clip, CONFIG, STEPS, BATCH)
    told = trainer.run(batches(slice(None)))
    assert next(told).step == 0
    with torch.no_grad():
        clip.visual.proj.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"loss=nan at step 1: must be finite; train\.learning_rate=0\.0003"):
        next(told)


def find_gap(scorer: ScorerConfig, loss: str) -> float:
    """Return how much nearer images are to their captions than to the same "at night", after some steps."""
    clip = start(scorer)
    image_RCHW = draw_images(torch.Generator().manual_seed(1))
    token_RN = open_clip.tokenize(CAPTIONS)
    other_RN = open_clip.tokenize([f"{caption} at night" for caption in CAPTIONS])
    negatives = (other_RN[:, None], torch.ones(BATCH, 1, dtype=torch.bool)) if loss == "negclip" else ()
    trainer = Trainer(clip, FitConfig(loss=loss, learning_rate=1e-3), 10, BATCH)
    list(trainer.run([Batch(image_RCHW, token_RN, *negatives)] * 10))
    with torch.no_grad():
        image_RD = F.normalize(clip.encode_image(image_RCHW), dim=-1)
        text_RD, other_RD = (F.normalize(clip.encode_text(t), dim=-1) for t in (token_RN, other_RN))
    return float((image_RD * (text_RD - other_RD)).sum(-1).mean())


def test_negatives_teach_what_pairs_alone_do_not(tiny_scorer):
    assert find_gap(tiny_scorer, "negclip") > 2 * find_gap(tiny_scorer, "clip")
