"""Fine-tuning against a plain loop."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from raycomp.models.clip import load_start
from tests.continual.tuning import STEPS, Few, learn, rows, same
from tests.training.fitting import write_model


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Few(tmp_path_factory.mktemp("model"))


def slow_loss(image_BD, text_BD, own_B, scale):
    """CLIP's loss by loops; samples of one caption are left out of each other's sums."""
    terms = []
    for query_BD, key_BD in ((image_BD, text_BD), (text_BD, image_BD)):
        for i, query_D in enumerate(query_BD):
            others = [j for j in range(len(own_B)) if j == i or own_B[j] != own_B[i]]
            logits = torch.stack([scale * query_D @ key_BD[j] for j in others])
            terms.append(logits.logsumexp(0) - scale * query_D @ key_BD[i])
    return torch.stack(terms).mean()


def test_it_is_a_plain_loop(few, tmp_path):
    learner, task = few.make("finetune", weight_decay=0.1), few.tasks[0]
    learner.start_task(0, task)
    reported = learn(learner, few, 0)
    model = load_start(write_model(tmp_path)).train()
    decayed = [p for name, p in model.named_parameters() if p.ndim > 1 and "ln" not in name]
    free = [p for name, p in model.named_parameters() if p.ndim < 2 or "ln" in name]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
    mean, std = (torch.tensor(values) for values in (few.spec.image.mean, few.spec.image.std))
    for step in range(STEPS):
        row_B = rows(0, step)
        pixel = (torch.from_numpy(task.pixels[row_B]) / 255 - mean) / std
        image_BD = F.normalize(model.encode_image(pixel.permute(0, 3, 1, 2)), dim=-1)
        text_BD = F.normalize(
            model.encode_text(torch.from_numpy(task.token_TL[task.own_N[row_B]]).long()), dim=-1
        )
        loss = slow_loss(image_BD, text_BD, task.own_N[row_B], model.logit_scale.exp())
        assert reported[step]["loss"] == pytest.approx(loss.item(), abs=2e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
    with torch.no_grad():
        text_TD = F.normalize(model.encode_text(torch.from_numpy(task.token_TL).long()), dim=-1)
    np.testing.assert_allclose(learner.find_keys(task).text_TD, text_TD.numpy(), atol=2e-3)


def test_the_rate_rises_and_stays(few):
    """The first steps of AdamW go as far as the rate, in most weights."""
    learner = few.make("finetune", steps=40)
    learner.start_task(0, few.tasks[0])
    before = learner.model.visual.conv1.weight.detach().clone()
    far = []
    for step in range(6):
        learner.step(step, rows(0, step))
        far.append(float((learner.model.visual.conv1.weight.detach() - before).abs().median()))
        before = learner.model.visual.conv1.weight.detach().clone()
    assert far[0] == pytest.approx(1e-3 / 4, rel=0.05)
    assert {group["lr"] for group in learner.trainer.optimizer.param_groups} == {1e-3}


def test_a_task_of_the_same_seed_is_the_same(few):
    found = []
    for _ in range(2):
        learner = few.make("finetune")
        learner.start_task(0, few.tasks[0])
        learn(learner, few, 0)
        found.append(learner.find_keys(few.tasks[1]))
    assert same(*found)
