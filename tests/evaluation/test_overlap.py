"""The command ``evaluate``: images that the model was trained on, and how it ends where none is left."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch

from raycomp.cli import main
from raycomp.config import ModelConfig, ScorerConfig
from raycomp.core.near import Known, key_images, merge_keys
from raycomp.data.files import Folder
from raycomp.evaluation import command
from raycomp.models.clip import load_start
from raycomp.run.executor import Stats
from raycomp.training.command import TRAINED, write_trained
from tests.drawn import world_shards
from tests.evaluation.embedded import embed
from tests.sealed import seal


@pytest.fixture
def plain(monkeypatch, tiny_scorer) -> list[str]:
    """Embed in this process; return the words of a command line that evaluates the tiny model."""
    seen = {}

    @contextmanager
    def connect(*_, **__) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(device="cpu", gpu=None)

    def embed_pictures(job, evaluations):
        (evaluation,) = evaluations
        pictures, seen["texts"] = embed(evaluation, tiny_scorer)
        return pictures, Stats()

    monkeypatch.setattr(command, "connect", connect)
    monkeypatch.setattr(command, "embed_pictures", embed_pictures)
    monkeypatch.setattr(command, "embed_texts", lambda *_: (seen["texts"], Stats()))
    model = [f"--set=model.name={tiny_scorer.model}", f"--set=model.weights={tiny_scorer.weights}"]
    return ["evaluate", *model, "--set=benchmarks=linear_probe"]


def write_files(folder: Path, first: int, num: int = 6) -> str:
    """Write scenes of two classes, so many from the first of a draw."""
    for _, samples in world_shards(first + num, 0, 5, per_shard=100):
        for i, (key, members) in enumerate(samples[first:]):
            place = folder / ("bee", "cat")[(first + i) % 2]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{key}.jpg").write_bytes(members["jpg"])
    return str(folder)


def leave_training(folder: Path, scorer: ScorerConfig, images: list[bytes]) -> str:
    """Write what a training of the tiny model on these images would leave."""
    clip = load_start(ModelConfig(scorer.model, scorer.weights))
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint/model.safetensors").write_bytes(safetensors.torch.save(clip.state_dict()))
    shutil.copy(scorer.model, folder / "checkpoint/model.json")
    funnel = {"read": 1, "corpus": 1, "kept": 1, "dropped": {}}
    facts = {"steps": 1, "epochs": 1, "pairs": 1, "first_loss": 1, "last_loss": 1}
    run = {"kind": "train", "status": "finished", "config": {}, "fingerprint": {}, "versions": {}}
    (folder / "run.json").write_text(json.dumps({**run, **facts, "funnel": funnel, "warnings": []}))
    hashes = [hashlib.sha256(image).hexdigest() for image in images]
    write_trained(Known(merge_keys([key_images(hashes)]), merge_keys([])), Folder(str(folder)))
    seal(Folder(str(folder)), ("checkpoint", *TRAINED))
    return str(folder)


def test_images_that_the_model_was_trained_on_are_known_from_its_folder(plain, tiny_scorer, tmp_path, capsys):
    test = write_files(tmp_path / "test", 0)
    images = [path.read_bytes() for path in sorted(Path(test).rglob("*.jpg"))]
    trained = leave_training(tmp_path / "trained", tiny_scorer, [*images[:1], b"elsewhere"])
    words = ["evaluate", f"--set=model.weights={trained}", "--set=benchmarks=zeroshot"]
    words.append(f"--set=zeroshot.input={test}")
    line = "zeroshot: 1 of 6 test images are among the images that the model was trained on (16.7 %)"
    for overlap, kept in (("warn", 6), ("drop", 5)):
        out = tmp_path / overlap
        assert main([*words, f"--set=overlap={overlap}", f"--out={out}"]) == 0
        assert line in capsys.readouterr().out
        run = json.loads((out / "run.json").read_text())
        assert run["funnel"]["kept"] == kept and run["fingerprint"]["trained"]
        assert run["overlap"][0]["images"] == 1
    everything = leave_training(tmp_path / "everything", tiny_scorer, images)
    words[1] = f"--set=model.weights={everything}"
    assert main([*words, "--set=overlap=drop", f"--out={tmp_path / 'none'}"]) == 2
    assert "overlap=drop: zeroshot: 6 of 6 test images" in capsys.readouterr().err
