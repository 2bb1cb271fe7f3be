"""A training that stops at any step goes on to the same bits."""

import pytest
import torch

from raycomp.config.train import FitConfig
from raycomp.loops.train.fit import Trainer
from raycomp.loops.train.state import keep_states, list_states, load_state, save_state
from raycomp.shards.folder import Folder
from tests.loops.test_fit import BATCH, batches, start

STEPS = 6


def make_trainer(scorer, loss="ceclip") -> Trainer:
    config = FitConfig(loss=loss, learning_rate=3e-4)
    return Trainer(start(scorer), config, STEPS, BATCH, num_kinds=3)


def run(trainer: Trainer, until: int) -> list[float]:
    """Take the steps up to ``until``, the batches being those of their steps."""
    left = list(batches(slice(None), trainer.config.loss))[trainer.step : until]
    return [told.loss for told in trainer.run(left)]


@pytest.fixture
def out(tmp_path, bucket, request) -> Folder:
    return Folder(f"{bucket}/train" if getattr(request, "param", "") == "s3" else str(tmp_path / "out"))


@pytest.mark.parametrize("out", ["disk", "s3"], indirect=True)
def test_a_stopped_training_goes_on_to_the_same_bits(tiny_scorer, out):
    whole = make_trainer(tiny_scorer)
    curve = run(whole, STEPS)
    first = make_trainer(tiny_scorer)
    found = run(first, 3)
    save_state(first, out)
    again = make_trainer(tiny_scorer)
    load_state(again, out, 3)
    assert again.objective.margin_S.any()
    assert found + run(again, STEPS) == curve
    for name, value in whole.clip.state_dict().items():
        assert torch.equal(value, again.clip.state_dict()[name]), name


def test_a_state_cut_short_is_none_and_old_ones_go(tiny_scorer, out):
    trainer = make_trainer(tiny_scorer, "clip")
    assert list_states(out) == []
    for _ in range(3):
        run(trainer, trainer.step + 1)
        save_state(trainer, out)
    out.remove("checkpoints", "00000003", "state.json")
    assert list_states(out) == [1, 2]
    keep_states(out, 1)
    assert out.list_names("checkpoints") == ["00000002", "00000003"] and list_states(out) == [2]


@pytest.mark.parametrize("file", ["state.json", "model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "gone", "pickle"])
def test_a_damaged_state_is_one_line(tiny_scorer, out, file, damage):
    trainer = make_trainer(tiny_scorer, "clip")
    run(trainer, 1)
    save_state(trainer, out)
    place = ("checkpoints", "00000001", file)
    content = {"cut": out.read_bytes(*place)[:-9], "pickle": b"\x80\x04K\x01."}.get(damage)
    out.remove(*place)
    if content:
        out.write_bytes(content, *place)
    with pytest.raises(ValueError, match=r"00000001: no state of this training \(.*\); remove it") as error:
        load_state(make_trainer(tiny_scorer, "clip"), out, 1)
    assert "\n" not in str(error.value)
