"""One rank's way through a training: what it writes and when, and a user's evaluation of it."""

import json
import random
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from raycomp.config import UserError
from raycomp.data.files import Folder
from raycomp.training.config import TrainConfig
from raycomp.training.evaluations import read_results
from raycomp.training.journal import list_states, read_metrics
from raycomp.training.loop import Writer, train_rank
from tests.training.fitting import batches, start_trainer, start_writer, write_model

STEPS = 7


@pytest.fixture
def started(tmp_path):
    """A trainer, and what writes for it."""
    model = write_model(tmp_path)
    trainer = start_trainer(model, "clip", num_steps=STEPS)
    fit = replace(trainer.config, keep_checkpoints=9, evaluate_steps=3)
    rows: list[dict] = []
    config = TrainConfig(model=model, train=fit)
    out = str(tmp_path / "out")
    return trainer, start_writer(trainer, config, out, rows.append, lambda clip, step: {"taken": step}), rows


def test_a_checkpoint_is_kept_every_so_many_steps_at_a_warning_and_in_the_end(started):
    """As long as a warning lasts, it is one."""
    trainer, writer, rows = started
    warnings = iter([False, True, True, False, True, True, True])
    train_rank(trainer, batches(slice(None)), 3, writer, lambda: next(warnings))
    assert list_states(writer.folder) == [2, 3, 5, 6, 7] and next(warnings, None) is None
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert [row.get("taken") for row in rows] == [None, None, 3, None, None, 6, 7]
    lines = writer.folder.read_bytes("metrics.jsonl").decode().splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert writer.folder.exists("work", "checkpoint", "model.safetensors")
    assert not writer.folder.exists("checkpoint")  # that is the run's to write, once all is checked


def test_a_bad_step_is_never_kept(started):
    """Neither in a checkpoint nor in an evaluation, though it is judged after it was taken."""
    trainer, writer, rows = started
    spoiled = []

    def spoil():
        if trainer.step == 4:
            spoiled.append(True)
            with torch.no_grad():
                trainer.clip.visual.proj.fill_(torch.nan)
        return False

    with pytest.raises(UserError, match=r"^loss=nan at step 4: must be finite"):
        train_rank(trainer, batches(slice(None)), 5, writer, spoil)
    assert spoiled and len(rows) == 4 and list_states(writer.folder) == []


def test_a_gpu_that_is_too_small_is_reported_in_the_users_words(started, monkeypatch):
    trainer, writer, _ = started

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 9 GiB")

    monkeypatch.setattr(trainer, "_take", fail)
    with pytest.raises(UserError, match=r"^step 0: needs more memory .*train\.accumulate.* 9 GiB\)$"):
        train_rank(trainer, batches(slice(None)), 100, writer)


FEW_STEPS = 4


def test_every_kind_of_number_becomes_a_float_and_anything_else_is_refused():
    quarter = torch.tensor(0.25, dtype=torch.bfloat16, requires_grad=True)
    numbers = [0.25, 1, True, Decimal("0.25"), Fraction(1, 4), quarter, torch.tensor(3), np.array(0.25)]
    numbers += [kind(1) for kind in (np.float32, np.float16, np.int64, np.uint8, np.bool_)]
    for value in [*numbers, float("inf"), np.float32("-inf")]:
        found = read_results({"figure": value})["figure"]
        assert type(found) is float and found == value, value
    assert np.isnan([*read_results({"a": float("nan"), "b": torch.tensor(torch.nan)}).values()]).all()
    for found, message in [
        (None, "returned NoneType; return a dict"),
        ({1: 0.5}, "returned the name 1; a name must be printable text"),
        ({"\ud800": 0.5}, ".* a name must be printable text"),
        ({"a": "0.5"}, "returned 'a' as str; it must be one number"),
        ({"a": 10**400}, "returned 'a' as int; it"),
        ({"a": torch.zeros(2, 3)}, r"returned 'a' as Tensor of shape \(2, 3\); it"),
        ({"samples_per_s": 0.5}, "returned 'samples_per_s', a column of every step; use a name other"),
    ]:
        with pytest.raises(UserError, match=f"^evaluate: {message}") as caught:
            read_results(found)
        assert "\n" not in str(caught.value)


def train_with(folder, evaluate) -> tuple[dict[str, torch.Tensor], Writer]:
    """Return the weights that a training with an evaluation, or without one, comes to."""
    model = write_model(folder)
    trainer = start_trainer(model, "clip", num_steps=FEW_STEPS, evaluate_steps=2)
    config = TrainConfig(model=model, train=trainer.config)
    writer = start_writer(trainer, config, str(folder / "out"), lambda row: None, evaluate)
    train_rank(trainer, batches(slice(None)), 100, writer)
    return trainer.clip.state_dict(), writer


def draw_and_seed(clip, step: int) -> dict[str, float]:
    """Evaluate, drawing from and setting all random states."""
    torch.manual_seed(step)
    np.random.seed(step)
    random.seed(step)
    with torch.enable_grad():
        embedded = clip.encode_image(torch.randn(2, 3, 32, 32))
    return {"size": embedded.norm(), "draw": random.random() + np.random.rand(), "step seen": step}


def test_training_is_the_same_to_the_bit_with_an_evaluation_and_without(tmp_path):
    plain, _ = train_with(tmp_path / "plain", None)
    before = random.getstate(), np.random.get_state()[1].tolist()
    evaluated, writer = train_with(tmp_path / "evaluated", draw_and_seed)
    assert plain.keys() == evaluated.keys()
    assert all(torch.equal(plain[name], evaluated[name]) for name in plain)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    metrics = read_metrics(writer.folder)
    np.testing.assert_array_equal(metrics["step seen"], [np.nan, 2, np.nan, 4])
    assert len(metrics["step"]) == FEW_STEPS, "the call before the first step is no line"


def test_a_mistake_is_found_before_the_first_step(tmp_path):
    def leave(clip, step: int):
        raise SystemExit(0)

    def shift(clip, step: int) -> dict[str, float]:
        clip.visual.conv1.weight += 1
        return {"a": 1.0}

    for evaluate, message in [
        (leave, "^evaluate: SystemExit: 0; the call before the first step, with step 0, failed$"),
        (5, "^evaluate: TypeError: 'int' object is not callable; the call"),
        (lambda clip, step: {"loss": 1.0}, "^evaluate: returned 'loss'"),
        (lambda clip, step: {"a": len(str(clip.half()))}, "^evaluate: changes .* copy.deepcopy"),
        (shift, r"^evaluate: changes visual\.conv1\.weight of"),
        (lambda clip, step: {"a": len(str(clip.requires_grad_(False)))}, r"^evaluate: changes requires_grad"),
    ]:
        with pytest.raises(UserError, match=message):
            train_with(tmp_path, evaluate)
        assert Folder(str(tmp_path / "out")).read_bytes("metrics.jsonl") == b""
