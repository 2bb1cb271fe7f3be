"""Loading: what a model is, and what cannot be loaded is said in one line."""

import dataclasses
import hashlib
import json

import numpy as np
import open_clip
import pytest
import torch
from safetensors.torch import save_file

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.models.architecture import describe_scorer, fingerprint_scorer
from raycomp.models.clip import Clip


def test_a_scorer_is_described_as_open_clip_would_prepare_for_it():
    scorer = ScorerConfig(model="ViT-B-32", weights="random:0")
    spec = describe_scorer(scorer)
    cfg = open_clip.get_model_preprocess_cfg(open_clip.create_model("ViT-B-32"))
    assert (spec.image.height, spec.image.width) == (224, 224)
    assert (spec.image.mean, spec.image.std) == (tuple(cfg["mean"]), tuple(cfg["std"]))
    assert (spec.context_length, spec.embedding_dim) == (77, 512)


def test_a_model_that_cannot_be_had_is_named_by_its_option():
    for kind, name, spelled in [
        (ModelConfig, "name", r"model\.name"),
        (ScorerConfig, "model", r"scorer\.model"),
    ]:
        for model in ["ViT-Z-99", "nothing.json", "local-dir:/nowhere"]:
            with pytest.raises(ValueError, match=f"^{spelled}='{model}': "):
                describe_scorer(kind(**{name: model, "weights": "random:0"}))


def test_random_weights_follow_from_the_seed_and_leave_the_generator_alone(tiny_scorer):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, same = (Clip(tiny_scorer).model.visual.conv1.weight for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    other = Clip(dataclasses.replace(tiny_scorer, weights="random:1")).model.visual.conv1.weight
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_a_checkpoint_is_loaded_and_fingerprinted(tiny_scorer, tmp_path):
    model = Clip(dataclasses.replace(tiny_scorer, weights="random:3")).model
    path = tmp_path / "weights.safetensors"
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    scorer = dataclasses.replace(tiny_scorer, weights=str(path))
    loaded = Clip(scorer).model
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    assert hashlib.sha256(path.read_bytes()).hexdigest() in fingerprint_scorer(scorer)


def test_a_checkpoint_that_runs_code_is_refused(tiny_scorer, tmp_path):
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    torch.save({"state_dict": Payload()}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"scorer\.weights="):
        describe_scorer(dataclasses.replace(tiny_scorer, weights=str(tmp_path / "weights.pt")))
    assert not (tmp_path / "owned").exists()


def make_other(folder, save):
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 32, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 100, "width": 32, "heads": 2, "layers": 1}
    (folder / "other.json").write_text(json.dumps({"embed_dim": 8, "vision_cfg": vision, "text_cfg": text}))
    model = Clip(ModelConfig(str(folder / "other.json"), "random:0")).model
    save({name: value.contiguous() for name, value in model.state_dict().items()}, folder / "other.bin")
    return (folder / "other.bin").read_bytes()


CODE = b"cos\nsystem\n(S'touch owned'\ntR."
SPOILED = {
    "of another model": lambda data: data,
    "cut short": lambda data: data[: len(data) // 2],
    "cut in its header": lambda data: data[:5],
    "empty": lambda data: b"",
    "a text": lambda data: b"epoch 5: https://example.org/weights\n",
    "a pickle that runs code": lambda data: CODE,
    "zeros": lambda data: bytes(1000),
}


def test_what_are_no_weights_of_the_model_is_one_line(tiny_scorer, tmp_path_factory, monkeypatch):
    for kind in SPOILED:
        for suffix, save in [("safetensors", save_file), ("pt", torch.save)]:
            tmp_path = tmp_path_factory.mktemp("case")
            monkeypatch.chdir(tmp_path)
            path = tmp_path / f"weights.{suffix}"
            path.write_bytes(SPOILED[kind](make_other(tmp_path, save)))
            with pytest.raises(ValueError) as error:
                describe_scorer(ModelConfig(tiny_scorer.model, str(path)))
            said = str(error.value)
            assert type(error.value) is ValueError and said.startswith(
                f"model.weights='{path}' of tiny: cannot be"
            )
            assert "\n" not in said and len(said) < 500, (kind, suffix, save)
            assert not (tmp_path / "owned").exists(), (kind, suffix, save)


def test_a_pictures_embedding_has_the_same_bits_in_any_batch(tiny_scorer):
    for precision in ["fp32", "bf16"]:
        clip = Clip(dataclasses.replace(tiny_scorer, precision=precision))
        pixels = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
        together = clip.embed_pixels(pixels)
        for size in (1, 7, 33):
            parts = torch.cat([clip.embed_pixels(pixels[i : i + size]) for i in range(0, 50, size)])
            assert torch.equal(parts, together), precision
        assert together.norm(dim=-1).sub(1).abs().max() < 1e-5, precision


def test_pixels_are_scaled_to_the_bits_of_open_clips_expression(tiny_scorer, monkeypatch):
    clip, seen = Clip(tiny_scorer, device="cpu"), []
    encode = clip.model.encode_image
    monkeypatch.setattr(clip.model, "encode_image", lambda x: seen.append(x) or encode(x), raising=False)
    cfg = open_clip.get_model_preprocess_cfg(clip.model)
    mean_3, std_3 = (torch.tensor(cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    pixels_BHWC = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    pixels_BHWC[0].reshape(-1)[:256] = np.arange(256)
    before = pixels_BHWC.copy()
    clip.embed_pixels(pixels_BHWC)
    expected = torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2).float().div(255).sub(mean_3).div(std_3)
    assert torch.equal(seen[-1][:5], expected) and (pixels_BHWC == before).all()


def test_rows_of_pixels_are_embedded_in_the_order_asked_for(tiny_scorer):
    clip, rng = Clip(tiny_scorer), np.random.default_rng(0)
    pixels = rng.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
    pixels.flags.writeable = False
    row_B = rng.permutation(30)[:21]
    assert torch.equal(clip.embed_pixels(pixels, row_B), clip.embed_pixels(pixels[row_B]))
