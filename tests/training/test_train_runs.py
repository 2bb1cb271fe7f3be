"""``train`` on one worker: what a run leaves, what it refuses, and what a board makes of failed starts."""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import main
from raycomp.config import ClusterFailed, ScorerConfig, UserError, override_all
from raycomp.core.near import Known, key_images, key_texts, merge_keys
from raycomp.data.files import Folder
from raycomp.look.show import show
from raycomp.models.clip import Clip
from raycomp.training.command import gather_keys, read_trained, train
from raycomp.training.config import TrainConfig
from raycomp.training.journal import StatusTracker
from raycomp.training.pairs import find_pairs, make_index
from tests.corpus import scenes
from tests.training.little import OPTIONS, STEPS, as_datacomp, describe_model, read_losses, refuse


def test_a_run_leaves_a_model_its_curve_and_a_funnel_that_adds_up(world, trained):
    out, run = trained
    dropped = {"corrupt_image": 1, "duplicate_uid": 2, "no_caption": 1}
    assert run["funnel"] == {"read": 36, "corpus": 36, "kept": 32, "dropped": dropped}
    assert run["pairs"] == 32 and run["steps"] == STEPS and run["resumed"] == []
    statuses = [warning.split(" are ")[-1].split(" is ")[-1].split()[0] for warning in run["warnings"]]
    assert statuses == [*dropped]
    assert "1 of 36 rows is corrupt_image" in (out / "report.html").read_text()
    losses = read_losses(out)
    assert len(losses) == STEPS and losses[-1] == run["last_loss"] < losses[0]
    assert sorted(os.listdir(out / "checkpoints")) == ["00000018", "00000020"]
    assert not (out / "work").exists() and not (out / "lease.json").exists()
    assert "36  read" in "".join(show(str(out)))
    weights = str(out / "checkpoint/model.safetensors")
    Clip(ScorerConfig(model=str(out / "checkpoint/model.json"), weights=weights))
    open_clip.create_model_and_transforms(f"local-dir:{out / 'checkpoint'}")
    learned = {members["jpg"] for members in scenes(32, seed=3)}
    hashes = {hashlib.sha256(one).digest()[:16].rstrip(b"\0") for one in learned}
    assert {*read_trained(weights).image_K.tolist()} == hashes
    assert {"trained_images.npy", "trained_texts.npy"} <= set(json.loads((out / "manifest.json").read_text()))


def test_too_much_bad_data_is_refused_before_a_step_and_leaves_nothing(world, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(world.line(out, max_bad_fraction=0.05)) == 3
    said = capsys.readouterr().err
    assert "input: 5.6% of 36 rows cannot be used (1 corrupt_image, 1 no_caption)" in said
    assert not (out / "run.json").exists() and not (out / "checkpoints").exists()


def test_a_finished_run_is_left_another_refused_and_its_model_trained_on(world, trained, tmp_path):
    out, run = trained
    said: list[str] = []
    options = {"train.checkpoint_steps": 6, "train.evaluate_steps": 8}
    assert train(world.config(**options, **{"train.workers": 2}), str(out), said.append)["workers"] == 1
    assert said == [f"{out} is finished already; nothing to do"]
    with pytest.raises(ValueError, match=r"holds a run that differs in train\.seed"):
        train(world.config(**options, **{"train.seed": 1}), str(out))
    config = override_all(TrainConfig(), {"input": world.input, **OPTIONS, "train.steps": 1})
    further = raycomp.train(override_all(config, {"model.weights": str(out)}), str(tmp_path / "further"))
    assert further["config"]["model"]["weights"] == f"{out}/checkpoint/model.safetensors"
    assert further["first_loss"] < run["first_loss"]


def test_a_second_start_finds_the_index_of_the_first(world, tmp_path, local):
    for _ in range(2):
        index = make_index(find_pairs(world.config()), Folder(str(tmp_path / "work")))
        expected = {"ok": 32, "corrupt_image": 1, "no_caption": 1, "duplicate_uid": 2}
        assert +index.reasons == Counter(expected) and sum(index.rows_S) == 32
    known, before = gather_keys(index.uris, None), key_texts(["before"])
    hashes = [one for uri in index.uris for one in pq.read_table(uri)["image_sha256"].to_pylist()]
    assert (known.image_K == merge_keys([key_images(hashes)])).all()
    both = gather_keys(index.uris, Known(before, before))
    assert {*both.image_K.tolist()} == {*known.image_K.tolist(), *before.tolist()}
    assert len(both.text_K) == len(known.text_K) + 1


def test_bad_input_is_one_line_and_leaves_nothing(world, trained, negatives, tmp_path, capsys):
    np.save(tmp_path / "strange.npy", as_datacomp(np.array([[1, 2]], np.uint64)))
    row = {"uid": ["0" * 32], "caption": [""], "image": pa.array([{"bytes": b""}])}
    pq.write_table(pa.table(row), tmp_path / "none.parquet")
    (tmp_path / "wide.json").write_text(json.dumps(describe_model(32)))
    weights = trained[0] / "checkpoint/model.safetensors"
    for options, message in [
        ({"train.batch_size": 33}, "train.batch_size=33: must be at most the 32 available pairs"),
        ({"train.batch_size": 2, "train.workers": 3}, "train.workers=3: must be at most train.batch_size=2"),
        ({"subset": str(tmp_path / "strange.npy")}, "uids that it names have no pair in"),
        ({"input": str(tmp_path / "none.parquet")}, "no pairs to train on"),
        ({"negatives": negatives, "train.loss": "negclip"}, "negatives: none of the 32 pairs of"),
        ({"model.name": tmp_path / "wide.json", "model.weights": weights}, "model.weights="),
        ({"train.learning_rate": 1e30}, "must be finite; train.learning_rate=1e+30 may be too high"),
    ]:
        line = world.line(tmp_path / "out", **{"train.workers": 1, **options})
        refuse(line, tmp_path / "out", capsys, message)
    inside = Path(world.input) / "out"
    refuse(world.line(inside), inside, capsys, "lies inside input=")


def start(tracker: StatusTracker, step: int) -> bool:
    return tracker.arrive() and tracker.start(step)


def test_a_tracker_ends_what_no_start_fixes():
    """Of three starts without a new checkpoint the last one judges the storage; loading counts, too."""
    for storage, kind in [((True, True, True), OSError), ((True, True, False), ClusterFailed)]:
        tracker = StatusTracker()
        for is_storage in storage:
            assert start(tracker, 5) and tracker.report({"step": 5})
            tracker.fail("no room", None, is_storage)
            tracker.fail("another rank is gone", None)
        assert not start(tracker, 5) and not tracker.arrive() and type(tracker.status().error) is kind
        said = "training failed 3 times between step 5 and the next checkpoint: no room"
        assert str(tracker.status().error) == said
    tracker = StatusTracker()
    assert [tracker.arrive() for _ in range(5)] == [True] * 4 + [False]
    said = "training failed 4 times between its start and the next checkpoint: a worker was lost"
    assert str(tracker.status().error) == said and type(tracker.status().error) is ClusterFailed


def test_a_tracker_counts_anew_from_each_checkpoint_until_an_error_ends_all():
    tracker = StatusTracker()
    for step in (0, 0, 0, 10, 10, 10, 20):
        assert start(tracker, step)
    lost = "a worker was lost"
    found = [(one["step"], one["why"]) for one in tracker.status().resumed]
    assert found == [*[(0, lost)] * 2, *[(10, lost)] * 3, (20, lost)]
    tracker.fail("bad", UserError("bad"))
    tracker.fail("later", UserError("later"))
    assert not tracker.report({"step": 21}) and not start(tracker, 20)
    assert str(tracker.status().error) == "bad"
