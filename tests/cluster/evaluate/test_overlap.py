"""The command ``evaluate`` without Ray: what it says of shared images, and how it ends where none is left."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from raycomp.cli import main
from raycomp.cluster.evaluate import command
from raycomp.cluster.parts import Stats
from raycomp.worlds.samples import world_shards
from tests.loops.sitting import embed


@pytest.fixture
def plain(monkeypatch, tiny_scorer) -> list[str]:
    """Embed in this process; return the words of a command line that evaluates the tiny model."""
    seen = {}

    @contextmanager
    def connect(*_) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(device="cpu", gpu=None)

    def embed_pictures(job, exams):
        (exam,) = exams
        pictures, seen["texts"] = embed(exam, tiny_scorer)
        return pictures, Stats()

    monkeypatch.setattr(command, "connect", connect)
    monkeypatch.setattr(command, "embed_pictures", embed_pictures)
    monkeypatch.setattr(command, "embed_texts", lambda *_: (seen["texts"], Stats()))
    model = [f"--set=model.name={tiny_scorer.model}", f"--set=model.weights={tiny_scorer.weights}"]
    return ["evaluate", *model, "--set=benchmarks=linear_probe"]


def lay(folder: Path, first: int, num: int = 6) -> str:
    """Write scenes of two classes, so many from the first of a draw."""
    for _, samples in world_shards(first + num, 0, 5, per_shard=100):
        for i, (key, members) in enumerate(samples[first:]):
            place = folder / ("bee", "cat")[(first + i) % 2]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{key}.jpg").write_bytes(members["jpg"])
    return str(folder)


def test_shared_images_are_told_dropped_and_counted_and_none_left_is_a_users_mistake(plain, tmp_path, capsys):
    train, test = lay(tmp_path / "train", 0), lay(tmp_path / "test", 4)
    words = [*plain, f"--set=linear_probe.train={train}"]
    line = "linear_probe: 2 of 6 test images are among the training images (33.3 %)"
    ends = {"warn": "overlap=drop leaves them out", "drop": "they are left out (overlap=drop)"}
    for overlap, end in ends.items():
        out = tmp_path / overlap
        dials = [f"--set=linear_probe.test={test}", f"--set=overlap={overlap}", f"--out={out}"]
        assert main([*words, *dials]) == 0
        assert f"{line}; {end}" in capsys.readouterr().out
        run = json.loads((out / "run.json").read_text())
        assert (
            run["warnings"] == [f"{line}; {end}"]
            and line.partition(": ")[2] in (out / "report.html").read_text()
        )
        assert run["overlap"] == [
            {"test": "linear_probe", "train": "the training images", "num_images": 6, "images": 2,
             "num_texts": 0, "texts": 0}
        ]  # fmt: skip
        assert run["funnel"]["dropped"] == ({} if overlap == "warn" else {"contaminated": 2})
        assert run["funnel"]["kept"] == (6 if overlap == "warn" else 4)
    dials = [f"--set=linear_probe.test={train}", "--set=overlap=drop", f"--out={tmp_path / 'none'}"]
    assert main([*words, *dials]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "overlap=drop: linear_probe: 6 of 6 test images" in said and "set overlap=warn" in said
    assert main([*words, "--set=overlap=never", f"--out={tmp_path / 'none'}"]) == 2
    assert "overlap='never': must be one of warn, drop" in capsys.readouterr().err
