"""A training that stops at any step goes on to the same bits."""

from contextlib import contextmanager
from threading import Event
from unittest.mock import MagicMock

import pytest
import torch

from raycomp.config import ModelConfig
from raycomp.data.files import Folder, new_path
from raycomp.training import journal, loop
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.training.journal import list_states
from raycomp.training.loop import StateWriter, copy_state, load_state, write_state
from tests.training.fitting import run, start_trainer, start_writer, write_dropping_model, write_model

STEPS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ModelConfig:
    return write_dropping_model(tmp_path_factory.mktemp("model"))


def make_trainer(model: ModelConfig, loss: str = "ceclip", **options):
    return start_trainer(model, loss, num_steps=STEPS, **options)


@pytest.fixture
def out(tmp_path) -> Folder:
    return Folder(str(tmp_path / "out"))


def test_a_stopped_training_goes_on_to_the_same_bits(model, out):
    options = {"accumulate": 3, "lora_rank": 2, "freeze": ("text:2",)}
    whole, first, again = (make_trainer(model, **options) for _ in range(3))
    curve, found = run(whole, until=STEPS), run(first, until=3)
    write_state(copy_state(first), out)
    load_state(again, out, 3)
    assert again.objective.loss.margin_S.any()
    assert found + run(again, until=STEPS) == curve
    for name, value in whole.clip.state_dict().items():
        assert torch.equal(value, again.clip.state_dict()[name]), name


def test_ranks_go_on_to_the_same_bits(of_ranks):
    first = of_ranks[0]["resumed"][0]
    for whole, again in (one["resumed"] for one in of_ranks):
        assert whole["losses"] == again["losses"] == first["losses"]
        for name, value in whole["weights"].items():
            assert value.equal(again["weights"][name]) and value.equal(first["weights"][name]), name


def test_a_training_leaves_no_half_written_state_of_any_step(model, out, monkeypatch):
    """Killed while it wrote one of a later step, and again once the last was written."""
    monkeypatch.setattr(loop, "finish", lambda *_: None)
    monkeypatch.setattr(loop, "fetch_model", lambda model: model)
    config = TrainConfig(input="x", model=model, train=FitConfig(keep_checkpoints=2, batch_size=2))
    for step in (1, 2, 6, 9):
        out.write_bytes(b"half", "checkpoints", f"{step:08d}", "model.safetensors")
    trainer = make_trainer(model, "clip")
    run(trainer, until=3)
    monkeypatch.setattr(journal, "MetricsLog", MagicMock())
    writer = start_writer(trainer, config, out.uri, lambda reported: None)
    writer.keep()
    writer.states.wait()
    assert out.list_names("checkpoints") == ["00000003"]
    out.write_bytes(b"half", "checkpoints", "00000001", "model.safetensors")
    writer.close()
    assert out.list_names("checkpoints") == ["00000003"]


def test_a_damaged_or_foreign_state_is_one_line(model, out, tmp_path):
    trainer, again = make_trainer(model, "clip"), make_trainer(model, "clip")
    run(trainer, until=1)
    for file, damage in [
        ("state.json", "gone"),
        ("state.json", "cut"),
        ("model.safetensors", "cut"),
        ("optimizer.safetensors", "pickle"),
    ]:
        write_state(copy_state(trainer), out)
        place = ("checkpoints", "00000001", file)
        content = {"cut": out.read_bytes(*place)[:-9], "pickle": b"\x80\x04K\x01."}.get(damage)
        out.remove(*place)
        if content:
            out.write_bytes(content, *place)
        with pytest.raises(ValueError, match=r"00000001: is damaged or cut off .*; remove it") as error:
            load_state(again, out, 1)
        assert "\n" not in str(error.value), (file, damage)
    write_state(copy_state(trainer), out)
    other = make_trainer(write_model(tmp_path, "other", embed_dim=16), "clip")
    slower = make_trainer(model, "clip", learning_rate=0.01)
    for one, said in [
        (slower, r"its run has train\.learning_rate=0\.0003, not 0\.01"),
        (start_trainer(model, "clip", num_steps=7), r"its run has train\.steps=6, not 7"),
        (other, r"00000001: belongs to another training \(.*size mismatch"),
    ]:
        with pytest.raises(ValueError, match=said):
            load_state(one, out, 1)
    load_state(make_trainer(model, "clip", checkpoint_steps=9, workers=4), out, 1)


def test_training_goes_on_while_a_state_is_written(model, out, monkeypatch):
    """The state is that of its step, whatever is trained meanwhile; the next one waits for it, and raises its
    error."""
    trainer, again, free = make_trainer(model), make_trainer(model), Event()

    @contextmanager
    def slow(uri: str):
        with new_path(uri) as path:
            yield path
            if "optimizer" in uri:
                assert free.wait(60)
            if "00000006" in uri:
                raise OSError(28, "No space left on device", uri)

    monkeypatch.setattr(loop, "new_path", slow)
    run(trainer, until=2)
    expected = {name: value.clone() for name, value in trainer.clip.state_dict().items()}
    states = StateWriter(out, 2)
    states.write(trainer, lambda: None)
    run(trainer, until=4)
    assert list_states(out) == []
    free.set()
    states.write(trainer, lambda: None)
    assert 2 in list_states(out)
    states.wait()
    load_state(again, out, 2)
    assert all(value.equal(expected[name]) for name, value in again.clip.state_dict().items())
    run(trainer, until=6)
    states.write(trainer, lambda: None)
    with pytest.raises(OSError, match="No space left"):
        states.write(trainer, lambda: None)
    states.stop()
    assert list_states(out) == [2, 4]
