"""One rank's way through a training: what it writes and when."""

import json
from dataclasses import replace

import pytest
import torch

from raycomp.config import UserError
from raycomp.training.config import TrainConfig
from raycomp.training.journal import list_states
from raycomp.training.loop import train_rank
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


def test_a_step_is_recorded_once_the_next_is_queued(started):
    """At a step with an evaluation or a checkpoint at once: they are of the model after it."""
    trainer, writer, rows = started
    seen = []
    for step in trainer.run(batches(slice(None))):
        writer.take(step)
        seen.append(len(rows))
    assert seen == [0, 1, 3, 3, 4, 6, 7]  # evaluated after 3, 6 and 7 steps


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
