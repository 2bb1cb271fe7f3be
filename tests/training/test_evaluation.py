"""A user's evaluation: which results are numbers, what is refused, and that training stays the same."""

import random
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from raycomp.config import UserError
from raycomp.data.files import Folder
from raycomp.training.config import TrainConfig
from raycomp.training.evaluations import read_results
from raycomp.training.journal import read_metrics
from raycomp.training.loop import Writer, train_rank
from tests.training.fitting import batches, start_trainer, start_writer, write_model

STEPS = 4


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


def run(folder, evaluate) -> tuple[dict[str, torch.Tensor], Writer]:
    """Return the weights that a training with an evaluation, or without one, comes to."""
    model = write_model(folder)
    trainer = start_trainer(model, "clip", num_steps=STEPS, evaluate_steps=2)
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
    plain, _ = run(tmp_path / "plain", None)
    before = random.getstate(), np.random.get_state()[1].tolist()
    evaluated, writer = run(tmp_path / "evaluated", draw_and_seed)
    assert plain.keys() == evaluated.keys()
    assert all(torch.equal(plain[name], evaluated[name]) for name in plain)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    metrics = read_metrics(writer.folder)
    np.testing.assert_array_equal(metrics["step seen"], [np.nan, 2, np.nan, 4])
    assert len(metrics["step"]) == STEPS, "the call before the first step is no line"


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
            run(tmp_path, evaluate)
        assert Folder(str(tmp_path / "out")).read_bytes("metrics.jsonl") == b""
