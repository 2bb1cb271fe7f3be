"""The loop against open_clip's own parts, over ranks and in parts, and what stops it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from open_clip.loss import ClipLoss, SigLipLoss
from open_clip_train.scheduler import cosine_lr

from raycomp.config import ModelConfig, UserError
from raycomp.models.clip import load_start
from raycomp.training.config import FitConfig
from raycomp.training.loop import MAX_LOGIT_SCALE, Trainer
from raycomp.training.losses import LOSSES, get_loss
from raycomp.training.towers import Embedded, PairsObjective
from tests.training import fitting
from tests.training.fitting import BATCH, OF_PARTS, STEPS, batches, measure_parts, run, start_trainer


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ModelConfig:
    return fitting.write_model(tmp_path_factory.mktemp("model"))


def test_twenty_steps_have_the_losses_of_open_clips_own_parts(model):
    for loss in ["clip", "siglip"]:
        found = run(start_trainer(model, loss))
        clip = load_start(model, get_loss(loss).bias).train()
        named = list(clip.named_parameters())
        free = [p for n, p in named if p.ndim < 2 or any(w in n for w in ("bn", "ln", "bias", "logit_scale"))]
        decayed = [p for _, p in named if all(p is not q for q in free)]
        groups = [{"params": free, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.2}]
        optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.98), eps=1e-6)
        schedule = cosine_lr(optimizer, 3e-4, STEPS // 4, STEPS)
        expected = []
        for step, batch in enumerate(batches(slice(None))):
            schedule(step)
            judged = (SigLipLoss if loss == "siglip" else ClipLoss)()(*clip(batch.image_RCHW, batch.token_RN))
            optimizer.zero_grad()
            judged.backward()
            optimizer.step()
            with torch.no_grad():
                clip.logit_scale.clamp_(0, 4.6052)
            expected.append(judged.item())
        assert found == pytest.approx(expected, abs=1e-5)
        assert len(found) == STEPS and min(found) < found[0]


def test_ranks_have_the_curve_of_one_process(model, of_ranks):
    for loss in LOSSES:
        expected = run(start_trainer(model, loss), until=8)
        for found in of_ranks:
            assert found["curves"][loss] == pytest.approx(expected, abs=1e-5), loss


def assert_equal_within(found: dict, expected: dict, tolerance: float) -> None:
    """Losses are some units large, so a last bit of theirs is half a millionth."""
    assert {*found} == {*expected}
    for name, value in expected.items():
        one, other = torch.as_tensor(found[name]), torch.as_tensor(value)
        rtol = tolerance if name == "losses" else 0
        torch.testing.assert_close(one, other, rtol=rtol, atol=tolerance, msg=name)


def test_parts_give_the_weights_of_the_whole_batch_over_ranks_too(model, of_ranks):
    for loss in LOSSES:
        whole = measure_parts(0, 1, model, loss, {})
        assert_equal_within(measure_parts(0, 1, model, loss, {"accumulate": 5}), whole, 1e-6)
    for number, options in enumerate(OF_PARTS):
        whole = measure_parts(0, 1, model, "triplet", options)
        for found in of_ranks:
            assert_equal_within(found["parts"][number], whole, 1e-6)


def test_what_a_model_draws_is_drawn_again_for_a_part(tmp_path):
    """Where patches are dropped, both embeddings of a part must drop the same: else no gradient is right."""
    vision = {"image_size": 32, "layers": 1, "width": 64, "patch_size": 4, "patch_dropout": 0.5}
    drops = fitting.write_model(tmp_path, "drops", vision_cfg=vision)
    trainer = start_trainer(drops, "clip", accumulate=3)
    batch = next(batches(slice(None)))
    trainer.clip.train()
    one, same, other = (trainer._embed(batch, part)["image"] for part in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_weights_that_embed_nothing_are_named_at_the_first_step_and_later(model):
    for accumulate, kind, num in [(1, "images", "12"), (3, "texts", "12"), (1, "word", r"\d")]:
        config, clip = FitConfig(accumulate=accumulate), load_start(model)
        objective = PairsObjective(clip, config, STEPS, BATCH, said_weights="model.weights='x.pt'")
        with torch.no_grad():
            if kind == "images":
                clip.visual.proj.zero_()
            elif kind == "texts":
                clip.text_projection.copy_(3e38 * (1 - 2 * (torch.arange(32) % 2)[:, None]))
            else:  # one word of the first batch
                clip.token_embedding.weight[next(batches(slice(None))).token_RN[0, 1]] = 3e38
        said = rf"^model\.weights='x\.pt': gives embeddings .* \({num} of 24 rows of the first step\); name"
        with pytest.raises(UserError, match=said):
            _ = next(Trainer(objective, STEPS).run(batches(slice(None)))).loss
    trainer = start_trainer(model, "clip")
    reported = trainer.run(batches(slice(None)))
    assert next(reported).step == 0
    with torch.no_grad():
        trainer.clip.visual.proj.zero_()
    said = r"^train\.learning_rate=0\.0003: gives embeddings .* \(12 of 24 rows of step 1\); lower it$"
    with pytest.raises(UserError, match=said):
        _ = next(reported).loss


def test_slots_without_a_negative_are_no_bad_rows():
    good_BD, nan = F.normalize(torch.ones(3, 4), dim=-1), float("nan")
    negative_BKD = torch.stack([good_BD, torch.full((3, 4), nan)], dim=1)
    valid_BK = torch.tensor([[True, False]] * 3)
    shown_BD = torch.stack([good_BD[0], torch.zeros(4), good_BD[0]])
    embedded = Embedded(good_BD, good_BD, torch.tensor(1.0), None, negative_BKD, valid_BK, None, shown_BD)
    assert embedded.count_bad().tolist() == [1, 12]
    assert replace(embedded, valid_NK=torch.tensor([[False, True]] * 3)).count_bad().tolist() == [3, 9]


def test_logit_scale_stays_between_one_and_a_hundred(model):
    for start, end in ((9.0, MAX_LOGIT_SCALE), (-3.0, 0.0)):
        trainer = start_trainer(model, "clip", warmup=0.0, learning_rate=0.01)
        with torch.no_grad():
            trainer.clip.logit_scale.fill_(start)
        run(trainer, until=3)
        scale = trainer.clip.logit_scale.item()
        assert 0 <= scale <= MAX_LOGIT_SCALE + 1e-6 and abs(scale - end) < 0.2
