"""Prompts against a slow attention, and that they change nothing at first."""

import copy
import math

import pytest
import torch

from raycomp.models.adapters import PromptChoice, Prompts, add_prompts, find_blocks
from raycomp.models.clip import load_start
from tests.training.fitting import write_model

ROWS, PLACES, CONTEXTS = 3, 5, 2


@pytest.fixture
def block(tmp_path):
    return find_blocks(load_start(write_model(tmp_path)), "method=diki")["image"][0]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def make(num: int) -> list[Prompts]:
    generator = torch.Generator().manual_seed(0)
    sets = [Prompts(1, CONTEXTS, 32, generator) for _ in range(num)]
    for one in sets:
        torch.nn.init.normal_(one.value, generator=generator)
    return sets


def slow(attention, x_NW, prompts: Prompts) -> torch.Tensor:
    """Return the residual of a row, before the output projection, head by head and place by place."""
    width, num = 32, attention.num_heads
    query_NW = x_NW @ attention.in_proj_weight[:width].T + attention.in_proj_bias[:width]
    size, found = width // num, torch.zeros(len(x_NW), width)
    for place in range(len(x_NW)):
        for head in range(num):
            part = slice(head * size, (head + 1) * size)
            logits = [float(query_NW[place, part] @ key[part]) / math.sqrt(size) for key in prompts.key[0]]
            weights = [math.exp(logit) for logit in logits]
            for weight, value in zip(weights, prompts.value[0], strict=True):
                found[place, part] += weight / sum(weights) * value[part]
    return found


@torch.no_grad()
def test_each_row_has_the_residual_of_its_own_choice(block):
    plain, attention, sets = copy.deepcopy(block).train(), block.attn, make(2)
    choice = PromptChoice(sets, torch.tensor([1, 0, 1]), torch.tensor([1.0, 0.5, 0.0]))
    add_prompts([block], 1, choice)
    x_RNW = draw(ROWS, PLACES, 32)
    found = block.train().attention(x_RNW) - plain.attention(x_RNW)
    for row, (number, share) in enumerate(((1, 1.0), (0, 0.5), (1, 0.0))):
        wanted = share * slow(attention, x_RNW[row], sets[number]) @ attention.out_proj.weight.T
        torch.testing.assert_close(found[row], wanted, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_without_a_choice_all_rows_take_the_last_set_in_full(block):
    choice, x_RNW = PromptChoice(make(2)), draw(ROWS, PLACES, 32)
    add_prompts([block], 1, choice)
    found = block(x_RNW)
    choice.set_R, choice.share_R = torch.ones(ROWS, dtype=torch.long), torch.ones(ROWS)
    torch.testing.assert_close(found, block(x_RNW))


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("num", [0, 1])
def test_new_prompts_change_no_bit(block, num, has_mask):
    plain, x_RNW = copy.deepcopy(block).eval(), draw(ROWS, PLACES, 32)
    generator = torch.Generator().manual_seed(0)
    choice = PromptChoice([Prompts(1, CONTEXTS, 32, generator) for _ in range(num)])
    add_prompts([block.eval()], 1, choice)
    mask = torch.full((PLACES, PLACES), -torch.inf).triu(1) if has_mask else None
    with torch.inference_mode():
        assert block(x_RNW, attn_mask=mask).equal(plain(x_RNW, attn_mask=mask))


def test_prompts_are_of_the_first_blocks_and_have_gradients(tmp_path):
    vision = {"image_size": 32, "layers": 3, "width": 32, "head_width": 16, "patch_size": 16}
    clip = load_start(write_model(tmp_path, vision_cfg=vision)).requires_grad_(False)
    prompts = Prompts(2, CONTEXTS, 32, torch.Generator().manual_seed(0))
    blocks = find_blocks(clip, "method=diki")["image"]
    third = blocks[2].attn
    add_prompts(blocks, 2, PromptChoice([prompts]))
    assert blocks[2].attn is third
    clip.train().encode_image(draw(ROWS, 3, 32, 32)).square().sum().backward()
    assert prompts.value.grad is not None and prompts.value.grad.flatten(1).abs().sum(1).min() > 0
    assert not prompts.key.grad.any(), "values of 0 hide the keys, for one step"
