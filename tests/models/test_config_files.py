"""Weights beside the config of another model are refused in one line that says what to set."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.models.architecture import HUB_CONFIG, check_config_files, describe_scorer
from raycomp.models.clip import Clip, read_architecture


@pytest.fixture
def plain(tiny_scorer) -> dict:
    return json.loads(Path(tiny_scorer.model).read_text())


def write(folder: Path, name: str, content) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def check(name: str, weights: str, kind: type = ModelConfig) -> None:
    config = kind(name, weights=weights)
    check_config_files(config, read_architecture(config))


def test_weights_go_into_their_own_model_and_into_no_other(tiny_scorer, plain, tmp_path):
    own = write(tmp_path, "model.json", {**plain, "quick_gelu": True})
    trained = Clip(ModelConfig(own, "random:0")).model
    weights = str(tmp_path / "model.safetensors")
    save_file({name: value.contiguous() for name, value in trained.state_dict().items()}, weights)
    assert describe_scorer(ModelConfig(own, weights)).embedding_dim == 32
    with pytest.raises(ValueError) as error:
        describe_scorer(ModelConfig(tiny_scorer.model, weights))
    said = str(error.value)
    assert said.startswith(f"model.weights='{weights}': was trained with quick_gelu=True ({own})")
    assert f"model.name='{tiny_scorer.model}' has quick_gelu=False" in said and "\n" not in said
    assert said.endswith(f"set model.name={own}")
    with pytest.raises(ValueError, match=r"^scorer\.weights=.*scorer\.model=.*set scorer\.model="):
        describe_scorer(ScorerConfig(tiny_scorer.model, weights))


def test_other_heads_are_another_model_though_the_weights_fit(tiny_scorer, plain, tmp_path):
    write(tmp_path, "a.json", {**plain, "text_cfg": {**plain["text_cfg"], "heads": 4}})
    with pytest.raises(ValueError, match=r"trained with text_cfg\.heads=4 .* has text_cfg\.heads=2"):
        check(tiny_scorer.model, str(tmp_path / "a.pt"))


def test_what_makes_no_other_model_is_no_difference(tiny_scorer, plain, tmp_path_factory):
    for change in [
        {"quick_gelu": False},
        {"init_logit_bias": -10.0},
        {"vision_cfg": {"image_size": 64, "ls_init_value": None}},
        {"text_cfg": {"context_length": 32}},
    ]:
        tmp_path = tmp_path_factory.mktemp("case")
        mixed = {
            name: {**plain[name], **value} if isinstance(value, dict) else value
            for name, value in change.items()
        }
        write(tmp_path, "a.json", {**plain, **mixed})
        check(tiny_scorer.model, str(tmp_path / "a.pt"))


def test_a_json_of_something_else_reports_nothing(tiny_scorer, tmp_path_factory):
    for content in ["", "no json", "[]", '{"vision_cfg": 3}', "[" * 100_000]:
        tmp_path = tmp_path_factory.mktemp("case")
        write(tmp_path, "a.json", content)
        write(tmp_path, HUB_CONFIG, content)
        check(tiny_scorer.model, str(tmp_path / "a.pt"))


def test_what_is_said_twice_next_to_weights_is_refused(tiny_scorer, plain, tmp_path):
    text = json.dumps(plain)
    write(tmp_path, "a.json", text[:-1] + ', "quick_gelu": true, "quick_gelu": false}')
    with pytest.raises(ValueError, match=r"/a\.json: 'quick_gelu' occurs twice in one object; write it"):
        check(tiny_scorer.model, str(tmp_path / "a.pt"))


def params(model: str, pretrained: str = "", force: bool = False) -> str:
    return f"batch_size: 64\nforce_quick_gelu: {force}\nmodel: {model}\npretrained: {pretrained}\n"


def test_the_log_of_open_clip_train_reports(tmp_path_factory):
    for log, name, advice in [
        (params("ViT-B-32-quickgelu"), "ViT-B-32", "ViT-B-32-quickgelu"),
        (params("ViT-B-32", force=True), "ViT-B/32", "ViT-B-32-quickgelu"),
        (params("ViT-B-32", "openai"), "ViT-B-32", "ViT-B-32-quickgelu"),
        (params("ViT-B-32"), "ViT-B-32-quickgelu", "ViT-B-32"),
        (params("ViT-B-16"), "ViT-B-32", "ViT-B-16"),
        (params("ViT-B-32"), "ViT-B-32", None),
        (params("ViT-B-32", "laion2b_s34b_b79k"), "ViT-B-32", None),
        (params("ViT-B-32", "openai"), "ViT-B-32-quickgelu", None),
        (params("ViT-B-32", force=True), "ViT-B-32-quickgelu", None),
        (params("my-own"), "ViT-B-32", None),
        ("", "ViT-B-32", None),
    ]:
        tmp_path = tmp_path_factory.mktemp("case")
        write(tmp_path, "params.txt", log)
        weights = write(tmp_path, "checkpoints/epoch_1.pt", "")
        if advice is None:
            check(name, weights)
            return
        with pytest.raises(
            ValueError, match=rf"params\.txt\), model\.name='{name}' .*set model\.name={advice}$"
        ):
            check(name, weights)


def test_a_json_can_say_that_openai_s_weights_went_on_without_quickgelu(tmp_path):
    write(tmp_path, "params.txt", params("ViT-B-32", "openai"))
    weights = write(tmp_path, "checkpoints/epoch_1.pt", "")
    own = read_architecture(ModelConfig("ViT-B-32", "random:0"))
    check(write(tmp_path, "mine.json", {**own, "quick_gelu": False}), weights)
    with pytest.raises(ValueError, match="quick_gelu=True"):
        check(write(tmp_path, "mine.json", own), weights)
