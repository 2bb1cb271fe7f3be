"""C-CLIP: what a task leaves by its share, and its loss."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raycomp.continual.methods.c_clip import mix_weights
from raycomp.core.losses import consolidate
from raycomp.models.adapters import merge_adapters
from tests.continual.tuning import Few, learn, on_disk, rows, same


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Few(tmp_path_factory.mktemp("model"))


def test_a_share_of_nothing_leaves_the_model_as_it_was(few):
    learner = few.make("c-clip", merge=0.0)
    learner.start_task(0, few.tasks[0])
    learn(learner, few, 0)
    assert same(learner.find_keys(few.tasks[0]), few.frozen(0))
    learner.end()
    assert same(learner.find_keys(few.tasks[0]), few.frozen(0))
    first = few.clip.model.state_dict()
    assert all(value.equal(first[name]) for name, value in learner.model.state_dict().items())


def test_the_whole_share_is_the_model_with_its_adapters(few):
    learner = few.make("c-clip", merge=1.0)
    learner.start_task(0, few.tasks[0])
    learn(learner, few, 0)
    merged = merge_adapters(learner.task["adapters"]).eval()
    learner.end()
    keys = learner.find_keys(few.tasks[1])
    np.testing.assert_allclose(keys.image_ND, learner.embed_images(merged, few.tasks[1].pixels), atol=1e-6)
    np.testing.assert_allclose(keys.text_TD, learner.embed_texts(merged, few.tasks[1].token_TL), atol=1e-6)


def test_half_a_share_lies_half_way_and_is_seen_before_the_end(few):
    learner = few.make("c-clip", merge=0.5)
    learner.start_task(0, few.tasks[0])
    learn(learner, few, 0)
    old, whole = few.clip.model.state_dict(), merge_adapters(learner.task["adapters"]).state_dict()
    seen = learner.find_keys(few.tasks[0])
    learner.end()
    assert same(learner.find_keys(few.tasks[0]), seen)
    moved = 0
    for name, value in learner.model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, (old[name] + whole[name]) / 2)
            moved += not value.equal(old[name])
    # The matrices of queries, keys and values of one block of each tower.
    assert moved == 2 or (moved == 3 and not torch.equal(learner.model.logit_scale, old["logit_scale"]))


def test_its_loss_is_of_the_model_of_before_the_task(few):
    learner = few.make("c-clip")
    learner.start_task(0, few.tasks[0])
    learn(learner, few, 0)
    learner.end()
    learner.start_task(1, few.tasks[1])
    reported = learn(learner, few, 1, stop=1)
    model, task, row_B = learner.model, few.tasks[1], rows(1, 0)
    pixel = torch.from_numpy(task.pixels[row_B]) / 255
    image = ((pixel - few.clip.mean_3.flatten()) / few.clip.std_3.flatten()).permute(0, 3, 1, 2)
    token = torch.from_numpy(task.token_TL[task.own_N[row_B]]).long()
    with torch.no_grad():
        old = model.encode_image(image), model.encode_text(token)
    assert reported[0]["consolidation"] == pytest.approx(consolidate(old, old).item(), abs=1e-4)
    assert F.normalize(old[0], dim=-1).std() > 0
    assert learner.task["projector"].weight.detach().diagonal().mean() == pytest.approx(1, abs=0.05)


def test_adapters_of_each_task_start_anew(few):
    """B at 0, and A drawn anew."""
    learner = few.make("c-clip")
    learner.start_task(0, few.tasks[0])
    first = on_disk(learner.state())["learned"]["task"]
    learner.end()
    learner.start_task(1, few.tasks[1])
    second = on_disk(learner.state())["learned"]["task"]
    assert set(first) == set(second)
    drawn = [name for name in first if not first[name].equal(second[name])]
    assert drawn and all("lora_A" in name for name in drawn)
    assert all(not value.any() for name, value in first.items() if "lora_B" in name)


def test_mix_goes_from_old_to_new_and_leaves_counts():
    old = {"a": torch.tensor([1.0, 3.0]), "n": torch.tensor(3)}
    new = {"a": torch.tensor([2.0, 0.1]), "n": torch.tensor(5)}
    assert mix_weights(old, new, 0)["a"].equal(old["a"])
    assert mix_weights(old, new, 0.5)["a"].tolist() == pytest.approx([1.5, 1.55])
    assert mix_weights(old, new, 1)["n"] == 3
