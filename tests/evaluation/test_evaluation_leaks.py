"""Train and test apart: what an evaluation tests on and was learned from, by the probe or by the model."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors.torch

from raycomp.cli import main
from raycomp.config import ModelConfig, ScorerConfig
from raycomp.core.selection import KEY, Known, key_images, key_texts, merge_keys, warn_leak
from raycomp.data.files import Folder
from raycomp.evaluation.classification import open_linear_probe, open_zeroshot
from raycomp.evaluation.command import find_leaks
from raycomp.evaluation.config import LinearProbeConfig, RetrievalConfig, ZeroshotConfig
from raycomp.evaluation.results import compute_outcomes, name_statuses
from raycomp.evaluation.retrieval import open_retrieval
from raycomp.models.clip import load_start
from raycomp.training.command import TRAINED, write_trained
from tests.corpus import scenes
from tests.evaluation.embedded import invent
from tests.sealed import write_run


def write_files(folder, images: dict[str, list[str]]) -> str:
    """Write a file for every image of a class; what it says are its bytes."""
    for name, contents in images.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i, content in enumerate(contents):
            (folder / name / f"{i:02d}.jpg").write_text(content)
    return str(folder)


def name_images(start: str, num: int = 6) -> dict[str, list[str]]:
    return {label: [f"{start} {label} {i}" for i in range(num)] for label in ("bee", "cat")}


def know(*contents: str, texts: tuple[str, ...] = ()) -> Known:
    """Return a training side of images with these contents."""
    hashes = [hashlib.sha256(one.encode()).hexdigest() for one in contents]
    return Known(merge_keys([key_images(hashes)]), merge_keys([key_texts(texts)]))


def test_dropped_test_images_are_those_of_a_slow_loop_and_the_rest_stays(tmp_path):
    train, test = name_images("train"), name_images("test")
    test["bee"][2], test["cat"][0], test["cat"][5] = train["bee"][1], train["bee"][0], "corrupt"
    train["cat"][3] = "corrupt"  # cannot be learned from, so it leaks nothing
    places = write_files(tmp_path / "train", train), write_files(tmp_path / "test", test)
    warn, drop = (open_linear_probe(LinearProbeConfig(*places), overlap) for overlap in ("warn", "drop"))
    pictures, texts = invent(warn, bad=["train/cat/03.jpg"])
    (leak,) = find_leaks([drop], pictures, None)
    assert leak.shared == (12, 2, 0, 0)
    assert "2 of 12 test images" in warn_leak(leak, "drop")[0] and "(16.7 %)" in warn_leak(leak, "drop")[0]
    rows, kept = warn.grade(pictures, texts).to_pylist(), drop.grade(pictures, texts).to_pylist()
    learned = {content for own in train.values() for content in own} - {"corrupt"}
    for row, other in zip(rows, kept, strict=True):
        label, file = row["id"].split("/")
        if row["split"] == "test" and test[label][int(file[:2])] in learned:
            assert row["status"] == "ok" and other["status"] == "contaminated" and other["rank"] is None
        else:
            assert row == other
    table = drop.grade(pictures, texts)
    assert [part for part in name_statuses(table) if part == "contaminated"] == ["contaminated"] * 2
    assert {len(one.key_N) for one in compute_outcomes(table)} == {10}


def test_images_that_the_model_was_trained_on_are_found_and_left_out_of_every_test(tmp_path):
    classes = write_files(tmp_path / "classes", name_images("a"))
    rows = [{"image": f"bee/{i:02d}.jpg", "captions": [f"A bee {i}!", "buzz"]} for i in range(6)]
    (tmp_path / "classes" / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    others = write_files(tmp_path / "others", name_images("b"))
    trained = know("a bee 0", "a bee 4", "b cat 1", "elsewhere", texts=("a bee 3", "a photo of a CAT"))
    for evaluation, shared, num_lost in (
        (open_zeroshot(ZeroshotConfig(classes)), (12, 2, 2, 1), 2),
        (open_retrieval(RetrievalConfig(f"{classes}/captions.jsonl")), (6, 2, 7, 1), 6),
        (open_linear_probe(LinearProbeConfig(classes, others), "drop"), (12, 1, 0, 0), 1),
    ):
        pictures, texts = invent(evaluation)
        leak = find_leaks([evaluation], pictures, trained)[-1]
        assert leak.shared == shared
        said = f"{evaluation.name}: {shared[1]} of {shared[0]} test images are among the images that the"
        assert warn_leak(leak, "warn")[0].startswith(said)
        before = evaluation.grade(pictures, texts)
        after = evaluation.grade(pictures.bar(trained.image_K), texts)
        assert after["status"].to_pylist().count("contaminated") == num_lost
        assert len(after) == len(before) and set(before["status"].to_pylist()) == {"ok"}
        assert evaluation.grade(pictures.bar(np.zeros(0, KEY)), texts).equals(before, check_metadata=True)


def test_training_images_of_the_probe_are_no_test_of_the_model(tmp_path):
    places = [write_files(tmp_path / name, name_images(name)) for name in ("train", "test")]
    warn, drop = (open_linear_probe(LinearProbeConfig(*places), overlap) for overlap in ("warn", "drop"))
    pictures, texts = invent(drop)
    trained = know(*name_images("train")["bee"], *name_images("train")["cat"])
    leaks = find_leaks([drop], pictures, trained)
    assert [leak.shared.images for leak in leaks] == [0, 0] and warn_leak(leaks[0], "warn") == []
    barred, expected = replace(pictures, barred_K=trained.image_K), drop.grade(pictures, texts)
    for table in (drop.grade(barred, texts), warn.grade(pictures, texts)):
        assert table.equals(expected, check_metadata=True)


def leave_training(folder: Path, scorer: ScorerConfig, images: list[bytes]) -> str:
    """Write what a training of the tiny model on these images would leave."""
    clip = load_start(ModelConfig(scorer.model, scorer.weights))
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint/model.safetensors").write_bytes(safetensors.torch.save(clip.state_dict()))
    shutil.copy(scorer.model, folder / "checkpoint/model.json")
    hashes = [hashlib.sha256(image).hexdigest() for image in images]
    write_trained(Known(merge_keys([key_images(hashes)]), merge_keys([])), Folder(str(folder)))
    return write_run(folder, "train", outputs=("checkpoint", *TRAINED))


def test_images_that_the_model_was_trained_on_are_known_from_its_folder(tiny_scorer, tmp_path, capsys):
    images = [sample["jpg"] for sample in scenes(6, seed=5)]
    for i, image in enumerate(images):
        place = tmp_path / "test" / ("bee", "cat")[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.jpg").write_bytes(image)
    trained = leave_training(tmp_path / "trained", tiny_scorer, [*images[:1], b"elsewhere"])
    words = ["evaluate", f"--set=model.weights={trained}", "--set=benchmarks=zeroshot"]
    words += [f"--set=zeroshot.input={tmp_path}/test", "--set=overlap=drop", f"--out={tmp_path}/out"]
    assert main(words) == 0
    line = "zeroshot: 1 of 6 test images are among the images that the model was trained on (16.7 %)"
    assert line in capsys.readouterr().out
    run = json.loads((tmp_path / "out/run.json").read_text())
    assert run["funnel"]["kept"] == 5 and run["fingerprint"]["trained"] and run["overlap"][0]["images"] == 1
    words[1] = f"--set=model.weights={leave_training(tmp_path / 'everything', tiny_scorer, images)}"
    assert main([*words[:-1], f"--out={tmp_path / 'none'}"]) == 2
    assert "overlap=drop: zeroshot: 6 of 6 test images" in capsys.readouterr().err


def test_one_model_that_was_tested_in_two_ways_is_not_compared_silently(tiny_scorer, tmp_path, capsys):
    """Identical weights: what differs is the gallery, the prompts and the images of the test."""
    images = [sample["jpg"] for sample in scenes(8, seed=5)]
    rows = []
    for i, image in enumerate(images):
        place = tmp_path / "test" / ("bee", "cat")[i % 2] / f"{i}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(image)
        rows.append({"image": f"{place.parent.name}/{i}.jpg", "captions": [f"a scene {i}"]})
    (tmp_path / "test/captions.json").write_text(json.dumps(rows))
    (tmp_path / "photos.txt").write_text("a drawing of a {}.")
    trained = leave_training(tmp_path / "trained", tiny_scorer, images[:3])
    words = ["evaluate", "benchmarks=retrieval,zeroshot", f"retrieval.input={tmp_path}/test/captions.json"]
    words += [f"model.weights={trained}", f"zeroshot.input={tmp_path}/test"]
    more = [], ["overlap=drop"], [f"zeroshot.templates={tmp_path}/photos.txt"]
    for name, own in zip(("whole", "dropped", "prompted"), more, strict=True):
        assert main([*words, *own, "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert main(["compare", *(str(tmp_path / name) for name in ("whole", "dropped", "prompted")),
                 "--out", str(tmp_path / "both")]) == 0  # fmt: skip
    said, alone = capsys.readouterr().out.splitlines(), "the difference is not of the models alone"
    other = f"has zeroshot.templates={tmp_path}/photos.txt"
    for line in (
        f"retrieval: whole has overlap=warn, dropped has overlap=drop; {alone}",
        f"retrieval: whole chose among 8 targets, dropped among 5; fewer targets are easier, {alone}",
        "retrieval: 6 rows are scored in whole alone, 0 in dropped alone; "
        "the difference is over the 10 rows of both",
        f"zeroshot: whole has overlap=warn, dropped has overlap=drop; {alone}",
        f"zeroshot: whole has zeroshot.templates=none, prompted {other}; {alone}",
    ):
        assert line in said, said
    assert not any(
        line.startswith("retrieval: whole") and "prompted" in line and "has" in line for line in said
    )
    assert ", in 0 of 0" not in said[-1] and "differences the interval excludes 0" in said[-1]
    run = json.loads((tmp_path / "both/run.json").read_text())
    assert len(run["warnings"]) == 6, "the rows of zeroshot, too"
