"""A loss of the user's own: trained with, refused in one line, and known by its file's content."""

import hashlib
import sys
from pathlib import Path

import pytest

from raycomp.training.command import train
from tests.training.little import read_losses, refuse

OWN = """
from raycomp.core.losses import clip_loss
from raycomp.training.losses import Loss


class Warm(Loss):
    wrong = None

    def __call__(self, batch, config):
        return self.wrong or 2 * clip_loss(batch.image_ND, batch.text_ND, batch.scale)


class Hard(Warm):
    negatives = True


class Plain(Warm):
    wrong = 1.5


class Late(Warm):
    def __call__(self, batch, config):
        return mistyped


class Many(Warm):
    def __call__(self, batch, config):
        return batch.image_ND.sum(1)


class Endless(Warm):
    def __call__(self, batch, config):
        return super().__call__(batch, config) / 0
"""


@pytest.fixture
def own(tmp_path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_a_training_takes_the_loss_of_a_file(world, trained, own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = train(world.config(**{"train.loss": "own.py:Warm", "train.steps": 3}), str(tmp_path / "out"))
    assert run["config"]["train"]["loss"] == f"{own}:Warm"
    assert run["fingerprint"]["loss"] == hashlib.sha256(OWN.encode()).hexdigest()
    assert read_losses(tmp_path / "out")[0] == 2 * read_losses(trained[0])[0]
    assert "Chance among" not in (tmp_path / "out/report.html").read_text()
    assert "loss" not in trained[1]["fingerprint"]


def test_what_is_no_loss_is_refused_before_a_model_is_loaded(world, own, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules[train.__module__], "describe_scorer", None)
    Path("ends.py").write_text("raise SystemExit(3)")
    for named, message in [
        ("none.py:Warm", "no such file; it must be a Python file, FILE.py:NAME"),
        ("own.py:clip_loss", "must name a subclass of raycomp.training.losses.Loss in that file"),
        ("own.py:Loss", "own.py:Loss: must define __call__(self, batch, config)"),
        ("own.py:Hard", "negatives=None: must be a folder that raycomp negatives wrote, which train.loss="),
        ("ends.py:Warm", "ends Python by exit(3); define Warm instead"),
        ("clipp", "triplet, siglip, or FILE.py:NAME; the closest is clip"),
    ]:
        refuse(world.line(tmp_path / "out", **{"train.loss": named}), tmp_path / "out", capsys, message)


def test_what_a_loss_gets_wrong_is_one_line_and_leaves_the_folder_free(world, own, tmp_path, capsys):
    for named, message in [
        ("Late", "own.py:Late: NameError: name 'mistyped' is not defined ("),
        ("Many", "must return a tensor with one number, not Tensor of shape [10]"),
        ("Plain", "must return a tensor with one number, not 1.5"),
        ("Endless", "loss=inf at step 0: must be finite; check model.weights="),
    ]:
        options = {"train.loss": f"{own}:{named}", "train.steps": 3}
        refuse(world.line(tmp_path / "out", **options), tmp_path / "out", capsys, message)
