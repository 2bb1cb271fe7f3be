"""Files next to weights state the whole model, and weights of other kinds are named in one line."""

import argparse
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from open_clip import factory
from safetensors.torch import save_file

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.curation.config import CurateConfig
from raycomp.data.inputs import with_absolute_paths
from raycomp.evaluation.config import EvaluateConfig
from raycomp.models.architecture import describe_scorer, fingerprint_scorer, load_tokens
from raycomp.models.clip import Clip, load_start
from raycomp.models.stated import HUB_CONFIG, resolve
from tests.models.test_device import draw_pixels

HOW = {"mean": [0.5] * 3, "std": [0.4] * 3, "interpolation": "bilinear", "resize_mode": "squash"}
SIZES = {"force_image_size": 96, "force_context_length": 24}


def build(plain: dict, monkeypatch: pytest.MonkeyPatch, **options: int) -> torch.nn.Module:
    """Return a new model of open_clip's for a config."""
    monkeypatch.setitem(factory._MODEL_CONFIGS, "drawn", plain)
    torch.manual_seed(1)
    return open_clip.create_model("drawn", **options)


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.contiguous() for name, value in model.state_dict().items()}


def embed(config: ModelConfig | ScorerConfig) -> tuple:
    """Return what is known of a model, and what it makes of pixels and a text."""
    spec, clip = describe_scorer(config), Clip(config)
    image_BD, text_BN = clip.embed_pixels(draw_pixels(2)), load_tokens(config)(["a dog in the snow"])
    return spec, image_BD.numpy().tobytes(), clip.text.embed(text_BN)[0].numpy().tobytes()


@pytest.fixture
def plain(tiny_scorer: ScorerConfig) -> dict:
    content = json.loads(Path(tiny_scorer.model).read_text())
    content["text_cfg"]["context_length"] = 32
    return content


@pytest.fixture
def hub(plain: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as open_clip publishes models."""
    (tmp_path / "hub").mkdir()
    save_file(state_of(build(plain, monkeypatch)), tmp_path / "hub" / "open_clip_model.safetensors")
    content = {"model_cfg": plain, "preprocess_cfg": HOW | {"size": 32, "mode": "RGB"}}
    (tmp_path / "hub" / HUB_CONFIG).write_text(json.dumps(content))
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    return tmp_path / "hub"


def test_weights_in_a_published_folder_are_the_folders_model_whatever_names_them(hub, tmp_path):
    weights, own = str(hub / "open_clip_model.safetensors"), str(tmp_path / "plain.json")
    (tmp_path / "link.safetensors").symlink_to(weights)
    spec, *made = embed(ModelConfig(f"local-dir:{hub}"))
    assert spec.image.mean == (0.5,) * 3 and spec.image.resize_mode == "squash" and spec.context_length == 32
    link, stated = str(tmp_path / "link.safetensors"), str(hub / HUB_CONFIG)
    for one in (
        *(
            kind(name, file)
            for kind in (ModelConfig, ScorerConfig)
            for name in (own, stated)
            for file in (weights, link)
        ),
        with_absolute_paths(EvaluateConfig(model=ModelConfig(weights=weights))).model,
        with_absolute_paths(EvaluateConfig(model=ModelConfig(weights=str(hub)))).model,
        with_absolute_paths(CurateConfig(scorer=ScorerConfig(weights=weights))).scorer,
    ):
        assert embed(one) == (spec, *made), one
        assert "squash" in fingerprint_scorer(one)
    started = load_start(ModelConfig(own, weights)).visual.preprocess_cfg
    assert {name: started[name] for name in HOW} == HOW, "a training prepares images alike"
    with pytest.raises(
        ValueError, match=r"has weights of its own, .*; set model\.name=.*hub/open_clip_config"
    ):
        describe_scorer(ModelConfig(f"local-dir:{hub}", "laion2b_s34b_b79k"))
    (alone := tmp_path / "alone.pt").touch()
    for name, mean in (("ViT-B-16-SigLIP", [0.5] * 3), ("ViT-L-14", None), ("ViT-B-32", None)):
        how = resolve(ModelConfig(name, str(alone))).preprocessing
        assert (how and [*how["mean"]]) == mean, "as all of open_clip's own weights of this name"
    (hub / "open_clip_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"local-dir:.*: holds no weights, such as open_clip_model"):
        describe_scorer(ModelConfig(f"local-dir:{hub}"))


def test_a_companion_that_cannot_be_understood_is_no_silent_default(hub, tmp_path):
    model = ModelConfig(str(tmp_path / "plain.json"), str(hub / "open_clip_model.safetensors"))
    content = json.loads((hub / HUB_CONFIG).read_text())
    for change, said in [
        (
            {"preprocess_cfg": {"image_mean": [0.5] * 3}},
            "preprocess_cfg has 'image_mean', must be an object of mean",
        ),
        ({"preprocess_cfg": 5}, "preprocess_cfg has 5"),
        ({"preprocess_cfg": {"std": [0.5, 0, 0.5]}}, r"std=\(0\.5, 0, 0\.5\): must be three numbers above 0"),
        ({"preprocess_cfg": {"mean": "abc"}}, "mean=.*: must be three numbers"),
        ({"preprocess_cfg": {"interpolation": "nearest"}}, "interpolation='nearest': must be one of bicubic"),
        ({"model_cfg": content["model_cfg"] | {"unheard": 1}}, "unheard"),
        ({"model_cfg": None}, "must be a json object"),
    ]:
        (hub / HUB_CONFIG).write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=said):
            describe_scorer(model)
    (hub / HUB_CONFIG).write_text("{")
    with pytest.raises(ValueError, match=r"open_clip_config\.json: cannot be read as JSON"):
        describe_scorer(model)


def test_options_of_open_clips_training_are_the_models(plain, tmp_path, monkeypatch):
    own, run = tmp_path / "mine.json", tmp_path / "run"
    own.write_text(json.dumps(plain))
    (run / "checkpoints").mkdir(parents=True)
    trained = build(plain, monkeypatch, **SIZES, init_logit_bias=-10)
    scalars = {"lr": np.float64(0.1), "step": np.int64(3), "on": np.bool_(True), "half": np.float16(1)}
    content = {"name": "run", "state_dict": trained.state_dict(), "optimizer": {"param_groups": [scalars]}}
    old = run / "checkpoints" / "epoch_1.pt"
    torch.save(content, run / "new.pt")
    with zipfile.ZipFile(run / "new.pt") as new, zipfile.ZipFile(old, "w") as written:
        for name in new.namelist():  # as numpy before version 2 named its module
            written.writestr(
                name, new.read(name).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            )
    told = {
        "model": "mine",
        "name": "run",
        "siglip": True,
        "image_std": [0.4] * 3,
        "image_mean": None,
        **SIZES,
    }
    lines = "".join(f"{name}: {value}\n" for name, value in told.items())
    (run / "params.txt").write_text(lines)
    model = ModelConfig(str(own), str(old))
    spec, clip = describe_scorer(model), Clip(model).model
    assert (spec.image.height, spec.context_length, spec.image.std) == (96, 24, (0.4,) * 3)
    assert all(torch.equal(a, b) for a, b in zip(clip.parameters(), trained.parameters(), strict=True))
    assert load_tokens(model)(["a"]).shape == (1, 24)
    (run / "params.txt").write_text(lines.replace("name: run", "name: another"))
    with pytest.raises(
        ValueError, match=r"epoch_1\.pt': is of the run 'run', params\.txt above it of 'another'"
    ):
        describe_scorer(model)


def test_weights_of_another_kind_are_named_and_wrapped_ones_are_read(hub, tmp_path):
    """Bytes are written as they are, all else as the name says."""
    state = state_of(Clip(ModelConfig(str(tmp_path / "plain.json"), "random:1")).model)
    bytes_of = (hub / "open_clip_model.safetensors").read_bytes()
    torch.save(state, tmp_path / "whole")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script")
    cut, script = (tmp_path / "whole").read_bytes()[:1000], (tmp_path / "script").read_bytes()
    theirs = {"logit_scale": state["logit_scale"], "vision_model.x": torch.zeros(1)}
    half = {key: value.bfloat16() if value.is_floating_point() else value for key, value in state.items()}
    biased = state | {"logit_bias": torch.tensor(-10.0)}
    longer = state | {"positional_embedding": torch.zeros(77, 64)}
    larger = state | {"visual.positional_embedding": torch.zeros(37, 64)}
    wrapped, compiled = (
        {f"{prefix}.{key}": value for key, value in state.items()} for prefix in ("module._orig_mod", "model")
    )
    for name, content, said in [
        ("lfs.pt", b"version https://git-lfs.github.com/spec/v1\n", "is a pointer"),
        ("page.bin", b"\n<!DOCTYPE html><html>", "is a web page, not weights"),
        ("index.json", b'{"weight_map": {}}', "is a text of JSON, not weights"),
        ("cut.pt", cut, "is cut off or damaged; copy it again"),
        ("cut.safetensors", bytes_of[: len(bytes_of) // 2], "is cut off or damaged; copy it again"),
        ("script.pt", script, "is a TorchScript archive; give a tag of open_clip, or its weights alone"),
        ("module.pt", torch.nn.Linear(2, 2), r"holds torch\..*Linear, which is code; save"),
        ("space.pt", {"state_dict": state, "args": argparse.Namespace()}, "holds argparse.Namespace"),
        ("optimizer.pt", {"state": {}, "param_groups": []}, "holds no state dict"),
        ("theirs.safetensors", theirs, "has the names of Hugging Face's transformers"),
        ("bias.pt", biased, "has a logit_bias, .* set init_logit_bias=-10 in the model's"),
        ("text.pt", longer, "has 77 positions .* set context_length=77 in the"),
        ("grid.pt", larger, "has 37 positions in visual.* set image_size=96 in the"),
        ("safe.pt", bytes_of, "has the name of another format"),
        ("wrapped.pt", {"model": wrapped}, None),
        ("compiled.pt", {"state_dict": compiled}, None),
        ("half.safetensors", half, None),
    ]:
        place = tmp_path / name
        if isinstance(content, bytes):
            place.write_bytes(content)
        else:
            (save_file if place.suffix == ".safetensors" else torch.save)(content, place)
        model = replace(ModelConfig(str(tmp_path / "plain.json")), weights=str(place))
        if said is None:
            assert describe_scorer(model).context_length == 32, name
            continue
        with pytest.raises(ValueError, match=rf"^model\.weights='{place}': {said}") as error:
            describe_scorer(model)
        assert "\n" not in str(error.value), name
