"""``train`` on one worker: what a run leaves, what it refuses, and what a board makes of failed starts."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import main
from raycomp.config import ClusterFailed, ScorerConfig, UserError, override_all
from raycomp.core.selection import Known, count_shared, key_images, key_texts, merge_keys
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.look.show import show
from raycomp.models.clip import Clip
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.training.command import (
    TRAINED,
    gather_keys,
    identify_trained,
    read_trained,
    train,
    warn_of_unused,
    write_trained,
)
from raycomp.training.config import TrainConfig
from raycomp.training.journal import StatusTracker
from raycomp.training.pairs import find_pairs, index_shard
from tests.corpus import scenes
from tests.sealed import seal, write_run
from tests.training.little import OPTIONS, STEPS, as_datacomp, describe_model, read_losses, refuse
from tests.training.pairs import make_image


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
    batch = [*world.line(tmp_path / "out", **{"train.batch_size": 33}), "--dry-run"]
    refuse(batch, tmp_path / "out", capsys, "must be at most the 32 available pairs")
    inside = Path(world.input) / "out"
    refuse(world.line(inside), inside, capsys, "lies inside input=")


def test_negatives_that_the_loss_does_not_use_are_reported():
    named = TrainConfig(negatives="n", negative_images="i")
    said = warn_of_unused(named)
    assert [line.partition(":")[0] for line in said] == ["negatives", "negative_images"]
    assert said[0].endswith("set --loss to negclip or ceclip or triplet")
    assert warn_of_unused(override_all(named, {"train.loss": "triplet"})) == []


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


def leave(folder, known: Known) -> None:
    """Write a finished training that has nothing but its keys."""
    write_trained(known, Folder(str(folder)))
    write_run(folder, "train", outputs=TRAINED)


def index_to(folder, samples: list[dict[str, bytes]]) -> list[str]:
    """Write shards of three samples each and the index of each; return where that lies."""
    for start in range(0, len(samples), 3):
        rows = [(f"{start + i}", one) for i, one in enumerate(samples[start : start + 3])]
        write_tar(str(folder / "in" / f"{start:02d}.tar"), rows)
    pairs = find_pairs(override_all(TrainConfig(), {"input": str(folder / "in")}))
    uris = [str(folder / f"{shard.ordinal}.parquet") for shard in pairs.shards]
    for ordinal, uri in enumerate(uris):
        pq.write_table(index_shard(pairs, ordinal)[0], uri)
    return uris


def test_what_was_learned_is_what_a_loop_over_the_samples_finds(tmp_path):
    (tmp_path / "in").mkdir()
    images = [make_image(i // 2) for i in range(6)]
    samples = [{"jpg": image, "txt": f"Image {i}.".encode()} for i, image in enumerate(images)]
    samples += [{"jpg": b"torn", "txt": b"torn"}, {"jpg": make_image(99), "txt": b" "}]
    samples.append({"jpg": make_image(7), "txt": b"one", "json": b'{"captions": ["two", "three"]}'})
    before = Known(key_texts(["before"]), key_texts(["before"]))
    with use(Local(1)):
        uris = index_to(tmp_path, samples)
        known, more = gather_keys(uris, None), gather_keys(uris, before)
    for own, other, both in zip(known, before, more, strict=True):
        assert {*both.tolist()} == {*own.tolist(), *other.tolist()}, "what a model knew before is kept"
    hashes = {hashlib.sha256(image).digest()[:16] for image in [*images, make_image(7)]}
    assert known.image_K.tolist() == sorted(one.rstrip(b"\0") for one in hashes) and len(hashes) == 4
    texts = ["image 0", *(f"image {i}" for i in range(6)), "two", "three", "one", "torn"]
    assert count_shared(known, known.image_K, key_texts(texts)) == (4, 4, 10, 8)


def test_keys_are_read_as_they_were_written_next_to_the_model_alone(tmp_path):
    hashes = [hashlib.sha256(bytes([i])).hexdigest() for i in range(40)]
    hashes[0] = "ab" * 14 + "00" * 2 + hashes[0][32:]
    known = Known(merge_keys([key_images(hashes)]), merge_keys([key_texts(["a", "b"])]))
    weights = str(tmp_path / "checkpoint/model.safetensors")
    assert read_trained(weights) is None
    leave(tmp_path, known)
    found = read_trained(weights)
    assert found is not None and all((a == b).all() for a, b in zip(found, known, strict=True))
    assert identify_trained(found) == identify_trained(known) != identify_trained(Known(*known[::-1]))
    assert (tmp_path / TRAINED[0]).stat().st_size < 40 * 16 + 200
    for other in (str(tmp_path / "model.safetensors"), "openai", "random:0"):
        assert read_trained(other) is None
    (tmp_path / TRAINED[1]).unlink()
    with pytest.raises(ValueError, match=rf"{TRAINED[1]}: is missing; the run wrote it with"):
        read_trained(weights)
    seal(Folder(str(tmp_path)), ())
    assert read_trained(weights) is None  # a training of before


def test_a_file_that_holds_no_keys_is_named(tmp_path):
    for content in [b"no array", np.array([b"b", b"a"], "S16"), np.arange(3)]:
        leave(tmp_path, Known(merge_keys([]), merge_keys([])))
        with open(tmp_path / TRAINED[1], "wb") as file:
            file.write(content) if isinstance(content, bytes) else np.save(file, content)
        seal(Folder(str(tmp_path)), TRAINED)
        with pytest.raises(ValueError, match=rf"{TRAINED[1]}: does not hold the keys of a training"):
            read_trained(str(tmp_path / "checkpoint/model.safetensors"))
