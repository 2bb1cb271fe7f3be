"""``evaluate`` and ``compare`` as commands: a drawn world, real photos, a store, restarts, refusals."""

import csv
import hashlib
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import raycomp
from raycomp.cli import main
from raycomp.config import ModelConfig, TooMuchBadData
from raycomp.data.files import Folder
from raycomp.evaluation import command
from raycomp.evaluation.config import (
    BenchmarkConfig,
    ControlsConfig,
    EvaluateConfig,
    LinearProbeConfig,
    RetrievalConfig,
    ZeroshotConfig,
)
from raycomp.evaluation.embed import embed_texts
from raycomp.models.clip import Clip
from tests.corpus import write_world_shards
from tests.drawn import WORLD, write_test_set
from tests.sealed import seal

NUM_SCENES = 12


@pytest.fixture(scope="module")
def model(tiny_scorer) -> ModelConfig:
    return ModelConfig(tiny_scorer.model, tiny_scorer.weights)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("world")
    write_test_set(str(folder), NUM_SCENES, 0)
    return str(folder)


@pytest.fixture(scope="module")
def config(model, world) -> EvaluateConfig:
    return EvaluateConfig(model, (WORLD,), own=BenchmarkConfig(world))


@pytest.fixture(scope="module")
def evaluated(config, tmp_path_factory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("evaluated") / "out"
    return out, raycomp.evaluate(config, str(out))


def read_table(out: Path) -> list[dict]:
    return list(csv.DictReader((out / "table.csv").open()))


def digest(folder: Folder) -> str:
    files = [folder.read_bytes("scores", "world.parquet"), folder.read_bytes("table.csv")]
    return hashlib.sha256(b"".join(files)).hexdigest()


def test_every_cosine_on_real_photos_is_that_of_a_plain_loop(shared, model, tmp_path):
    files = shared / "data" / "benchmarks" / "sugarcrepe", shared / "data" / "coco_val_40"
    config = EvaluateConfig(
        model,
        ("sugarcrepe",),
        sugarcrepe=BenchmarkConfig(*map(str, files)),
        controls=ControlsConfig(str(shared / "data" / "flickr8k_800" / "captions.jsonl")),
    )
    said: list[str] = []
    run = command.evaluate(config, str(tmp_path / "out"), said.append)
    assert run["funnel"] == {"read": 7511, "corpus": 7511, "kept": 68, "dropped": {"no_image": 7443}}
    rows = [row for row in pq.read_table(tmp_path / "out" / "scores").to_pylist() if row["positive_scores"]]
    expected, found = [], []
    for row in rows:
        texts = row["positives"] + row["negatives"]
        expected += list(score_plainly(model, files[1] / "images" / row["image"], texts))
        found += row["positive_scores"] + row["negative_scores"]
    assert len(rows) == 68
    assert found == pytest.approx(expected, abs=1e-6)
    lines = read_table(tmp_path / "out")
    assert {line["n"] for line in lines if line["split"] == "micro"} == {"68"}
    adds = {line["control"]: float(line["value"]) for line in lines if line["split"] == "add"}
    best = max(adds[name] for name in ("shorter_caption", "unigram", "bigram"))
    (printed,) = [line for line in said if line.startswith(f"sugarcrepe: accuracy, add {adds['']:.4f} [")]
    assert f"; best text-only baseline {best:.3f} (" in printed
    assert "add: the mean of add_att, add_obj." in (tmp_path / "out" / "report.html").read_text()


def score_plainly(model: ModelConfig, photo: Path, texts: list[str]) -> np.ndarray:
    open_clip.add_model_config(model.name)
    torch.manual_seed(int(model.weights.removeprefix("random:")))
    clip, _, preprocess = open_clip.create_model_and_transforms(Path(model.name).stem)
    with torch.inference_mode():
        image_1D = clip.eval().encode_image(preprocess(Image.open(photo)).unsqueeze(0), normalize=True)
        text_TD = clip.encode_text(open_clip.tokenize(texts), normalize=True)
    return (image_1D @ text_TD.T)[0].numpy()


def test_the_little_world_has_a_line_of_every_metric_and_control(evaluated):
    out, run = evaluated
    rows = pq.read_table(out / "scores" / "world.parquet").to_pylist()
    assert run["funnel"]["kept"] == len(rows) > 5 * NUM_SCENES
    lines = read_table(out)
    assert {line["metric"] for line in lines} == {"accuracy", "augmented_accuracy", "brittleness", "tot"}
    assert {line["control"] for line in lines} == {"", "shorter_caption", "shuffled_image", "mean_image"}
    places = {(line["split"], line["metric"], line["control"]): line for line in lines}
    right = np.mean([row["positive_scores"][0] > row["negative_scores"][0] for row in rows])
    assert float(places["micro", "accuracy", ""]["value"]) == pytest.approx(right)
    assert json.loads((out / "run.json").read_text())["preprocessing"]["height"] == 32
    assert not (out / "work").exists()


def test_a_run_that_was_cut_off_goes_on_to_the_same_bytes(config, evaluated, monkeypatch, tmp_path):
    out = str(tmp_path / "out")

    def fail(*_: object) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(command, "embed_texts", fail)
        with pytest.raises(OSError, match="the store is away"):
            raycomp.evaluate(config, out)
    assert Folder(out).list_names("work", "waves") == ["pictures-00000000.json"]
    monkeypatch.setattr(Clip, "embed_pixels", fail)  # in this process alone: nothing is embedded here
    raycomp.evaluate(config, out)
    assert digest(Folder(out)) == digest(Folder(str(evaluated[0])))


def test_s3_in_and_out_and_other_blocks_and_waves_change_no_byte(config, evaluated, bucket, tmp_path):
    names = Folder(config.own.annotations)
    for name in names.find_names():
        Folder(f"{bucket}/world").write_bytes(names.read_bytes(name), *name.split("/"))
    options = {
        "model.name": config.model.name,
        "model.weights": config.model.weights,
        "benchmarks": WORLD,
        "own.annotations": f"{bucket}/world",
        "cluster.block_rows": 5,
        "waves.shards_per_wave": 1,
    }
    line = ["evaluate", *(f"--set={name}={value}" for name, value in options.items())]
    assert main([*line, "--out", f"{bucket}/evaluated"]) == 0
    assert digest(Folder(f"{bucket}/evaluated")) == digest(Folder(str(evaluated[0])))


def test_classes_and_captions_are_found_and_learned(config, tmp_path):
    images = sorted((Path(config.own.annotations) / "images").iterdir())
    for number, image in enumerate(images):
        folder = tmp_path / "classes" / ("blue_things", "red_things")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / image.name).write_bytes(image.read_bytes())
    (tmp_path / "classes" / "red_things" / "torn.jpg").write_bytes(b"\xff\xd8 torn")
    classes, templates = str(tmp_path / "classes"), tmp_path / "templates.txt"
    templates.write_text("a photo of a {}.\na photo of many {}" + " and others" * 80)
    asked = replace(
        config,
        benchmarks=("zeroshot", "retrieval", "linear_probe"),
        zeroshot=ZeroshotConfig(classes, templates=str(templates)),
        retrieval=RetrievalConfig(write_world_shards(tmp_path / "pairs", 12, 6)),
        linear_probe=LinearProbeConfig(classes, classes),
    )
    said: list[str] = []
    with pytest.raises(TooMuchBadData, match=r"^zeroshot: 7\.7% of 13 present images .*=0\.05"):
        command.evaluate(asked, str(tmp_path / "out"), said.append)
    asked = replace(asked, max_bad_fraction=0.08)
    run = command.evaluate(asked, str(tmp_path / "out"), said.append)
    noise, *lost, leak, cut = run["warnings"]
    said_cut = "2 of 16 texts are longer than its context, such as a photo of many blue things and others"
    assert said_cut in cut and cut in said
    why = "1 of 13 images is corrupt_image (the image bytes do not decode), such as red_things/torn.jpg"
    names = ("zeroshot", "linear_probe.train", "linear_probe.test")
    assert lost == [f"{name}: {why}; left out" for name in names]
    assert leak.startswith("linear_probe: 12 of 12 test images are among the training images (100.0 %)")
    assert (
        {*lost, leak} < {*said}
        and noise[:-1].lower() in run["headline"]
        and why in (tmp_path / "out" / "report.html").read_text()
    )
    # Of each image of a class a row, twice; of each pair one of its image and one of its caption.
    assert run["funnel"]["kept"] == 2 * len(images) + 24
    assert run["funnel"]["dropped"] == {"corrupt_image": 3}
    lines = {(line["benchmark"], line["metric"]): line for line in read_table(tmp_path / "out")}
    assert (lines["zeroshot", "acc1"]["n"], lines["zeroshot", "acc1"]["num_all"]) == ("12", "13")
    assert float(lines["retrieval", "image_retrieval_recall@1"]["chance"]) == pytest.approx(1 / 12)
    assert float(lines["linear_probe", "acc1"]["value"]) > 0.5
    assert [(one["test"], one["images"]) for one in run["overlap"]] == [("linear_probe", len(images))]


def test_files_that_change_under_a_run_are_reported(config, monkeypatch, tmp_path):
    write_test_set(str(tmp_path / "world"), 3, 0)
    file = tmp_path / "world/world.json"

    def change(*arguments: object) -> object:
        file.write_text(file.read_text().replace('"caption": "', '"caption": "no ', 1))
        return embed_texts(*arguments)

    monkeypatch.setattr(command, "embed_texts", change)
    with pytest.raises(ValueError, match=r"^world: changed during the run"):
        raycomp.evaluate(replace(config, own=BenchmarkConfig(str(file.parent))), str(tmp_path / "out"))


def test_two_models_are_compared(config, evaluated, tmp_path, capsys):
    runs = [evaluated[0], tmp_path / "other"]
    raycomp.evaluate(replace(config, model=replace(config.model, weights="random:7")), str(runs[1]))
    assert main(["compare", *map(str, runs), "--out", str(tmp_path / "both")]) == 0
    assert "differences the interval excludes 0" in capsys.readouterr().out
    lines = {(line["split"], line["metric"]): line for line in read_table(tmp_path / "both")}
    micro = lines["micro", "accuracy"]
    places = ("micro", "accuracy", "")
    first, second = (
        float(line["value"])
        for run in runs
        for line in read_table(run)
        if (line["split"], line["metric"], line["control"]) == places
    )
    assert (float(micro["reference_value"]), float(micro["run_value"])) == pytest.approx((first, second))
    assert float(micro["low"]) < second - first < float(micro["high"])
    assert (tmp_path / "both" / "report.html").read_text().count("data:image/jpeg") > 5


def test_a_comparison_outlives_the_images_and_starts_nothing_where_scores_are_gone(
    evaluated, tmp_path, capsys
):
    folders = [tmp_path / name for name in ("a b", "other")]
    for folder in folders:
        shutil.copytree(evaluated[0], folder)
    table = pq.read_table(folders[1] / "scores")
    scores = pa.array([[-score for score in row.as_py()] for row in table["positive_scores"]])
    place = table.column_names.index("positive_scores")
    turned = table.set_column(place, table.schema.field(place), scores.cast(table.schema.types[place]))
    pq.write_table(turned, folders[1] / "scores/world.parquet")
    for folder in folders:
        run = json.loads((folder / "run.json").read_text())
        run["config"]["own"]["annotations"] = str(tmp_path)
        (folder / "run.json").write_text(json.dumps(run))
        seal(Folder(str(folder)), ("scores", "table.csv"))
    run = raycomp.compare(*map(str, folders), out=str(tmp_path / "both"))
    assert shlex.split(run["commands"]["Rerun"])[2] == str(folders[0])
    noise, warning = run["warnings"]
    title = (tmp_path / "both/report.html").read_text().partition("<h1>")[2]
    assert noise.startswith("Random weights (random:0)") and title.startswith(noise)
    assert title.count("is noise.") == 1
    assert warning.startswith("world: images cannot be shown: ") and "none of 9 named images" in warning
    (folders[1] / "scores" / "world.parquet").unlink()
    assert main(["compare", *map(str, folders), "--out", str(tmp_path / "again")]) == 2
    assert "world.parquet: is missing; the run wrote it" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_what_the_user_can_fix_is_reported_in_a_line(config, evaluated, tmp_path, capsys):
    own = {"model.name": config.model.name, "model.weights": config.model.weights, "benchmarks": WORLD}
    own |= {"own.annotations": config.own.annotations}
    lists = shutil.copytree(
        config.own.annotations, tmp_path / "lists", ignore=shutil.ignore_patterns("*.jpg")
    )
    for name, value, said in (
        ("benchmarks", "", "benchmarks: must name at least one of sugarcrepe"),
        ("benchmarks", "suggarcrepe", "benchmarks='suggarcrepe': must be one of sugarcrepe"),
        ("benchmarks", "cola", "cola.annotations: must name the folder of its annotation files"),
        ("own.annotations", f"{lists}", "the folder of annotations by default; set --own.images"),
        ("own.images", f"{tmp_path}", "none of 12 named images was found, such as 00000.jpg"),
    ):
        sets = [f"--set={option}={text}" for option, text in {**own, name: value}.items()]
        assert main(["evaluate", *sets, "--out", str(tmp_path / "out")]) == 2
        reported = capsys.readouterr().err.splitlines()
        assert len(reported) == 1 and said in reported[0], reported
        assert not (tmp_path / "out").exists()
    for second, said in ((str(tmp_path), "holds no finished run"), ("", "a folder's name is empty")):
        assert main(["compare", str(evaluated[0]), second, "--out", str(tmp_path / "both")]) == 2
        assert said in capsys.readouterr().err
