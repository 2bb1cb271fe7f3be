"""Model configs, checkpoints, folders and tokenizers that cannot be used: one line, and nothing allocated."""

import json
import resource
from copy import deepcopy
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from open_clip.factory import get_model_config
from safetensors.torch import save_file

from raycomp.config import ScorerConfig
from raycomp.curation.config import CurateConfig
from raycomp.data.inputs import with_absolute_paths
from raycomp.models.architecture import (
    bound_parameters,
    describe_scorer,
    read_preprocessing,
)
from raycomp.models.clip import Clip

TINY = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
NOT_A_MODEL = [
    "5",
    "null",
    "[]",
    '"x"',
    "{}",
    "",
    "[" * 100_000,
    "\udcff",
    '{"embed_dim": 1, "vision_cfg": 5}',
]
CHANGES = [
    {"surprise": 1},
    {"embed_dim": "32"},
    {"embed_dim": None},
    {"embed_dim": [1, 2]},
    {"embed_dim": 0},
    {"embed_dim": True},
    {"embed_dim": 1.5},
    {"embed_dim": float("nan")},
    {"embed_dim": 10**9},
    {"vision_cfg": None},
    {"vision_cfg": [1]},
    *(
        {"vision_cfg": change}
        for change in (
            {"width": -64},
            {"width": 10**9},
            {"width": 999_999},
            {"layers": 10**9},
            {"layers": "1"},
            {"layers": [1, 2, 3, 10**9]},
            {"image_size": 10**9},
            {"image_size": -32},
            {"image_size": [32, "a"]},
            {"patch_size": 0},
            {"head_width": 1000},
            {"mlp_ratio": 1e300},
            {"colour": "red"},
        )
    ),
    *(
        {"text_cfg": change}
        for change in (
            {"vocab_size": 10**12},
            {"vocab_size": 100},
            {"context_length": 10**6},
            {"heads": 7},
            {"heads": 0},
            {"layers": -1},
            {"width": 1e30},
        )
    ),
]


def say_no(scorer: ScorerConfig, match: str) -> str:
    """Return the one line that refuses a scorer."""
    with pytest.raises(ValueError, match=match) as error:
        describe_scorer(scorer)
    line = str(error.value)
    assert "\n" not in line and len(line) < 1000
    return line


def test_a_json_that_is_no_model_is_one_line(tmp_path_factory):
    for text in NOT_A_MODEL:
        tmp_path = tmp_path_factory.mktemp("case")
        path = tmp_path / "bad.json"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        say_no(ScorerConfig(model=str(path), weights="random:0"), r"scorer\.model=")


def test_a_model_that_says_something_twice_is_refused(tmp_path):
    text = json.dumps(TINY)[:-1] + ', "embed_dim": 8}'
    (tmp_path / "bad.json").write_text(text)
    line = say_no(ScorerConfig(model=str(tmp_path / "bad.json"), weights="random:0"), r"scorer\.model=.*bad")
    assert line.endswith("cannot be read as JSON ('embed_dim' occurs twice in one object)")
    (tmp_path / "open_clip_config.json").write_text(f'{{"model_cfg": {text}}}')
    place = f"local-dir:{tmp_path}"
    say_no(ScorerConfig(model=place, weights="random:0"), "'embed_dim' occurs twice in one object")
    (tmp_path / "good.json").write_text(json.dumps(TINY))
    with pytest.raises(ValueError, match=r"_config\.json: cannot be read as JSON \('embed_dim' occurs"):
        read_preprocessing(str(tmp_path / "good.json"))


def most_kilobytes() -> int:
    """Return the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_model_that_cannot_be_built_is_one_line_and_takes_no_memory(tmp_path_factory):
    for change in CHANGES:
        tmp_path = tmp_path_factory.mktemp("case")
        content = deepcopy(TINY)
        for name, value in change.items():
            content[name] = (
                content[name] | value if name.endswith("_cfg") and isinstance(value, dict) else value
            )
        (tmp_path / "bad.json").write_text(json.dumps(content))
        (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": content}))
        before = most_kilobytes()
        for place in (str(tmp_path / "bad.json"), f"local-dir:{tmp_path}"):
            say_no(ScorerConfig(model=place, weights="random:0"), r"scorer\.model=")
        assert most_kilobytes() - before < 256 << 10, change


def save(value: object, path: Path) -> str:
    torch.save(value, path)
    return str(path)


def bad_weights(folder: Path, model: torch.nn.Module) -> dict[str, str]:
    """Write every kind of file that holds no weights of ``model``; return the paths by name."""
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    for name, value in {"nan": float("nan"), "inf": float("inf")}.items():
        spoilt = {**state, "logit_scale": torch.full_like(state["logit_scale"], value)}
        save(spoilt, folder / f"{name}.pt")
        save_file(spoilt, folder / f"{name}.safetensors")
    np.savez(folder / "weights.npz", a=np.zeros(3))
    np.save(folder / "weights.npy", np.zeros(3))
    (folder / "empty.pt").write_bytes(b"")
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "empty.npz").write_bytes(b"")
    whole = Path(save(state, folder / "whole.pt")).read_bytes()
    (folder / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (folder / "whole.pt").unlink()
    (folder / "folder.pt").mkdir()
    things = {"list": [1], "tensor": torch.zeros(2), "none": None, "dict": {}, "number": 5, "text": "x"}
    for name, value in {
        **things,
        "keys": {1: 2},
        "values": {"logit_scale": 5},
        "state": {"state_dict": 5},
    }.items():
        save(value, folder / f"{name}.pt")
    return {path.name: str(path) for path in folder.iterdir()}


def test_weights_of_every_wrong_kind_are_one_line(tiny_scorer, tmp_path):
    model = Clip(tiny_scorer).model
    for name, path in bad_weights(tmp_path, model).items():
        line = say_no(ScorerConfig(model=tiny_scorer.model, weights=path), r"scorer\.weights=")
        assert name in line


def test_a_seed_that_torch_cannot_take_is_one_line():
    for weights in ["random:18446744073709551616", "random:\u00b2", "random:" + "9" * 5000]:
        with pytest.raises(ValueError, match=r"scorer\.weights="):
            ScorerConfig(weights=weights)


def test_what_only_a_hub_has_is_named(monkeypatch):
    for model in ["ViT-B-16-SigLIP", "hf-hub:no/such-model"]:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        line = say_no(ScorerConfig(model=model, weights="random:0"), r"scorer\.model=")
        assert ("tokenizer could not be downloaded" in line) == ("SigLIP" in model), model


def test_a_text_tower_that_only_a_hub_has_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(TINY | {"text_cfg": {"hf_model_name": "no/such-model"}}))
    say_no(ScorerConfig(model=str(path), weights="random:0"), r"scorer\.model=")


@pytest.fixture
def local_dir(tiny_scorer, tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY}))
    write_weights(folder, 3)
    return folder


def write_weights(folder: Path, seed: int) -> None:
    config = ScorerConfig(model=f"local-dir:{folder}", weights=f"random:{seed}")
    state = Clip(config).model.state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "model.safetensors")


def test_a_folder_is_named_so_that_every_worker_finds_it(local_dir, monkeypatch):

    monkeypatch.chdir(local_dir.parent)
    config = with_absolute_paths(CurateConfig(scorer=ScorerConfig(model="local-dir:model")))
    assert config.scorer.model == f"local-dir:{local_dir}"


def test_a_bound_of_plain_models_is_above_what_open_clip_builds():
    for name in (
        "ViT-B-32",
        "ViT-B-16-quickgelu",
        "ViT-B-16-SigLIP",
        "ViT-M-16-alt",
        "ViT-H-14-378-quickgelu",
    ):
        content = get_model_config(name)
        with torch.device("meta"):
            built = open_clip.create_model(name, load_weights=False, pretrained_text=False, device="meta")
        number = sum(value.numel() for value in (*built.parameters(), *built.buffers()))
        bound = bound_parameters(content)
        plain = "timm_model_name" not in content["vision_cfg"]
        assert not plain or (bound and number <= bound <= 1.02 * number), name
    assert bound_parameters(get_model_config("RN50")) is None
    assert bound_parameters(get_model_config("coca_base")) is None
