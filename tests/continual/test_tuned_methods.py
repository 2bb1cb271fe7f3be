"""Each method that trains the model against a plain loop, in its limits, and part by part."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from raycomp.core.losses import consolidate, distil, expert_momentum
from raycomp.models.adapters import merge_adapters
from raycomp.models.clip import load_start
from tests.continual.tuning import STEPS, Few, learn, on_disk, rows, same
from tests.training.fitting import write_model


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Few(tmp_path_factory.mktemp("model"))


def weights(learner) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in learner.model.named_parameters()}


def slow_loss(image_BD, text_BD, own_B, scale):
    """CLIP's loss by loops; samples of one caption are left out of each other's sums."""
    terms = []
    for query_BD, key_BD in ((image_BD, text_BD), (text_BD, image_BD)):
        for i, query_D in enumerate(query_BD):
            others = [j for j in range(len(own_B)) if j == i or own_B[j] != own_B[i]]
            logits = torch.stack([scale * query_D @ key_BD[j] for j in others])
            terms.append(logits.logsumexp(0) - scale * query_D @ key_BD[i])
    return torch.stack(terms).mean()


def test_finetuning_is_a_plain_loop(few, tmp_path):
    (learner, reported), task = few.start("finetune", weight_decay=0.1), few.tasks[0]
    model = load_start(write_model(tmp_path)).train()
    decayed = [p for name, p in model.named_parameters() if p.ndim > 1 and "ln" not in name]
    free = [p for name, p in model.named_parameters() if p.ndim < 2 or "ln" in name]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
    for step in range(STEPS):
        row_B = rows(0, step)
        image_BD = F.normalize(model.encode_image(few.shape(task.pixels[row_B])), dim=-1)
        token_BL = torch.from_numpy(task.token_TL[task.own_N[row_B]]).long()
        text_BD = F.normalize(model.encode_text(token_BL), dim=-1)
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


def test_the_rate_rises_over_a_tenth_and_stays(few):
    learner, _ = few.start("finetune", stop=0, steps=40)
    found = [learner.rate_at(step) for step in range(6)]
    assert found == pytest.approx([1e-3 * min(1, (step + 1) / 4) for step in range(6)])


def test_zscl_without_its_parts_is_finetuning_and_its_result_a_mean(few):
    options = {"distil": 0.0, "l2": 0.0, "ensemble": STEPS + 1}
    (plain, reported), (bare, same_reported) = few.start("finetune"), few.start("zscl", **options)
    plain.end(), bare.end()
    assert reported == same_reported and same(plain.find_keys(few.tasks[1]), bare.find_keys(few.tasks[1]))
    learner, _ = few.start("zscl", stop=0, ensemble=2)
    seen = [weights(learner)]
    for step in range(5):
        learner.step(step, rows(0, step))
        seen.append(weights(learner))
    learner.end()
    for name, value in weights(learner).items():
        mean = torch.stack([seen[i][name] for i in (0, 2, 4)]).mean(0)
        torch.testing.assert_close(value, mean, atol=1e-6, rtol=0)
    assert not all(value.equal(seen[5][name]) for name, value in weights(learner).items())


def test_zscls_losses_are_those_of_the_first_model_and_of_the_start(few):
    """After some steps; the reference has fewer images and texts than are drawn, so all of them are."""
    learner, _ = few.start("zscl", stop=0, l2=0.5, distil=2.0, batch_size=12)
    first, start = copy.deepcopy(learner.model), weights(learner)
    reported = learn(learner, 0)
    assert [reported[0][name] for name in ("images", "texts", "l2")] == pytest.approx([0, 0, 0], abs=1e-5)
    far = sum((value - start[name]).square().sum() for name, value in weights(learner).items())
    image, token = few.shape(few.tasks[1].pixels[:]), torch.from_numpy(few.tasks[1].token_TL).long()
    with torch.no_grad():
        text = F.normalize(first.encode_text(token), dim=-1)
        now, then = (F.normalize(m.encode_image(image), dim=-1) @ text.T for m in (learner.model, first))
    scale = first.logit_scale.exp()
    found = learner.step(STEPS, rows(0, 0))
    assert found["l2"] == pytest.approx(0.5 * far.item(), rel=1e-4)
    assert found["images"] == pytest.approx(2 * distil(scale * now, scale * then).item(), rel=1e-3)
    assert found["texts"] == pytest.approx(2 * distil(scale * now.T, scale * then.T).item(), rel=1e-3)
    batch, parameters = learner.batch(STEPS, rows(0, 0)), [*learner.model.parameters()]
    for name in ("images", "texts", "l2"):  # a step down a part's own gradient takes a hundredth of it away
        part = learner.losses(learner.towers(batch), batch)[name]
        gradients = torch.autograd.grad(part, parameters, allow_unused=True, materialize_grads=True)
        rate = 0.01 * part.item() / sum(gradient.square().sum() for gradient in gradients)
        with torch.no_grad():
            for value, gradient in zip(parameters, gradients, strict=True):
                value -= rate * gradient
        left = learner.losses(learner.towers(batch), batch)[name].item()
        assert left == pytest.approx(0.99 * part.item(), rel=2e-3), name


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_c_clip_leaves_a_share_of_the_change(few, share):
    learner, _ = few.start("c-clip", merge=share)
    old, whole = few.clip.model.state_dict(), merge_adapters(learner.task["adapters"]).state_dict()
    seen, moved = learner.find_keys(few.tasks[0]), 0
    learner.end()
    assert same(learner.find_keys(few.tasks[0]), seen), "it is seen before the end"
    for name, value in learner.model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, old[name] + share * (whole[name] - old[name]))
        moved += not value.equal(old[name])
    # The matrices of queries, keys and values of one block of each tower, and maybe the logit scale.
    assert moved in ((2, 3) if share else (0,)) and same(seen, few.frozen(0)) == (share == 0)


def test_c_clips_loss_is_of_the_model_before_the_task_and_adapters_start_anew(few):
    learner, _ = few.start("c-clip", stop=0)
    first = on_disk(learner.state())["learned"]["task"]
    learn(learner, 0)
    learner.end()
    learner.start_task(1, few.tasks[1])
    second = on_disk(learner.state())["learned"]["task"]
    for name, value in first.items():
        assert value.equal(second[name]) != ("lora_A" in name) or "logit_scale" in name, name
        assert "lora_B" not in name or not value.any(), name
    (reported,) = learn(learner, 1, stop=1)
    task, row_B = few.tasks[1], rows(1, 0)
    token = torch.from_numpy(task.token_TL[task.own_N[row_B]]).long()
    with torch.no_grad():
        old = learner.model.encode_image(few.shape(task.pixels[row_B])), learner.model.encode_text(token)
    assert reported["consolidation"] == pytest.approx(consolidate(old, old).item(), abs=1e-4)
    assert learner.task["projector"].weight.detach().diagonal().mean() == pytest.approx(1, abs=0.05)


def test_dikis_rows_take_the_prompts_of_the_densest_task(few):
    learned = few.through("diki")
    for number, task in enumerate(few.tasks):
        for tower, features in (("image", task.image_ND), ("text", task.text_TD)):
            set_N, share_N = learned.choose(tower, features)
            assert (set_N == number).all() and ((share_N > 0) & (share_N < 1)).all()
            gaussian = learned.gaussians[tower][number]
            oracle = torch.distributions.MultivariateNormal(gaussian.mean_D, gaussian.covariance_DD)
            log_N = oracle.log_prob(torch.from_numpy(np.array(features)).double()).numpy()
            np.testing.assert_allclose(share_N, 1 / (1 + np.exp(1 - log_N / features.shape[1])), rtol=1e-5)
    task, frozen = few.tasks[0], few.frozen(0)
    far = replace(task, image_ND=-30 * task.image_ND, text_TD=-30 * task.text_TD)  # resembles no task
    for found, plain in zip(learned.find_keys(far)[:2], frozen[:2], strict=True):
        np.testing.assert_allclose(found, plain, atol=1e-3)
    seen = learned.find_keys(task)
    assert np.abs(seen.image_ND - frozen.image_ND).max() > 1e-2
    assert same(few.through("diki", 1).find_keys(task), seen), "a later task leaves it"


def test_diki_trains_the_prompts_of_its_task_alone(few):
    learner, old = few.through("diki", 1), few.clip.model.state_dict()
    for name, value in learner.model.state_dict().items():
        assert value.equal(old[name.replace(".attn.attention.", ".attn.")])
    choices = learner.choices.values()
    first = copy.deepcopy([choice.sets[0].state_dict() for choice in choices])
    learner.start_task(1, few.tasks[1])
    learn(learner, 1)
    for choice, before in zip(choices, first, strict=True):
        assert all(value.equal(before[name]) for name, value in choice.sets[0].state_dict().items())
        assert choice.sets[1].value.detach().any()
    assert {group["lr"] for group in learner.trainer.optimizer.param_groups} == {1e-2}


def experts(learner) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(layer.down.detach().clone(), layer.up.detach().clone()) for layer in learner.layers]


def test_cl_moe_leaves_a_blend_of_its_experts(few):
    learner, _ = few.start("cl-moe")
    new = experts(learner)
    learner.end()
    first = experts(learner)
    assert all(a.equal(b) for old, now in zip(new, first, strict=True) for a, b in zip(old, now, strict=True))
    learner.start_task(1, few.tasks[1])
    learn(learner, 1)
    new, shares = experts(learner), [layer.share() for layer in learner.layers]
    learner.end()
    for number, found in enumerate(experts(learner)):
        keep = expert_momentum(torch.stack([learner.shares[0][number], shares[number]]))
        for old, now, left in zip(first[number], new[number], found, strict=True):
            for expert, share in enumerate(keep):
                torch.testing.assert_close(left[expert], share * old[expert] + (1 - share) * now[expert])
            assert not left.equal(now)
    assert learner.before == [], "what was before the task is not kept after it"


def test_cl_moe_takes_rows_to_be_of_the_nearest_task_and_that_matters(few):
    learner = few.through("cl-moe", steps=20)
    for number, task in enumerate(few.tasks):
        assert (learner.choose("image", task.image_ND)[0] == number).all()
        means = [other.text_TD.mean(0) for other in few.tasks]
        nearest = [int(np.argmin([np.square(text - mean).sum() for mean in means])) for text in task.text_TD]
        assert learner.choose("text", task.text_TD)[0].tolist() == nearest
    own = learner.find_keys(few.tasks[0]).image_ND
    for centres in learner.centres.values():
        centres.reverse()
    assert abs(learner.find_keys(few.tasks[0]).image_ND - own).max() > 1e-5


def test_cl_moe_trains_experts_and_routers_alone_and_an_evaluation_leaves_nothing_behind(few):
    found, old = [], few.clip.model.state_dict()
    for is_asked in (False, True):
        learner, _ = few.start("cl-moe", stop=0)
        routers = [layer.router.detach().clone() for layer in learner.layers]
        learn(learner, 0, stop=2)
        if is_asked:
            learner.find_keys(few.tasks[1])
        found.append(learn(learner, 0, 2))
    assert found[0] == found[1]
    for name, value in learner.model.state_dict().items():
        plain = name.replace(".linear.", ".")
        assert plain not in old or value.equal(old[plain])
    assert any(not layer.router.equal(before) for layer, before in zip(learner.layers, routers, strict=True))
