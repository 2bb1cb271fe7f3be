"""A folder that a training left is a model, wherever it lies; what is none is one line."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save

from raycomp.config import ModelConfig, to_dict
from raycomp.data.files import Folder
from raycomp.data.inputs import with_absolute_paths
from raycomp.data.runs import fetch_model, find_model
from raycomp.evaluation.config import EvaluateConfig
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip
from raycomp.training.config import TrainConfig
from tests.sealed import seal

RUN = {
    "kind": "train",
    "status": "finished",
    "config": to_dict(TrainConfig(model=ModelConfig("ViT-B/16", "random:0"))),
    "fingerprint": {},
    "versions": {},
    "funnel": {"read": 1, "corpus": 1, "kept": 1, "dropped": {}},
    "warnings": [],
    "steps": 1,
    "epochs": 1,
    "pairs": 1,
    "first_loss": 1.0,
    "last_loss": 1.0,
}


@pytest.fixture
def trained(tmp_path, tiny_scorer) -> Folder:
    """A finished training."""
    folder = Folder(str(tmp_path / "trained"))
    model = Clip(ModelConfig(tiny_scorer.model, "random:7")).model
    config = Path(tiny_scorer.model).read_bytes()
    weights = save({name: value.contiguous() for name, value in model.state_dict().items()})
    preprocess = {"mean": [0.1] * 3, "std": [0.9] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}
    hub = {"model_cfg": json.loads(config), "preprocess_cfg": preprocess}
    folder.write_bytes(config, "checkpoint", "model.json")
    folder.write_bytes(weights, "checkpoint", "model.safetensors")
    folder.write_json(hub, "checkpoint", "open_clip_config.json")
    folder.write_json(RUN, "run.json")
    seal(folder)
    return folder


def test_a_training_or_its_checkpoint_is_its_model(trained):
    for name in ["ViT-B-32", "ViT-B-16", "own"]:
        own = trained.at("checkpoint", "model.json")
        asked = ModelConfig(own if name == "own" else name, trained.uri)
        found = find_model(asked)
        assert found == ModelConfig(own, trained.at("checkpoint", "model.safetensors")), name
        assert find_model(found) == found == fetch_model(found), name
        assert find_model(ModelConfig(weights=trained.at("checkpoint"))) == found, name
        spec = describe_scorer(found)
        assert (spec.embedding_dim, spec.image.mean) == (32, (0.1, 0.1, 0.1)), name


def test_a_tag_stays_a_tag_where_a_folder_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai").mkdir()
    config = EvaluateConfig()
    assert with_absolute_paths(config).model == config.model == find_model(config.model)


def refuse(name: str, weights: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_model(ModelConfig(name, weights))


def test_what_is_not_the_model_of_a_finished_training_is_refused(trained, tmp_path):
    default = ModelConfig().name
    for place in (trained.uri, trained.at("checkpoint")):
        said = r"^model\.name='ViT-L-14': .* of its own, trained from 'ViT-B/16'; leave model"
        refuse("ViT-L-14", place, said)
    for changes, said in [
        ({"status": "running"}, ".*: the run has not finished; the same command resumes it"),
        ({"status": "failed", "failed": "no GPU"}, ".*: the run has failed: no GPU"),
        ({"kind": "negatives"}, "holds negatives, must hold a training"),
    ]:
        trained.write_json({**RUN, **changes}, "run.json")
        seal(trained)
        refuse(default, trained.uri, rf"^model\.weights='{trained.uri}': {said}")
    trained.write_json(RUN, "run.json")
    seal(trained)
    for lost in ("model.safetensors", "model.json"):  # files are named in their order
        trained.remove("checkpoint", lost)
        refuse(default, trained.uri, rf"^model\.weights=.*/{lost}: is missing; the run wrote it")
    refuse(default, str(tmp_path), r"^model\.weights=.*holds neither run\.json of a training nor")


def test_weights_on_s3_are_guarded_by_what_lies_next_to_them(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    logs = Folder(f"{bucket}/logs")
    logs.write_bytes(b"weights", "checkpoints", "epoch_1.pt")
    logs.write_bytes(b"model: ViT-B-32-quickgelu\n", "params.txt")
    config = ModelConfig(weights=logs.at("checkpoints", "epoch_1.pt"))
    assert find_model(config) == config
    with pytest.raises(ValueError, match=r"epoch_1\.pt' of ViT-B-32-quickgelu: cannot be loaded"):
        describe_scorer(fetch_model(config))


def test_what_is_not_on_s3_is_one_line(bucket):
    for option in ["name", "weights"]:
        config = ModelConfig(**{option: f"{bucket}/none.json"})
        with pytest.raises(ValueError, match=rf"^model\.{option}='{bucket}/none\.json': no such file"):
            fetch_model(find_model(config))
