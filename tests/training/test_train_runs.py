"""``train`` on one worker: what a run leaves, what it refuses, and what a board makes of failed starts."""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

import raycomp
from raycomp.cli import main
from raycomp.config import ClusterFailed, ScorerConfig, UserError, override_all
from raycomp.core.near import Known, key_images, key_texts, merge_keys
from raycomp.data.files import Folder
from raycomp.data.inputs import expand_input
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar
from raycomp.evaluation.command import evaluate
from raycomp.evaluation.config import EvaluateConfig
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
    assert run["funnel"] == {
        "read": 36,
        "corpus": 36,
        "kept": 32,
        "dropped": {"corrupt_image": 1, "duplicate_uid": 2, "no_caption": 1},
    }
    assert run["pairs"] == 32 and run["steps"] == STEPS and run["resumed"] == []
    statuses = [warning.split(" are ")[-1].split(" is ")[-1].split()[0] for warning in run["warnings"]]
    assert statuses == ["corrupt_image", "duplicate_uid", "no_caption"]
    assert "1 of 36 rows is corrupt_image" in (out / "report.html").read_text()
    losses = read_losses(out)
    assert len(losses) == STEPS and losses[-1] == run["last_loss"] < losses[0]
    assert sorted(os.listdir(out / "checkpoints")) == ["00000018", "00000020"]
    assert not (out / "work").exists() and not (out / "lease.json").exists()
    assert "loss" in (out / "report.html").read_text() and "36  read" in "".join(show(str(out)))
    weights = str(out / "checkpoint/model.safetensors")
    Clip(ScorerConfig(model=str(out / "checkpoint/model.json"), weights=weights))
    open_clip.create_model_and_transforms(f"local-dir:{out / 'checkpoint'}")


def test_too_much_bad_data_is_refused_before_a_step_and_leaves_nothing(world, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(world.line(out, max_bad_fraction=0.05)) == 3
    said = capsys.readouterr().err
    assert "input: 5.6% of 36 rows cannot be used (1 corrupt_image, 1 no_caption)" in said
    assert not (out / "run.json").exists() and not (out / "checkpoints").exists()


def test_an_evaluation_knows_the_images_that_its_model_was_trained_on(world, trained, tmp_path):
    out, _ = trained
    known = read_trained(str(out / "checkpoint/model.safetensors"))
    learned = {members["jpg"] for members in scenes(32, seed=3)}
    assert {*known.image_K.tolist()} == {hashlib.sha256(one).digest()[:16].rstrip(b"\0") for one in learned}
    assert {"trained_images.npy", "trained_texts.npy"} <= set(json.loads((out / "manifest.json").read_text()))
    asked = [*scenes(6, seed=3), *scenes(5, seed=4)]
    write_tar(str(tmp_path / "test.tar"), [(f"s{i:02d}", members) for i, members in enumerate(asked)])
    options = {"benchmarks": ("retrieval",), "retrieval.input": str(tmp_path / "test.tar")}
    config = override_all(EvaluateConfig(), {"model.weights": str(out), **options})
    said: list[str] = []
    warned = evaluate(config, str(tmp_path / "warned"), said.append)
    line = "retrieval: 6 of 11 test images are among the images that the model was trained on (54.5 %)"
    assert warned["warnings"] == [f"{line}; overlap=drop leaves them out"] and warned["warnings"][0] in said
    assert warned["funnel"] == {"read": 22, "corpus": 22, "kept": 22, "dropped": {}}
    dropped = evaluate(override_all(config, {"overlap": "drop"}), str(tmp_path / "dropped"))
    assert dropped["funnel"] == {"read": 22, "corpus": 22, "kept": 10, "dropped": {"contaminated": 12}}
    assert dropped["overlap"] == warned["overlap"]
    table = pq.read_table(tmp_path / "dropped/scores/retrieval.parquet")
    assert {*table.filter(pc.equal(table["status"], "ok"))["num_targets"].to_pylist()} == {5}


def test_what_evaluates_is_asked_every_so_many_steps_and_in_the_end(trained):
    out, run = trained
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {row["step"]: row["taken"] for row in rows if "taken" in row} == {7: 8, 15: 16, 19: 20}
    assert [row["step"] for row in run["evaluations"]] == [8, 16, 20]


def test_a_finished_run_is_left_and_another_is_refused(world, trained, tmp_path):
    out, _ = trained
    said: list[str] = []
    options = {"train.checkpoint_steps": 6, "train.evaluate_steps": 8}
    assert train(world.config(**options, **{"train.workers": 2}), str(out), said.append)["workers"] == 1
    assert said == [f"{out} is finished already; nothing to do"]
    with pytest.raises(ValueError, match=r"holds a run that differs in train\.seed"):
        train(world.config(**options, **{"train.seed": 1}), str(out))


def test_training_starts_with_what_a_training_left(world, trained, tmp_path):
    out, run = trained
    config = override_all(TrainConfig(), {"input": world.input, **OPTIONS, "train.steps": 1})
    further = raycomp.train(override_all(config, {"model.weights": str(out)}), str(tmp_path / "further"))
    assert further["config"]["model"]["weights"] == f"{out}/checkpoint/model.safetensors"
    assert further["first_loss"] < run["first_loss"]


def test_every_kind_of_input_is_counted(world, curated, tmp_path, local):
    """Of each the index that batches are made of, made twice: a second start finds what the first wrote."""
    kept = pq.read_table(curated[1] / "subset/kept.parquet")["uid"].to_pylist()
    raycomp.select(str(curated[1]), {"materialize": False}, str(tmp_path / "bare"))
    rows = [row for path in sorted(Path(world.input).iterdir()) for row in _read_good(path)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    not_kept = {"ok": len(kept), "not_in_subset": 90 - len(kept)}
    inputs = {
        str(curated[1]): {"ok": len(kept)},
        str(tmp_path / "bare"): not_kept,
        str(tmp_path / "pairs.parquet"): {"ok": 32, "duplicate_uid": 1},
        world.input: {"ok": 32, "corrupt_image": 1, "no_caption": 1, "duplicate_uid": 2},
    }
    for place, expected in inputs.items():
        work = Folder(str(tmp_path / "work" / str(len(place))))
        for _ in range(2):
            index = make_index(find_pairs(world.config(input=place)), work)
            assert +index.reasons == Counter(expected) and sum(index.rows_S) == expected["ok"], place
        known, before = gather_keys(index.uris, None), key_texts(["before"])
        hashes = [one for uri in index.uris for one in pq.read_table(uri)["image_sha256"].to_pylist()]
        assert len(hashes) == expected["ok"]
        assert (known.image_K == merge_keys([key_images(hashes)])).all()
        both = gather_keys(index.uris, Known(before, before))
        assert {*both.image_K.tolist()} == {*known.image_K.tolist(), *before.tolist()}
        assert len(both.text_K) == len(known.text_K) + 1


def _read_good(path: Path) -> list[dict]:
    """Return the good rows of a shard, as Parquet has them."""
    (shard,) = expand_input(str(path))
    return [
        {"uid": row["uid"], "image": {"bytes": row["image"]}, "caption": row["caption"]}
        for table in read_shard(shard, 100)
        for row in table.to_pylist()
        if row["status"] == "ok" and row["key"] not in ("corrupt", "more")
    ]


def test_bad_input_is_one_line_and_leaves_nothing(world, tmp_path, capsys):
    for options, message in [
        ({"train.batch_size": 33}, "train.batch_size=33: must be at most the 32 available pairs"),
        ({"train.batch_size": 2, "train.workers": 3}, "train.workers=3: must be at most train.batch_size=2"),
        ({"train.loss": "negclip"}, "negatives=None: must be a folder that raycomp negatives wrote"),
        ({"subset": "{tmp}/strange.npy"}, "uids that it names have no pair in"),
        ({"input": "{tmp}/none.parquet"}, "no pairs to train on"),
    ]:
        np.save(tmp_path / "strange.npy", as_datacomp(np.array([[1, 2]], np.uint64)))
        row = {"uid": ["0" * 32], "caption": [""], "image": pa.array([{"bytes": b""}])}
        pq.write_table(pa.table(row), tmp_path / "none.parquet")
        options = {name: str(value).format(tmp=tmp_path) for name, value in options.items()}
        refuse(world.line(tmp_path / "out", **options), tmp_path / "out", capsys, message)


def test_negatives_of_other_pairs_are_refused(world, negatives, tmp_path, capsys):
    line = world.line(tmp_path / "out", **{"negatives": negatives, "train.loss": "negclip"})
    refuse(line, tmp_path / "out", capsys, "negatives: none of the 32 pairs of")


def test_an_output_inside_the_input_is_refused(world, capsys):
    out = Path(world.input) / "out"
    refuse(world.line(out), out, capsys, "lies inside input=")


def test_what_workers_find_is_one_line_and_leaves_nothing(world, trained, tmp_path, capsys):
    for kind, message in [
        ("another architecture", "model.weights="),
        ("truncated", "model.weights="),
        ("pickled", "model.weights="),
        ("not finite", "must be finite; train.learning_rate=1e+30 may be too high"),
    ]:
        weights = (trained[0] / "checkpoint/model.safetensors").read_bytes()
        options = {"train.workers": 1, "model.weights": str(tmp_path / "weights.safetensors")}
        if kind == "another architecture":
            options["model.name"] = str(tmp_path / "wide.json")
            (tmp_path / "wide.json").write_text(json.dumps(describe_model(32)))
        elif kind == "truncated":
            weights = weights[: len(weights) // 2]
        elif kind == "pickled":
            options["model.weights"] = str(tmp_path / "weights.pt")
            torch.save({"state_dict": StatusTracker()}, tmp_path / "weights.pt")
        else:
            options["train.learning_rate"] = 1e30
        (tmp_path / "weights.safetensors").write_bytes(weights)
        refuse(world.line(tmp_path / "out", **options), tmp_path / "out", capsys, message)


def test_a_mistaken_evaluation_ends_before_the_first_step_and_leaves_nothing(world, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"^evaluate: returned 'loss', a column of every step; use a name"):
        train(world.config(), str(out), evaluate=lambda clip, step: {"loss": 1.0})
    assert not out.exists() or not os.listdir(out)


def start(tracker: StatusTracker, step: int) -> bool:
    return tracker.arrive() and tracker.start(step)


def test_a_tracker_ends_what_no_start_fixes():
    tracker = StatusTracker()
    for _ in range(3):
        assert start(tracker, 0)
        tracker.fail("no room", None, is_storage=True)
        tracker.fail("another rank is gone", None)
    assert not start(tracker, 0) and not start(tracker, 0)
    assert (
        str(tracker.status().error)
        == "training failed 3 times between step 0 and the next checkpoint: no room"
    )
    assert isinstance(tracker.status().error, OSError)


def test_a_tracker_ends_starts_that_get_no_further_than_loading():
    tracker = StatusTracker()
    assert start(tracker, 5) and tracker.report({"step": 5})
    for _ in range(3):
        assert tracker.arrive()
        tracker.fail("the storage is down")
    assert not tracker.arrive()
    assert "the storage is down" in str(tracker.status().error)
    tracker = StatusTracker()
    assert [tracker.arrive() for _ in range(5)] == [True] * 4 + [False]
    assert str(tracker.status().error) == (
        "training failed 4 times between its start and the next checkpoint: a worker was lost"
    )
    assert isinstance(tracker.status().error, ClusterFailed)


def test_a_tracker_judges_by_what_ended_the_last_start():
    tracker = StatusTracker()
    for is_storage in (True, True, False):
        assert start(tracker, 0)
        tracker.fail("ended", None, is_storage)
    assert not start(tracker, 0) and isinstance(tracker.status().error, ClusterFailed)


def test_a_tracker_counts_anew_from_each_checkpoint():
    tracker = StatusTracker()
    for step in (0, 0, 0, 10, 10, 10, 20):
        assert start(tracker, step)
    assert [(s["step"], s["why"]) for s in tracker.status().resumed] == [
        *[(0, "a worker was lost")] * 2,
        *[(10, "a worker was lost")] * 3,
        (20, "a worker was lost"),
    ]


def test_a_tracker_wants_no_step_after_what_ends_all():
    tracker = StatusTracker()
    assert start(tracker, 0) and tracker.report({"step": 0})
    tracker.fail("bad", UserError("bad"))
    tracker.fail("later", UserError("later"))
    assert not tracker.report({"step": 1}) and not start(tracker, 0)
    assert str(tracker.status().error) == "bad"
