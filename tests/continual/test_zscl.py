"""ZSCL: what it is without its parts, and what each of them does."""

import copy

import pytest
import torch
import torch.nn.functional as F

from raycomp.continual.loop import make_tuner
from raycomp.core.losses import distil
from tests.continual.tuning import CONFIG, STEPS, Few, learn, rows, same


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Few(tmp_path_factory.mktemp("model"))


def weights(learner) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in learner.model.named_parameters()}


def test_without_its_parts_it_is_finetuning(few):
    found = []
    for name, options in (("finetune", {}), ("zscl", {"distil": 0.0, "l2": 0.0, "ensemble": STEPS + 1})):
        learner = few.make(name, **options)
        learner.start_task(0, few.tasks[0])
        found.append(learn(learner, few, 0))
        learner.end()
        found.append(learner.find_keys(few.tasks[1]))
    assert found[0] == found[2]
    assert same(found[1], found[3])


def test_a_task_leaves_the_mean_of_the_start_and_of_every_second_step(few):
    learner = few.make("zscl", ensemble=2)
    learner.start_task(0, few.tasks[0])
    seen = [weights(learner)]
    for step in range(5):
        learner.step(step, rows(0, step))
        seen.append(weights(learner))
    learner.end()
    for name, value in weights(learner).items():
        mean = torch.stack([seen[i][name] for i in (0, 2, 4)]).mean(0)
        torch.testing.assert_close(value, mean, atol=1e-6, rtol=0)
    assert not all(value.equal(seen[5][name]) for name, value in weights(learner).items())


def test_its_parts_are_what_they_say(few):
    """After some steps, with more reference images and texts than none: all of them are drawn."""
    learner = few.make("zscl", l2=0.5, distil=2.0, batch_size=12)
    first = copy.deepcopy(learner.model)
    learner.start_task(0, few.tasks[0])
    start = weights(learner)
    reported = learn(learner, few, 0)
    assert reported[0]["images"] == pytest.approx(0, abs=1e-5)
    assert reported[0]["texts"] == pytest.approx(0, abs=1e-5)
    assert reported[0]["l2"] == 0
    far = sum((value - start[name]).square().sum() for name, value in weights(learner).items())
    pixel = torch.from_numpy(learner.reference.pixels[:]) / 255
    image = ((pixel - few.clip.mean_3.flatten()) / few.clip.std_3.flatten()).permute(0, 3, 1, 2)
    token = torch.from_numpy(learner.reference.token_TL).long()
    with torch.no_grad():
        text = F.normalize(first.encode_text(token), dim=-1)
        now, then = (F.normalize(m.encode_image(image), dim=-1) @ text.T for m in (learner.model, first))
    scale = first.logit_scale.exp()
    found = learner.step(STEPS, rows(0, 0))
    assert found["l2"] == pytest.approx(0.5 * far.item(), rel=1e-4)
    assert found["images"] == pytest.approx(2 * distil(scale * now, scale * then).item(), rel=1e-3)
    assert found["texts"] == pytest.approx(2 * distil(scale * now.T, scale * then.T).item(), rel=1e-3)


def test_down_the_gradient_of_what_it_keeps_lies_less_loss(few):
    learner = few.make("zscl", distil=100.0, l2=10.0)
    learner.start_task(0, few.tasks[0])
    learn(learner, few, 0)
    kept = []
    for _ in range(2):
        batch = learner.batch(STEPS, rows(0, 0))
        parts = learner.losses(learner.towers(batch), batch)
        kept.append({name: part.item() for name, part in parts.items()})
        (parts["images"] + parts["texts"] + parts["l2"]).backward()
        with torch.no_grad():
            for value in learner.model.parameters():
                value -= 1e-6 * value.grad if value.grad is not None else 0
    assert all(kept[1][name] < kept[0][name] for name in ("images", "texts", "l2")), kept


def test_a_reference_is_needed_where_it_is_used(few):
    with pytest.raises(AssertionError, match="zscl needs a reference"):
        make_tuner("zscl", few.clip, few.spec, CONFIG, 0)
