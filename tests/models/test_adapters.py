"""What is frozen and adapted; experts and prompts in the blocks of a tower."""

import copy
import itertools
import math

import pytest
import torch

from raycomp.models.adapters import (
    ExpertLinear,
    PromptChoice,
    Prompts,
    Routes,
    add_adapters,
    add_experts,
    add_prompts,
    find_blocks,
    freeze,
)
from raycomp.models.clip import load_start
from tests.training.fitting import ARCHITECTURE, run, start_trainer, write_model

VISION = {"image_size": 32, "layers": 3, "width": 32, "head_width": 16, "patch_size": 16}
TEXT = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 3}
RESNET = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 32, "head_width": 16}


@pytest.fixture(params=[False, True], ids=["CLIP", "CustomTextCLIP"])
def clip(request, tmp_path):
    model = write_model(tmp_path, vision_cfg=VISION, text_cfg=TEXT, custom_text=request.param)
    return load_start(model)


def frozen(clip) -> set[str]:
    return {name.removeprefix("text.") for name, p in clip.named_parameters() if not p.requires_grad}


def names(clip, tower: str) -> set[str]:
    every = {name.removeprefix("text.") for name, _ in clip.named_parameters()} - {"logit_scale"}
    return {name for name in every if name.startswith("visual.") == (tower == "image")}


def test_a_tower_is_frozen_but_for_its_last_groups(clip):
    for tower, projection, norm in [
        ("image", "visual.proj", "visual.ln_post."),
        ("text", "text_projection", "ln_final."),
    ]:
        for count in range(5):
            model = copy.deepcopy(clip)
            freeze(model, [f"{tower}:{count}" if count else tower])
            learned, last = names(model, tower) - frozen(model), [*range(3)][4 - count :]
            if not count:
                assert not learned
                continue
            found = {name.split("resblocks.")[1][0] for name in learned if "resblocks" in name}
            assert projection in learned and found == {*map(str, last)}, (tower, count)
            assert any(name.startswith(norm) for name in learned) == (count > 1)
            assert not any("token_embedding" in name or "conv1" in name for name in learned)
            assert not frozen(model) & names(model, "text" if tower == "image" else "image")


def test_what_makes_no_sense_is_said(clip, tmp_path):
    resnet, pooled = (
        load_start(write_model(tmp_path, vision_cfg=vision))
        for vision in (RESNET, {**VISION, "attentional_pool": True})
    )
    normed = {"text_cfg": {**ARCHITECTURE["text_cfg"], "qk_norm": True}, "custom_text": True}
    other = load_start(write_model(tmp_path, **normed))
    whole = "train.freeze='image:1': this tower can only be frozen whole"
    for call, said in [
        (lambda: freeze(clip, ["image", "text"]), r"train\.freeze=\('image', 'text'\): freezes all weights"),
        (lambda: freeze(clip, ["image:5"]), "train.freeze='image:5': freezes nothing; the image tower has"),
        (lambda: freeze(copy.deepcopy(resnet), ["image:1"]), whole),
        (lambda: freeze(copy.deepcopy(pooled), ["image:1"]), whole),
        (lambda: add_adapters(resnet, 4, 0), r"train\.lora_rank=4: the image tower has no attention"),
        (lambda: find_blocks(resnet, "method=diki"), "method=diki: the image tower of the model is not made"),
        (lambda: find_blocks(other, "method=diki"), "method=diki: the text tower of the model is not made"),
    ]:
        with pytest.raises(ValueError, match=f"^{said}"):
            call()
    for one in (resnet, pooled):
        freeze(one, ["image"])
        assert frozen(one) == names(one, "image")
    add_adapters(resnet, 4, seed=0)
    vision = {**VISION, "attentional_pool": True, "output_tokens": True}
    text = {**TEXT, "embed_cls": True, "output_tokens": True}
    captioning = {"multimodal_cfg": TEXT, "vision_cfg": vision, "text_cfg": text, "custom_text": True}
    with pytest.raises(ValueError, match=r"captioning models cannot be trained here"):
        load_start(write_model(tmp_path, **captioning))


def test_adapters_go_where_weights_are_trained_drawn_by_the_seed(clip):
    plain = {name: value.clone() for name, value in clip.state_dict().items()}
    freeze(clip, ["image:2"])
    same, other = copy.deepcopy(clip), copy.deepcopy(clip)
    for model, seed in ((clip, 0), (same, 0), (other, 1)):
        add_adapters(model, 4, seed)
    learned = {name for name, p in clip.named_parameters() if p.requires_grad}
    assert learned - {"logit_scale"} == {name for name in learned if ".lora_" in name}
    assert len(learned) == 1 + 2 * (1 + 3)
    assert all("resblocks.2" in name for name in learned if name.startswith("visual."))
    state = clip.state_dict()
    found = {name.replace(".base_layer", ""): v for name, v in state.items() if "lora" not in name}
    assert found.keys() == plain.keys() and all(torch.equal(v, plain[name]) for name, v in found.items())
    for name in (name for name in state if "lora_A" in name):
        assert torch.equal(state[name], same.state_dict()[name])
        assert not torch.equal(state[name], other.state_dict()[name])


@torch.no_grad()
def test_each_row_has_the_residual_of_its_own_choice_or_of_the_last_set(block):
    plain, attention, sets = copy.deepcopy(block).train(), block.attn, make_prompts(2)
    choice = PromptChoice(sets, torch.tensor([1, 0, 1]), torch.tensor([1.0, 0.5, 0.0]))
    add_prompts([block], 1, choice)
    x_RNW = draw(ROWS, PLACES, 32)
    for shares in [((1, 1.0), (0, 0.5), (1, 0.0)), ((1, 1.0),) * ROWS]:
        found = block.train().attention(x_RNW) - plain.attention(x_RNW)
        for row, (number, share) in enumerate(shares):
            wanted = share * slow(attention, x_RNW[row], sets[number]) @ attention.out_proj.weight.T
            torch.testing.assert_close(found[row], wanted, atol=1e-5, rtol=1e-4)
        choice.set_R = choice.share_R = None


def test_frozen_weights_and_statistics_stay_bit_for_bit(tmp_path):
    model = write_model(tmp_path, vision_cfg=RESNET)
    start = load_start(model).state_dict()
    for freeze_it in (("image",), ()):
        trainer = start_trainer(model, "clip", num_steps=2, freeze=freeze_it)
        run(trainer, until=2)
        state = trainer.clip.state_dict()
        moved = {name for name, value in state.items() if not torch.equal(value, start[name])}
        assert moved and any(name.startswith("visual.") for name in moved) == (not freeze_it)
        assert any("running_mean" in name for name in moved) == (not freeze_it)
    with pytest.raises(ValueError, match=r"train\.accumulate=2: must be 1 for a model with batch norm"):
        start_trainer(model, "clip", accumulate=2)


ROWS, PLACES, WIDTH, OUT, EXPERTS, RANK, CONTEXTS = 3, 4, 5, 4, 3, 2, 2


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


@pytest.mark.parametrize("tasks", [None, [1, 0, 1]])
@torch.no_grad()
def test_positions_and_tasks_weigh_the_experts(tasks):
    layer, x_RNI = make(Routes(None if tasks is None else torch.tensor(tasks))), draw(ROWS, PLACES, WIDTH)
    layer.task_GE = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])
    found = layer(x_RNI)
    for row, place in itertools.product(range(ROWS), range(PLACES)):
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


@pytest.fixture
def block(tmp_path):
    return find_blocks(load_start(write_model(tmp_path)), "method=diki")["image"][0]


def make_prompts(num: int) -> list[Prompts]:
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
    for place, head in itertools.product(range(len(x_NW)), range(num)):
        part = slice(head * size, (head + 1) * size)
        logits = [float(query_NW[place, part] @ key[part]) / math.sqrt(size) for key in prompts.key[0]]
        weights = [math.exp(logit) for logit in logits]
        for weight, value in zip(weights, prompts.value[0], strict=True):
            found[place, part] += weight / sum(weights) * value[part]
    return found


def test_new_experts_and_prompts_change_no_bit_sit_in_their_blocks_and_learn(tmp_path):
    """Of prompts, values of 0 hide the keys, for one step."""
    plain = load_start(write_model(tmp_path, vision_cfg=VISION)).requires_grad_(False).eval()
    moe, diki, image = copy.deepcopy(plain), copy.deepcopy(plain), draw(ROWS, 3, 32, 32)
    blocks, generator = find_blocks(moe, "method=cl-moe")["image"], torch.Generator().manual_seed(0)
    layers = list(add_experts(blocks, EXPERTS, RANK, Routes(), generator))
    prompts, blocks = Prompts(2, CONTEXTS, 32, generator), find_blocks(diki, "method=diki")["image"]
    third = blocks[2].attn
    add_prompts(blocks, 2, PromptChoice([prompts]))
    assert len(layers) == 6 and blocks[2].attn is third
    for clip in (moe, diki):
        with torch.inference_mode():
            assert clip.encode_image(image).equal(plain.encode_image(image))
        clip.train().encode_image(image).square().sum().backward()
    assert all(layer.up.grad is not None and layer.up.grad.abs().sum() > 0 for layer in layers)
    trained = {name.rpartition(".")[2] for name, p in moe.named_parameters() if p.requires_grad}
    assert trained == {"down", "up", "router"}
    assert prompts.value.grad.flatten(1).abs().sum(1).min() > 0 and not prompts.key.grad.any()
    block = find_blocks(plain, "method=diki")["image"][0]
    x_RNW, mask = draw(ROWS, PLACES, 32), torch.full((PLACES, PLACES), -torch.inf).triu(1)
    for sets in ([], [Prompts(1, CONTEXTS, 32, generator)]):
        own = copy.deepcopy(block)
        add_prompts([own], 1, PromptChoice(sets))
        with torch.inference_mode():
            assert own(x_RNW, attn_mask=mask).equal(block(x_RNW, attn_mask=mask))
