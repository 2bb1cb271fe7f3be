"""Configs of models, checked; files next to weights; descriptions kept for later runs."""

import json
import os
import resource
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from open_clip.factory import get_model_config
from safetensors.torch import save_file

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.curation.config import CurateConfig
from raycomp.data.inputs import with_absolute_paths
from raycomp.models.architecture import bound_parameters, describe_scorer
from raycomp.models.clip import Clip, measure_scorer, read_architecture
from raycomp.models.stated import resolve

TINY = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


NOT_A_MODEL = ["5", "", "[" * 100_000, "\udcff", '{"embed_dim": 1, "vision_cfg": 5}']


CHANGES = [
    *({"embed_dim": value} for value in ("32", None, [1, 2], 0, True, 1.5, float("nan"), 10**9)),
    *({"vision_cfg": value} for value in (None, {"width": 999_999}, {"layers": [1, 2, 3, 10**9]}, {"a": 1})),
    *({"vision_cfg": {"image_size": value}} for value in (None, [])),
    *({"text_cfg": change} for change in ({"context_length": 10**6}, {"heads": 7})),
]


def say_no(scorer: ScorerConfig, match: str) -> str:
    """Return the one line that refuses a scorer."""
    with pytest.raises(ValueError, match=match) as error:
        describe_scorer(scorer)
    line = str(error.value)
    assert "\n" not in line and len(line) < 1000
    return line


def test_a_json_that_is_no_model_is_one_line(tmp_path):
    twice = json.dumps(TINY)[:-1] + ', "embed_dim": 8}'
    bad = ScorerConfig(model=str(tmp_path / "bad.json"), weights="random:0")
    for text in [*NOT_A_MODEL, twice]:
        (tmp_path / "bad.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        line = say_no(bad, r"scorer\.model=.*bad")
    assert line.endswith("cannot be read as JSON ('embed_dim' occurs twice in one object)")
    (tmp_path / "open_clip_config.json").write_text(f'{{"model_cfg": {twice}}}')
    place = f"local-dir:{tmp_path}"
    say_no(ScorerConfig(model=place, weights="random:0"), "'embed_dim' occurs twice in one object")
    (tmp_path / "good.json").write_text(json.dumps(TINY))
    with pytest.raises(ValueError, match=r"_config\.json: cannot be read as JSON \('embed_dim' occurs"):
        resolve(ModelConfig(str(tmp_path / "good.json"), "random:0"))


def test_a_model_that_cannot_be_built_is_one_line_and_takes_no_memory(tmp_path, monkeypatch):
    for change in CHANGES:
        content = deepcopy(TINY)
        for name, value in change.items():
            content[name] = content[name] | value if isinstance(value, dict) else value
        (tmp_path / "bad.json").write_text(json.dumps(content))
        (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": content}))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for place in (str(tmp_path / "bad.json"), f"local-dir:{tmp_path}"):
            say_no(ScorerConfig(model=place, weights="random:0"), r"scorer\.model=")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10, change
    # What only a hub has is named.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "bad.json").write_text(json.dumps(TINY | {"text_cfg": {"hf_model_name": "no/such-model"}}))
    for model in ["ViT-B-16-SigLIP", "hf-hub:no/such-model", str(tmp_path / "bad.json")]:
        line = say_no(ScorerConfig(model=model, weights="random:0"), r"scorer\.model=")
        assert ("tokenizer could not be downloaded" in line) == ("SigLIP" in model), model
    monkeypatch.chdir(tmp_path)
    config = with_absolute_paths(CurateConfig(scorer=ScorerConfig(model="local-dir:.")))
    assert config.scorer.model == f"local-dir:{tmp_path}", "every worker finds it"


class Payload:
    """Pickled weights that write a file, "owned", when they are loaded."""

    def __reduce__(self):
        return open, ("owned", "w")


def bad_weights(folder: Path, model: torch.nn.Module, other: torch.nn.Module) -> None:
    """Write every kind of file that holds no weights of ``model``."""
    state, strange = (
        {name: value.contiguous() for name, value in one.state_dict().items()} for one in (model, other)
    )
    spoilt = {**state, "logit_scale": torch.full_like(state["logit_scale"], float("nan"))}
    save_file(spoilt, folder / "nan.safetensors")
    save_file(strange, folder / "other.safetensors")
    np.savez(folder / "weights.npz", a=np.zeros(3))
    things = {"list": [1], "none": None, "keys": {1: 2}, "values": {"logit_scale": 5}, "nan": spoilt}
    things |= {"state": {"state_dict": 5}, "other": strange, "code": {"state_dict": Payload()}}
    for name, value in things.items():
        torch.save(value, folder / f"{name}.pt")
    whole = (folder / "other.pt").read_bytes()
    texts = {"empty": b"", "zeros": bytes(1000), "system": b"cos\nsystem\n(S'touch owned'\ntR."}
    for name, content in {**texts, "cut": whole[: len(whole) // 2]}.items():
        for kind in ("pt", "safetensors"):
            (folder / f"{name}.{kind}").write_bytes(content)
    (folder / "folder.pt").mkdir()


def test_weights_of_every_wrong_kind_are_one_line_and_run_no_code(tiny_scorer, tmp_path, monkeypatch):
    (tmp_path / "bad").mkdir()
    monkeypatch.chdir(tmp_path / "bad")
    text = TINY["text_cfg"] | {"vocab_size": 100}
    (tmp_path / "other.json").write_text(json.dumps(TINY | {"embed_dim": 8, "text_cfg": text}))
    other = Clip(ModelConfig(str(tmp_path / "other.json"), "random:0")).model
    bad_weights(tmp_path / "bad", Clip(tiny_scorer).model, other)
    paths = sorted((tmp_path / "bad").iterdir())
    for path in paths:
        line = say_no(ScorerConfig(model=tiny_scorer.model, weights=str(path)), r"^scorer\.weights=")
        assert path.name in line
    assert sorted((tmp_path / "bad").iterdir()) == paths


def test_a_bound_of_plain_models_is_above_what_open_clip_builds():
    for name in ("ViT-B-32", "ViT-M-16-alt", "ViT-H-14-378-quickgelu"):
        with torch.device("meta"):
            built = open_clip.create_model(name, load_weights=False, pretrained_text=False, device="meta")
        number = sum(value.numel() for value in (*built.parameters(), *built.buffers()))
        assert number <= bound_parameters(get_model_config(name)) <= 1.02 * number, name
    assert bound_parameters(get_model_config("RN50")) is None
    assert bound_parameters(get_model_config("coca_base")) is None


def test_a_damaged_file_is_made_again_and_what_cannot_be_kept_is_not(scorer, cache, monkeypatch):
    """A cache that cannot be written; what is refused, or may change on a hub."""
    reported, built = describe_scorer(scorer), count_builds(monkeypatch)
    (path,) = cache.iterdir()
    whole = path.read_text()
    broken = [whole[:50], whole.replace('"height": 32', '"height": 64'), "[]", '{"spec": null, "sha256": ""}']
    for number, content in enumerate([*broken, "\0" * 9]):
        path.write_text(content)
        assert describe_scorer(scorer) == reported == describe_scorer(scorer), content
        assert len(built) == number + 1 and path.read_text() == whole, content
    path.unlink()
    with monkeypatch.context() as patch:
        patch.setenv("RAYCOMP_CACHE", scorer.weights)
        assert describe_scorer(scorer) == reported
    state = {name: torch.zeros_like(value) for name, value in Clip(scorer).model.state_dict().items()}
    save_file(state, scorer.weights)
    for _ in range(2):
        with pytest.raises(ValueError, match="not of length 1"):
            describe_scorer(scorer)
    monkeypatch.setattr("raycomp.models.clip.measure_scorer", lambda config: "built")
    for model in ("ViT-B-32", "hf-hub:some/model"):
        assert describe_scorer(ScorerConfig(model=model, weights="openai")) == "built"
    assert not [*cache.iterdir()]


@pytest.fixture
def plain(tiny_scorer) -> dict:
    return json.loads(Path(tiny_scorer.model).read_text())


def write(folder: Path, name: str, content) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def check(name: str, weights: str, kind: type = ModelConfig) -> None:
    Path(weights).touch()
    resolve(kind(name, weights=weights))


def test_only_what_makes_another_model_is_a_difference(tiny_scorer, plain, tmp_path):
    weights = str(tmp_path / "a.pt")
    vision, text = plain["vision_cfg"], plain["text_cfg"]
    for change in [
        {"quick_gelu": False},
        {"init_logit_bias": -10.0},
        {"vision_cfg": {**vision, "image_size": [32, 32], "ls_init_value": None}},
    ]:
        write(tmp_path, "a.json", {**plain, **change})
        check(tiny_scorer.model, weights)
    for content in ["no json", "[]", '{"vision_cfg": 3}', "[" * 100_000]:
        write(tmp_path, "a.json", content)
        check(tiny_scorer.model, weights)
    own, twice = tmp_path / "a.json", json.dumps(plain)[:-1] + ', "quick_gelu": true, "quick_gelu": false}'
    gelu = rf"trained with quick_gelu=True \({own}\).* has quick_gelu=False.*; set {{}}={own}$"
    for content, kind, said in [
        ({**plain, "text_cfg": {**text, "heads": 4}}, ModelConfig, r"text_cfg\.heads=4 .* has text_cfg\.he"),
        ({**plain, "quick_gelu": True}, ModelConfig, gelu.format("model.name")),
        ({**plain, "quick_gelu": True}, ScorerConfig, gelu.format("scorer.model")),
        ({**plain, "vision_cfg": {**vision, "image_size": 64}}, ModelConfig, "image_size=64 .* has .*=32"),
        ({**plain, "text_cfg": {**text, "context_length": 32}}, ModelConfig, "_length=32 .* has .*=77"),
        (twice, ModelConfig, r"/a\.json: cannot be read as JSON \('quick_gelu' occurs twice"),
    ]:
        write(tmp_path, "a.json", content)
        with pytest.raises(ValueError, match=said):
            check(tiny_scorer.model, weights, kind)


def params(model: str, pretrained: str = "", force: bool = False) -> str:
    return f"batch_size: 64\nforce_quick_gelu: {force}\nmodel: {model}\npretrained: {pretrained}\n"


def test_the_log_of_open_clip_train_reports(tmp_path):
    own = read_architecture(ModelConfig("ViT-B-32", "random:0"))
    plain, quick = (write(tmp_path, f"{on}.json", {**own, "quick_gelu": on}) for on in (False, True))
    for log, name, advice in [
        (params("ViT-B-32", force=True), "ViT-B/32", "ViT-B-32-quickgelu"),
        (params("ViT-B-32", "openai"), "ViT-B-32", "ViT-B-32-quickgelu"),
        (params("ViT-B-32"), "ViT-B-32-quickgelu", "ViT-B-32"),
        (params("ViT-B-16"), "ViT-B-32", "ViT-B-16"),
        (params("ViT-B-32", "laion2b_s34b_b79k"), "ViT-B-32", None),
        (params("ViT-B-32", "openai"), "ViT-B-32-quickgelu", None),
        (params("ViT-B-32", "openai"), quick, None),
        (params("ViT-B-32", "openai"), plain, None),
        (params("ViT-B-32") + "force_image_size: 96\n", plain, "ViT-B-32"),
        (params("my-own"), "ViT-B-32", None),
        ("", "ViT-B-32", None),
    ]:
        write(tmp_path, "params.txt", log)
        weights = write(tmp_path, "checkpoints/epoch_1.pt", "")
        if advice is None:
            check(name, weights)
            continue
        said = rf"params\.txt\), model\.name='{name}' .*set model\.name={advice}$"
        with pytest.raises(ValueError, match=said):
            check(name, weights)


def test_a_hit_loads_no_torch_and_other_weights_config_or_neighbours_miss(scorer, cache, monkeypatch):
    built, weights = count_builds(monkeypatch), Path(scorer.weights)
    reported = describe_scorer(scorer)
    code = (
        "import sys\nfrom raycomp.config import ScorerConfig\n"
        "from raycomp.models.architecture import describe_scorer\n"
        f"print(repr(describe_scorer({scorer!r})))\n"
        "assert not {'torch', 'open_clip'} & set(sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == repr(reported), done.stderr
    assert describe_scorer(scorer) == measure_scorer(scorer) and len(built) == 1
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    for change in ({}, {"precision": "bf16"}, {"weights": "random:7"}):
        describe_scorer(replace(scorer, **change))
    assert len(built) == 4
    reported = {"model_cfg": json.loads(Path(scorer.model).read_text())}
    reported["model_cfg"]["vision_cfg"]["layers"] += 1
    weights.with_name("open_clip_config.json").write_text(json.dumps(reported))
    with pytest.raises(ValueError, match=r"was trained with vision_cfg\.layers=2"):
        describe_scorer(scorer)


@pytest.fixture
def scorer(tiny_scorer: ScorerConfig, tmp_path: Path) -> ScorerConfig:
    """A scorer whose weights are a file."""
    save_file(Clip(tiny_scorer).model.state_dict(), tmp_path / "weights.safetensors")
    return replace(tiny_scorer, weights=str(tmp_path / "weights.safetensors"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("RAYCOMP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "scorers"


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[ScorerConfig]:
    """Return a list that grows with every scorer that is built."""
    built: list[ScorerConfig] = []

    def build(config):
        built.append(config)
        return measure_scorer(config)

    monkeypatch.setattr("raycomp.models.clip.measure_scorer", build)
    return built
