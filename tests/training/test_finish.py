"""What a training leaves is what open_clip loads, whatever the model began as."""

import json
from pathlib import Path

import open_clip
import pytest
import safetensors.torch
import torch
from open_clip.push_to_hf_hub import save_for_hf

from raycomp.cli import USER_ERROR, main
from raycomp.config import ModelConfig, ScorerConfig
from raycomp.data.files import Folder
from raycomp.models.architecture import fingerprint_scorer
from raycomp.models.clip import Clip, describe_start, load_start
from raycomp.training.command import publish
from raycomp.training.loop import finish, interpolate
from tests.sealed import seal
from tests.training.fitting import draw_images, draw_texts, run, start_trainer, write_model

STEPS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ModelConfig:
    return write_model(tmp_path_factory.mktemp("model"))


def train(model: ModelConfig, out: str | Path, loss: str = "clip", **options):
    """Train some steps and finish; return the trainer."""
    trainer = start_trainer(model, loss, num_steps=STEPS, **options)
    run(trainer, until=STEPS)
    finish(trainer, model, Folder(str(out)))
    write_record(Folder(str(out)))
    return trainer


def write_record(folder: Folder) -> None:
    """Write what a finished training says of itself."""
    counts = {"steps": STEPS, "epochs": 1, "pairs": 9, "first_loss": 1.0, "last_loss": 1.0}
    run = {"kind": "train", "status": "finished", "config": {}, "fingerprint": {}, "versions": {}, **counts}
    run |= {"funnel": {"read": 9, "corpus": 9, "kept": 9, "dropped": {}}, "warnings": []}
    folder.write_json(run, "run.json")
    seal(folder)


def embed(clip) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        image, text = draw_images(generator), draw_texts(generator, 12)
        return torch.cat([clip.eval().encode_image(image), clip.encode_text(text)])


def load_by_open_clip(checkpoint: Path, **more):
    open_clip.add_model_config(checkpoint / "model.json")
    path = str(checkpoint / "model.safetensors")
    return open_clip.create_model_and_transforms("model", pretrained=path, **more)[0]


def test_open_clip_and_raycomp_load_what_was_trained(tmp_path):
    for loss in ["clip", "siglip"]:
        for more in [{}, {"custom_text": True}, {"quick_gelu": True}, {"init_logit_bias": -3.0}]:
            trainer = train(write_model(tmp_path, "first", **more), tmp_path / "out", loss)
            checkpoint = tmp_path / "out" / "checkpoint"
            scorer = ScorerConfig(str(checkpoint / "model.json"), str(checkpoint / "model.safetensors"))
            hub = open_clip.create_model_and_transforms(f"local-dir:{checkpoint}")[0]
            for loaded in (load_by_open_clip(checkpoint), Clip(scorer).model, hub):
                assert torch.equal(embed(loaded), embed(trainer.clip))
                assert loaded.state_dict().keys() == trainer.clip.state_dict().keys()
                assert torch.equal(loaded.logit_scale, trainer.clip.logit_scale)
                if loaded.logit_bias is not None:
                    assert torch.equal(loaded.logit_bias, trainer.clip.logit_bias)
            assert (hub.logit_bias is not None) == (loss == "siglip" or "init_logit_bias" in more)


def test_siglip_starts_as_open_clip_trains_it(model):
    clip = load_start(model, with_bias=True)
    assert clip.logit_scale.exp().item() == pytest.approx(10) and clip.logit_bias.item() == -10
    assert load_start(model).logit_bias is None


def test_a_bias_under_a_softmax_stays(tmp_path):
    """open_clip adds it to all logits, where it cancels."""
    biased = write_model(tmp_path, "biased", init_logit_bias=-3.0)
    trainer = start_trainer(biased, "clip")
    curve = run(trainer, until=STEPS)
    assert trainer.clip.logit_bias.item() == -3
    assert curve == run(start_trainer(write_model(tmp_path, "plain"), "clip"), until=STEPS)


def test_quick_gelu_of_a_tag_is_reported(tmp_path, monkeypatch):
    """A tag of another model's weights, which open_clip would load with QuickGELU, without a download."""
    config = ModelConfig(name=write_model(tmp_path, "tagged").name, weights="openai")
    tag = {"quick_gelu": True, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "interpolation": "bilinear"}
    initial = load_start(write_model(tmp_path, "tagged"))
    torch.save(initial.state_dict(), tmp_path / "tag.pt")
    for module in ("raycomp.models.clip", "open_clip.factory"):
        monkeypatch.setattr(f"{module}.get_pretrained_cfg", lambda *_: tag)
    monkeypatch.setattr("open_clip.factory.download_pretrained", lambda *_, **__: str(tmp_path / "tag.pt"))
    trainer = train(config, tmp_path / "out")
    monkeypatch.undo()
    checkpoint = tmp_path / "out" / "checkpoint"
    assert json.loads((checkpoint / "model.json").read_text())["quick_gelu"] is True
    assert torch.equal(embed(load_by_open_clip(checkpoint)), embed(trainer.clip))
    scorer = ScorerConfig(str(checkpoint / "model.json"), str(checkpoint / "model.safetensors"))
    for loaded in (Clip(scorer).model, open_clip.create_model(f"local-dir:{checkpoint}")):
        message = open_clip.get_model_preprocess_cfg(loaded)
        assert (tuple(message["mean"]), message["interpolation"]) == ((0.5, 0.5, 0.5), "bilinear")
    with_it = fingerprint_scorer(scorer)
    (checkpoint / "open_clip_config.json").unlink()
    assert fingerprint_scorer(scorer) != with_it
    assert open_clip.get_model_preprocess_cfg(Clip(scorer).model)["interpolation"] == "bicubic"


def test_a_builtin_name_becomes_its_config():
    """Only the names are asked for: no model of such a size is built."""
    message = describe_start(ModelConfig(name="ViT-B/32", weights="openai"))
    assert message == {**open_clip.get_model_config("ViT-B-32"), "quick_gelu": True}
    assert "quick_gelu" not in describe_start(ModelConfig(name="ViT-B-32", weights="random:0"))
    assert (
        describe_start(ModelConfig(name="ViT-B-32", weights="openai"), with_bias=True)["init_logit_bias"]
        == -10
    )


def test_training_goes_on_from_what_one_left(model, tmp_path):
    for name in ["local-dir", "json"]:
        first = train(model, tmp_path / "one")
        place = tmp_path / "one" / "checkpoint"
        again = ModelConfig(name=str(place / "model.json"), weights=str(place / "model.safetensors"))
        again = ModelConfig(name=f"local-dir:{place}") if name == "local-dir" else again
        assert torch.equal(embed(load_start(again)), embed(first.clip))
        train(again, tmp_path / "two")
        for file in ("model.json", "open_clip_config.json"):
            assert (tmp_path / "two" / "checkpoint" / file).read_text() == (place / file).read_text()


def test_the_start_is_kept_by_its_share(model, tmp_path):
    start, trained = load_start(model).state_dict(), train(model, tmp_path / "0").clip.state_dict()
    for share in (0.0, 0.25, 1.0):
        train(model, tmp_path / str(share), keep_start=share)
        found = safetensors.torch.load_file(tmp_path / str(share) / "checkpoint" / "model.safetensors")
        for name, value in found.items():
            if share in (0, 1):
                assert torch.equal(value, start[name] if share else trained[name]), name
            expected = (1 - share) * trained[name] + share * start[name]
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    count = torch.tensor(3)
    assert interpolate({"n": count}, {"n": torch.tensor(0)}, 1.0)["n"] is count


def test_adapters_end_as_plain_weights(model, tmp_path):
    trainer = train(model, tmp_path / "out", lora_rank=4, learning_rate=0.01)
    start = load_start(model).state_dict()
    merged = load_by_open_clip(tmp_path / "out" / "checkpoint")
    shapes = {name: value.shape for name, value in merged.state_dict().items()}
    assert shapes == {name: value.shape for name, value in start.items()}
    assert (embed(merged) - embed(trainer.clip)).abs().max() < 5e-6
    moved = {name for name, value in merged.state_dict().items() if not torch.equal(value, start[name])}
    blocks = ("transformer.resblocks.0", "visual.transformer.resblocks.0")
    assert moved == {"logit_scale", *(f"{block}.attn.in_proj_weight" for block in blocks)}
    assert torch.equal(embed(trainer.objective.plain_model()), embed(merged))
    assert (embed(trainer.clip) - embed(load_start(model))).abs().max() > 1e-3


def test_published_it_is_as_open_clip_saves_for_a_hub(model, tmp_path):
    """Of the files beside the model only those that the training wrote."""
    out, local = str(tmp_path / "trained"), tmp_path / "published"
    trainer = train(model, out)
    for name in ("open_clip_pytorch_model.bin", "notes.pkl", ".DS_Store"):
        (tmp_path / "trained/checkpoint" / name).write_bytes(b"cos")
    message: list[str] = []
    publish(out, str(local), message.append)
    assert Folder(str(local)).list_names() == ["open_clip_config.json", "open_clip_model.safetensors"]
    loaded, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{local}")
    assert torch.equal(embed(loaded), embed(trainer.clip))
    assert "local-dir:" in message[0] and "Normalize" in str(prepare)

    class NoTokenizer:
        def save_pretrained(self, folder: Path) -> None:
            """CLIP's has no files."""

    config = json.loads(Path(model.name).read_text())
    save_for_hf(trainer.clip, NoTokenizer(), config, str(tmp_path / "oracle"), safe_serialization=True)
    oracle = json.loads((tmp_path / "oracle" / "open_clip_config.json").read_text())
    ours = json.loads((local / "open_clip_config.json").read_text())
    assert ours.pop("preprocess_cfg").items() >= oracle.pop("preprocess_cfg").items() and ours == oracle
    weights = (
        safetensors.torch.load_file(folder / "open_clip_model.safetensors")
        for folder in (local, tmp_path / "oracle")
    )
    one, other = weights
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_publish_says_what_is_missing(model, tmp_path):
    with pytest.raises(ValueError, match=r"holds no finished run: no run\.json"):
        publish(str(tmp_path), str(tmp_path / "out"))
    train(model, tmp_path / "in")
    with pytest.raises(
        ValueError, match=rf"is part of a training; name the training's folder, {tmp_path}/in$"
    ):
        publish(str(tmp_path / "in/checkpoint"), str(tmp_path / "out"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(ValueError, match="holds other files"):
        publish(str(tmp_path / "in"), str(tmp_path / "full"))
    weights = tmp_path / "in" / "checkpoint" / "model.safetensors"
    (weights.parent / "more").mkdir()
    with pytest.raises(ValueError, match=r"checkpoint/more: is a folder; a model has files only"):
        publish(str(tmp_path / "in"), str(tmp_path / "out"))
    (weights.parent / "more").rmdir()
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors: is shorter than the run wrote it"):
        publish(str(tmp_path / "in"), str(tmp_path / "out"))
    seal(Folder(str(tmp_path / "in")))
    with pytest.raises(ValueError, match=r"in/checkpoint: the model is incomplete"):
        publish(str(tmp_path / "in"), str(tmp_path / "out"))
    assert not list((tmp_path / "out").iterdir())


def test_a_training_that_was_refused_is_not_published(model, tmp_path):
    for changes, message in [
        ({"status": "running"}, "the run has not finished; the same command resumes it"),
        ({"status": "failed", "failed": "not finite"}, "the run has failed: not finite"),
        ({"kind": "curate"}, "not the record of a raycomp run|holds curate, must hold a training"),
    ]:
        folder = Folder(str(tmp_path / "in"))
        train(model, folder.uri)
        folder.write_json(folder.read_json("run.json") | changes, "run.json")
        with pytest.raises(ValueError, match=message):
            publish(folder.uri, str(tmp_path / "out"))
        assert not (tmp_path / "out").exists()


def test_publish_where_nothing_can_be_written_is_the_users_mistake(model, tmp_path, capsys):
    train(model, tmp_path / "in")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out in (tmp_path / "file/x", tmp_path / "link", "hf://a/b"):
        assert main(["publish", str(tmp_path / "in"), "--out", str(out)]) == USER_ERROR
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"out='{out}': " in said


def test_nothing_is_written_of_what_is_not_finite(model, tmp_path):
    trainer = start_trainer(model, "clip")
    with torch.no_grad():
        trainer.clip.positional_embedding[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"positional_embedding after step 0: must be finite"):
        finish(trainer, model, Folder(str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
