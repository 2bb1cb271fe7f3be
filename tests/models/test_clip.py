"""Loading: what a model is, and what cannot be loaded is said in one line."""

from dataclasses import replace

import numpy as np
import open_clip
import pytest
import torch

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip
from tests.models.test_device import draw_pixels


def test_a_model_that_cannot_be_had_is_named_by_its_option():
    for model in ["ViT-Z-99", "nothing.json", "local-dir:/nowhere"]:
        for config in (ModelConfig(model, "random:0"), ScorerConfig(model, "random:0")):
            with pytest.raises(ValueError, match=f"^{config.said_model}: "):
                describe_scorer(config)


def test_random_weights_follow_from_the_seed_and_leave_the_generator_alone(tiny_scorer):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, same = (Clip(tiny_scorer).model.visual.conv1.weight for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    other = Clip(replace(tiny_scorer, weights="random:1")).model.visual.conv1.weight
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_a_pictures_embedding_has_the_same_bits_in_any_batch(tiny_scorer):
    for precision in ["fp32", "bf16"]:
        clip, pixels = Clip(replace(tiny_scorer, precision=precision)), draw_pixels(50)
        together = clip.embed_pixels(pixels)
        for size in (1, 7, 33):
            parts = torch.cat([clip.embed_pixels(pixels[i : i + size]) for i in range(0, 50, size)])
            assert torch.equal(parts, together), precision
        assert together.norm(dim=-1).sub(1).abs().max() < 1e-5, precision
        pixels.flags.writeable = False
        row_B = np.random.default_rng(0).permutation(50)[:21]
        assert torch.equal(clip.embed_pixels(pixels, row_B), together[row_B])


def test_pixels_are_scaled_to_the_bits_of_open_clips_expression(tiny_scorer, monkeypatch):
    clip, seen = Clip(tiny_scorer, device="cpu"), []
    encode = clip.model.encode_image
    monkeypatch.setattr(clip.model, "encode_image", lambda x: seen.append(x) or encode(x), raising=False)
    cfg, spec = open_clip.get_model_preprocess_cfg(clip.model), describe_scorer(tiny_scorer)
    assert (spec.image.mean, spec.image.std) == (tuple(cfg["mean"]), tuple(cfg["std"]))
    assert (spec.image.height, spec.image.width, spec.context_length, spec.embedding_dim) == (32, 32, 77, 32)
    mean_3, std_3 = (torch.tensor(cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    pixels_BHWC = draw_pixels(5)
    pixels_BHWC[0].reshape(-1)[:256] = np.arange(256)
    before = pixels_BHWC.copy()
    clip.embed_pixels(pixels_BHWC)
    expected = torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2).float().div(255).sub(mean_3).div(std_3)
    assert torch.equal(seen[-1][:5], expected) and (pixels_BHWC == before).all()
