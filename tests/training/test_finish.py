"""What a training leaves is what open_clip loads, whatever the model began as."""

import json
from pathlib import Path
from types import SimpleNamespace

import open_clip
import pytest
import safetensors.torch
import torch
from open_clip.push_to_hf_hub import save_for_hf

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.data.files import Folder
from raycomp.models.clip import Clip, describe_start, load_start
from raycomp.training.command import publish
from raycomp.training.loop import finish, interpolate
from tests.sealed import seal, write_run
from tests.training.fitting import draw_images, draw_texts, run, start_trainer, write_model

STEPS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ModelConfig:
    return write_model(tmp_path_factory.mktemp("model"))


def train(model: ModelConfig, out: str | Path, loss: str = "clip", **options):
    """Train some steps and finish as a run does; return the trainer."""
    trainer = start_trainer(model, loss, num_steps=STEPS, **options)
    run(trainer, until=STEPS)
    finish(trainer, model, Folder(str(out)))
    write_run(str(out), "train")
    return trainer


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
    for loss, more in [("clip", {}), ("siglip", {"custom_text": True}), ("clip", {"init_logit_bias": -3.0})]:
        model = write_model(tmp_path, "first", quick_gelu=bool(more), **more)
        trainer, checkpoint = train(model, tmp_path / "out", loss), tmp_path / "out" / "checkpoint"
        scorer = ScorerConfig(str(checkpoint / "model.json"), str(checkpoint / "model.safetensors"))
        hub = open_clip.create_model_and_transforms(f"local-dir:{checkpoint}")[0]
        for loaded in (load_by_open_clip(checkpoint), Clip(scorer).model, hub):
            assert torch.equal(embed(loaded), embed(trainer.clip))
            found, expected = loaded.state_dict(), trainer.clip.state_dict()
            assert found.keys() == expected.keys()
            assert all(found[name].equal(expected[name]) for name in found if name.startswith("logit"))
        assert (hub.logit_bias is not None) == bool(more)


def test_a_bias_is_added_for_siglip_and_stays_under_a_softmax(model, tmp_path):
    """open_clip adds it to all logits, where it cancels."""
    clip = load_start(model, with_bias=True)
    assert clip.logit_scale.exp().item() == pytest.approx(10) and clip.logit_bias.item() == -10
    trainer = start_trainer(write_model(tmp_path, "biased", init_logit_bias=-3.0), "clip")
    curve = run(trainer, until=STEPS)
    assert trainer.clip.logit_bias.item() == -3
    assert curve == run(start_trainer(write_model(tmp_path, "plain"), "clip"), until=STEPS)
    openai, plain = (ModelConfig(name="ViT-B/32", weights=weights) for weights in ("openai", "random:0"))
    assert describe_start(openai) == {**open_clip.get_model_config("ViT-B-32"), "quick_gelu": True}
    assert "quick_gelu" not in describe_start(plain)
    assert describe_start(openai, with_bias=True)["init_logit_bias"] == -10


def test_the_start_is_kept_by_its_share(model, tmp_path):
    start, trained = load_start(model).state_dict(), train(model, tmp_path / "0").clip.state_dict()
    for share in (0.25, 1.0):
        train(model, tmp_path / str(share), keep_start=share)
        found = safetensors.torch.load_file(tmp_path / str(share) / "checkpoint" / "model.safetensors")
        for name, value in found.items():
            expected = (1 - share) * trained[name] + share * start[name]
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
            assert share < 1 or value.equal(start[name]), name
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
    out, local, oracle = tmp_path / "trained", tmp_path / "published", tmp_path / "oracle"
    trainer, said = train(model, out), []
    (out / "checkpoint" / "notes.pkl").write_bytes(b"cos")
    publish(str(out), str(local), said.append)
    assert Folder(str(local)).list_names() == ["open_clip_config.json", "open_clip_model.safetensors"]
    loaded, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{local}")
    assert torch.equal(embed(loaded), embed(trainer.clip))
    assert "local-dir:" in said[0] and "Normalize" in str(prepare)
    no_files = SimpleNamespace(save_pretrained=lambda _: None)
    config = json.loads(Path(model.name).read_text())
    save_for_hf(trainer.clip, no_files, config, str(oracle), safe_serialization=True)
    theirs, ours = (json.loads((one / "open_clip_config.json").read_text()) for one in (oracle, local))
    assert ours.pop("preprocess_cfg").items() >= theirs.pop("preprocess_cfg").items() and ours == theirs
    one, other = (safetensors.torch.load_file(x / "open_clip_model.safetensors") for x in (local, oracle))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_publish_says_what_is_missing(model, tmp_path):
    place = tmp_path / "in"
    folder = Folder(str(place))

    def refuse(said: str, source: Path = place, out: str | Path = tmp_path / "out") -> None:
        with pytest.raises(ValueError, match=said) as error:
            publish(str(source), str(out))
        assert "\n" not in str(error.value)

    refuse(r"holds no finished run: no run\.json", tmp_path)
    train(model, place)
    refuse(rf"is part of a training; name the training's folder, {place}$", place / "checkpoint")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    refuse("holds other files", out=tmp_path / "full")
    refuse("out='hf://a/b': ", out="hf://a/b")
    (place / "checkpoint/more").mkdir()
    refuse(r"checkpoint/more: is a folder; a model has files only")
    (place / "checkpoint/more").rmdir()
    weights = place / "checkpoint/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refuse(r"model\.safetensors: is shorter than the run wrote it")
    seal(folder)
    refuse(r"in/checkpoint: the model is incomplete")
    weights.unlink()
    seal(folder)
    refuse(r"the model is incomplete: model.json or model.safetensors is missing")
    for changes, message in [
        ({"kind": "curate"}, "not the record of a raycomp run|holds curate, must hold a training"),
        ({"kind": "train", "status": "running"}, "the run has not finished; the same command resumes it"),
        ({"status": "failed", "failed": "not finite"}, "the run has failed: not finite"),
    ]:
        folder.write_json(folder.read_json("run.json") | changes, "run.json")
        refuse(message)
    assert not list((tmp_path / "out").iterdir())


def test_nothing_is_written_of_what_is_not_finite(model, tmp_path):
    trainer = start_trainer(model, "clip")
    with torch.no_grad():
        trainer.clip.positional_embedding[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"positional_embedding after step 0: must be finite"):
        finish(trainer, model, Folder(str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
