"""What is frozen and what is adapted, weight by weight, and what cannot be."""

import pytest
import torch

from raycomp.models.adapters import add_adapters, freeze
from raycomp.models.clip import encode_text, load_start
from tests.training.fitting import draw_texts, run, start_trainer, write_model

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


@pytest.mark.parametrize("tower", ["image", "text"])
def test_a_whole_tower_is_frozen(clip, tower):
    freeze(clip, [tower])
    assert frozen(clip) == names(clip, tower)


@pytest.mark.parametrize("tower", ["image", "text"])
@pytest.mark.parametrize(("count", "last"), [(1, []), (2, [2]), (3, [1, 2]), (4, [0, 1, 2])])
def test_all_but_the_last_groups_are_frozen(clip, tower, count, last):
    freeze(clip, [f"{tower}:{count}"])
    learned = names(clip, tower) - frozen(clip)
    ends = {"image": ("visual.proj", "visual.ln_post."), "text": ("text_projection", "ln_final.")}[tower]
    assert ends[0] in learned
    assert {name.split("resblocks.")[1][0] for name in learned if "resblocks" in name} == {*map(str, last)}
    assert any(name.startswith(ends[1]) for name in learned) == (count > 1)
    assert not any("token_embedding" in name or "conv1" in name for name in learned)
    assert not frozen(clip) & names(clip, "text" if tower == "image" else "image")


def test_what_makes_no_sense_is_said(clip):
    for entries, said in [
        (("image", "text"), r"train\.freeze=\('image', 'text'\): freezes all weights"),
        (("image:5",), "train.freeze='image:5': freezes nothing; the image tower has fewer groups"),
        (("text:9",), "train.freeze='text:9': freezes nothing; the text tower has fewer groups"),
    ]:
        with pytest.raises(ValueError, match=said):
            freeze(clip, entries)


def test_a_tower_that_can_only_be_frozen_whole_says_so(tmp_path_factory):
    for vision in [RESNET, {**VISION, "attentional_pool": True}]:
        tmp_path = tmp_path_factory.mktemp("case")
        model = write_model(tmp_path, vision_cfg=vision)
        with pytest.raises(ValueError, match=r"train\.freeze='image:1': this tower can only be frozen whole"):
            freeze(load_start(model), ["image:1"])
        whole = load_start(model)
        freeze(whole, ["image"])
        assert frozen(whole) == names(whole, "image"), vision


def test_frozen_weights_and_statistics_stay_bit_for_bit(tmp_path):
    model = write_model(tmp_path, vision_cfg=RESNET)
    start = load_start(model).state_dict()
    trainer = start_trainer(model, "clip", num_steps=2, freeze=("image",))
    run(trainer, until=2)
    moved = {name for name, value in trainer.clip.state_dict().items() if not torch.equal(value, start[name])}
    assert moved and not any(name.startswith("visual.") for name in moved)
    trainer = start_trainer(model, "clip", num_steps=2)
    run(trainer, until=2)
    assert any(
        "running_mean" in n for n, v in trainer.clip.state_dict().items() if not torch.equal(v, start[n])
    )
    with pytest.raises(ValueError, match=r"train\.accumulate=2: must be 1 for a model with batch norm"):
        start_trainer(model, "clip", accumulate=2)


def test_adapters_go_where_weights_are_trained(clip):
    plain = {name: value.clone() for name, value in clip.state_dict().items()}
    freeze(clip, ["image:2"])
    add_adapters(clip, 4, seed=0)
    learned = {name for name, p in clip.named_parameters() if p.requires_grad}
    assert learned - {"logit_scale"} == {name for name in learned if ".lora_" in name}
    assert len(learned) == 1 + 2 * (1 + 3)
    assert all("resblocks.2" in name for name in learned if name.startswith("visual."))
    found = {
        name.replace(".base_layer", ""): v for name, v in clip.state_dict().items() if "lora" not in name
    }
    assert found.keys() == plain.keys() and all(torch.equal(v, plain[name]) for name, v in found.items())


def test_texts_are_cut_with_adapters_too(clip, monkeypatch):
    add_adapters(clip, 4, seed=0)
    token = draw_texts(torch.Generator().manual_seed(0), 5)
    torch.testing.assert_close(encode_text(clip, token), clip.encode_text(token))
    monkeypatch.setattr(clip, "encode_text", None)
    encode_text(clip, token)


def test_adapters_are_drawn_by_the_seed(tmp_path):
    def draw(seed: int) -> dict[str, torch.Tensor]:
        clip = load_start(write_model(tmp_path))
        add_adapters(clip, 2, seed)
        return {name: p for name, p in clip.named_parameters() if "lora_A" in name}

    one, same, other = draw(1), draw(1), draw(2)
    assert one and all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_a_tower_without_such_attention_says_so(tmp_path):
    clip = load_start(write_model(tmp_path, vision_cfg=RESNET))
    said = r"train\.lora_rank=4: the image tower has no attention .*; freeze it \(train\.freeze=image\)"
    with pytest.raises(ValueError, match=said):
        add_adapters(clip, 4, seed=0)
    freeze(clip, ["image"])
    add_adapters(clip, 4, seed=0)


def test_a_model_that_writes_captions_is_refused(tmp_path):
    decoder = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1}
    vision = {**VISION, "attentional_pool": True, "output_tokens": True}
    text = {**TEXT, "embed_cls": True, "output_tokens": True}
    model = write_model(tmp_path, multimodal_cfg=decoder, vision_cfg=vision, text_cfg=text, custom_text=True)
    with pytest.raises(ValueError, match=r"captioning models cannot be trained here"):
        load_start(model)
