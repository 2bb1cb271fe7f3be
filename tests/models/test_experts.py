"""Experts against a slow loop, and that they change nothing at first."""

import copy

import pytest
import torch

from raycomp.models.adapters import ExpertLinear, Routes, add_experts, find_blocks
from raycomp.models.clip import load_start
from tests.training.fitting import write_model

ROWS, PLACES, WIDTH, OUT, EXPERTS, RANK = 2, 3, 5, 4, 3, 2


def make(routes: Routes) -> ExpertLinear:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = ExpertLinear(torch.nn.Linear(WIDTH, OUT), EXPERTS, RANK, routes, generator)
    torch.nn.init.normal_(layer.up, generator=generator)
    layer.router.data *= 5
    return layer.eval()


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_positions_and_tasks_weigh_the_experts():
    for tasks in [None, [1, 0]]:
        layer, x_RNI = make(Routes(None if tasks is None else torch.tensor(tasks))), draw(ROWS, PLACES, WIDTH)
        layer.task_GE = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])
        found = layer(x_RNI)
        for row in range(ROWS):
            for place in range(PLACES):
                x_I = x_RNI[row, place]
                weights = torch.softmax(layer.router @ x_I, 0)
                if tasks is not None:
                    weights = (weights + layer.task_GE[tasks[row]]) / 2
                wanted = layer.linear(x_I)
                for weight, down, up in zip(weights, layer.down, layer.up, strict=True):
                    wanted = wanted + 2 * weight * (up @ (down @ x_I))
                torch.testing.assert_close(found[row, place], wanted)


def test_training_counts_the_best_two_of_every_position():
    layer, x_RNI = make(Routes()), draw(ROWS, PLACES, WIDTH)
    layer(x_RNI)
    with torch.no_grad():
        layer.train()(x_RNI)
    assert not layer.take_count().any() and not layer.count_E.any()
    assert layer.share().tolist() == pytest.approx([1 / 3] * 3)
    layer(x_RNI)
    layer.count_E += layer.take_count()
    wanted = [0] * EXPERTS
    for x_I in x_RNI.flatten(0, 1):
        logits = (layer.router @ x_I).tolist()
        for expert in sorted(range(EXPERTS), key=lambda e: -logits[e])[:2]:
            wanted[expert] += 1
    assert not layer.take_count().any()
    assert layer.count_E.tolist() == wanted and len(set(wanted)) > 1
    assert layer.share().tolist() == pytest.approx([count / sum(wanted) for count in wanted])


def test_new_experts_change_no_bit_and_sit_in_every_block(tmp_path):
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16}
    clip = load_start(write_model(tmp_path, vision_cfg=vision)).requires_grad_(False).eval()
    plain, image = copy.deepcopy(clip), draw(ROWS, 3, 32, 32)
    blocks = find_blocks(clip, "method=cl-moe")["image"]
    layers = list(add_experts(blocks, EXPERTS, RANK, Routes(), torch.Generator().manual_seed(0)))
    assert len(layers) == 4
    with torch.inference_mode():
        assert clip.encode_image(image).equal(plain.encode_image(image))
    clip.train().encode_image(image).square().sum().backward()
    assert all(layer.up.grad is not None and layer.up.grad.abs().sum() > 0 for layer in layers)
    trained = {name.rpartition(".")[2] for name, p in clip.named_parameters() if p.requires_grad}
    assert trained == {"down", "up", "router"}
