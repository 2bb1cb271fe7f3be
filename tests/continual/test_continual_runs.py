"""Continual learning in small, through its command: one that is broken off ends as one that is not."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from raycomp.cli import main
from raycomp.config import TooMuchBadData, override_all
from raycomp.continual import command, embed
from raycomp.continual.command import continual
from raycomp.continual.config import ContinualConfig
from raycomp.continual.method import METHODS
from raycomp.data.samples import write_tar
from raycomp.sweep.command import sweep
from raycomp.sweep.config import SweepConfig
from tests.continual.drawn_streams import QUESTIONS, STREAM
from tests.continual.photos import NAMES, write_photos
from tests.drawn import world_shards

CONFIG = override_all(
    ContinualConfig(
        stream=(STREAM, QUESTIONS),
        method=("frozen", "compo-realign", "no-trust", "finetune"),
        seeds=2,
        tune_seeds=1,
        checkpoint_steps=2,
        side_by_side=2,
    ),
    {"head.steps": 3, "head.batch_size": 8, "tune.steps": 1, "tune.batch_size": 4, "trust.first": 2},
)


class Cut(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was broken off after two methods; its streams stay beside it."""
    folder = tmp_path_factory.mktemp("continual")
    config = replace(CONFIG, prepared=str(folder / "prepared"))
    heard: list[str] = []

    def listen(line: str) -> None:
        heard.append(line)
        if sum(": last " in line for line in heard) == 2:
            raise Cut

    with pytest.raises(Cut):
        continual(config, str(folder / "out"), listen)
    again: list[str] = []
    run = continual(config, str(folder / "out"), again.append)
    assert run["status"] == "finished" and run["funnel"]["kept"] == 14
    assert not any("embedded" in line or "made-" in line for line in again), "made a stream again"
    left = [path.name for path in (folder / "prepared").iterdir() if path.name.startswith("embedded")]
    assert not left, "embeddings lie in the streams' arrays"
    return folder


def test_a_command_leaves_runs_a_table_figures_and_a_page(finished):
    out = finished / "out"
    rows = list(csv.DictReader((out / "continual.csv").open()))
    assert {row["track"] for row in rows} == {"world", "questions_function"}
    assert {row["method"] for row in rows} == set(CONFIG.method)
    last = {(row["track"], row["method"]): row for row in rows if row["metric"] == "last"}
    assert last["world", "compo-realign"]["seeds"] == "2" and last["world", "finetune"]["seeds"] == "1"
    lost = {row["method"]: float(row["mean"]) for row in rows if row["metric"] == "forgetting_best"}
    assert lost["frozen"] == 0
    zeros = {
        row["method"]: float(row["mean"])
        for row in rows
        if row["metric"] == "composed margin REPLACE relation zero"
    }
    assert zeros["compo-realign"] == 1 and zeros["frozen"] < 1
    margins = {row["method"]: row["mean"] for row in rows if row["metric"] == "text margin SWAP attribute"}
    assert margins["compo-realign"] == margins["frozen"] != margins["finetune"]
    facts = json.loads((out / "cells/world-no-trust-01.json").read_text())
    whole = json.loads((out / "cells/world-compo-realign-01.json").read_text())
    assert facts["order"] == whole["order"] and facts["backbone"] == whole["backbone"] == 1
    page = (out / "report.html").read_text()
    for title in ("world: results by method", "world: margins", "questions_function: minus frozen"):
        assert title in page
    assert (out / "figures/world.svg").read_text().startswith("<svg xmlns=")
    samples = json.loads((out / "run.json").read_text())["streams"]
    assert all(
        count == {"ok": 16} or count == {"ok": 12}
        for one in samples.values()
        for said, count in one["samples"].items()
        if said != "reference"
    )
    assert all(one["samples"]["reference"]["ok"] for one in samples.values())


def test_streams_that_are_there_are_taken_and_the_figures_are_the_same(finished):
    config = replace(
        CONFIG, prepared=str(finished / "prepared"), method=("frozen", "compo-realign", "finetune")
    )
    heard: list[str] = []
    continual(replace(config, stream=(STREAM,), side_by_side=1), str(finished / "again"), heard.append)
    assert not any("embedded" in line or "made-" in line for line in heard)
    first, second = (
        {
            (row["method"], row["metric"]): row["mean"]
            for row in csv.DictReader((finished / name / "continual.csv").open())
            if row["track"] == "world" and row["metric"] != "seconds"
        }
        for name in ("out", "again")
    )
    assert second and all(first[key] == value for key, value in second.items())


def test_a_stream_embedded_alone_and_after_a_cut_is_that_embedded_next_to_another(
    finished, tmp_path, monkeypatch
):
    (tmp_path / "prepared").mkdir()
    for pattern in ("backbone-*", "made-*"):
        for path in (finished / "prepared").glob(pattern):
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, tmp_path / "prepared" / path.name)
    shutil.move(finished / "prepared", finished / "away")  # the copy names nothing there
    config = replace(CONFIG, prepared=str(tmp_path / "prepared"), stream=(STREAM,), seeds=1)

    def cut(*_):
        raise Cut

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(embed, "embed_texts", cut)
        continual(config, str(tmp_path / "out"), lambda line: None)
    heard: list[str] = []
    continual(config, str(tmp_path / "out"), heard.append)
    shutil.move(finished / "away", finished / "prepared")
    assert any("embedded" in line for line in heard) and not any("made-" in line for line in heard)
    (alone,) = (tmp_path / "prepared").glob("world-*")
    companion = finished / "prepared" / alone.name
    names = sorted(path.name for path in alone.iterdir())
    assert names == sorted(path.name for path in companion.iterdir()) and len(names) > 2
    assert all((alone / name).read_bytes() == (companion / name).read_bytes() for name in names)


def test_rates_are_chosen_on_development_seeds_and_reported_on_others(finished, tmp_path):
    prepared, methods = str(finished / "prepared"), ("frozen", "compo-realign", "no-trust")
    own = replace(CONFIG, prepared=prepared, stream=(STREAM,), method=methods, seeds=1)
    config = override_all(own, {"develop.seeds": 1, "develop.rates": "1,3", "develop.weights": "0.25,1"})
    run = continual(config, str(tmp_path / "out"), lambda line: None)
    chosen = run["chosen"]
    assert set(chosen) == set(methods[1:])
    facts = json.loads((tmp_path / "out/cells/world-compo-realign-00.json").read_text())
    assert {name: facts[name] for name in ("rate", "weight")} == chosen["compo-realign"]
    tried = json.loads((tmp_path / "out/cells/world-compo-realign-01-x3.0.json").read_text())
    assert (tried["rate"], tried["cell"]["seed"], tried["weight"]) == (3, 1, 0.5)
    rows = list(csv.DictReader((tmp_path / "out/continual.csv").open()))
    assert {row["seeds"] for row in rows} == {"1"} and not any("w=" in row["metric"] for row in rows)
    assert "Development seeds: learning and forgetting" in (tmp_path / "out/report.html").read_text()


def test_a_run_whose_methods_had_another_meaning_is_refused(finished, monkeypatch):
    config = replace(CONFIG, prepared=str(finished / "prepared"))
    monkeypatch.setitem(METHODS, "no-trust", METHODS["no-buffer"])
    with pytest.raises(ValueError, match="holds a run that differs in methods; name another folder"):
        continual(config, str(finished / "out"), lambda line: None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model.name": "no-such-model", "model.weights": "random:0"}, "model.name='no-such-model'"),
        ({"model.weights": "/no/such.pt"}, "model.weights='/no/such.pt'"),
        ({"prepared": "/dev/null"}, "prepared='/dev/null': must be a folder; /dev/null is a file"),
        (
            {"prepared": "/dev/null/below"},
            "prepared='/dev/null/below': must be a folder; /dev/null is a file",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_before_ray_starts(options, said, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(command, "connect", refuse)
    for name, samples in world_shards(8, 0, 1):
        write_tar(str(tmp_path / "a" / name), samples)
    stream = {"tasks": [{"name": "a", "train": "a", "test": "a"}]}
    (tmp_path / "mine.json").write_text(json.dumps(stream))
    config = override_all(ContinualConfig(stream=(str(tmp_path / "mine.json"),)), options)
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        continual(config, str(tmp_path / "out"))
    assert type(error.value) is ValueError and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_streams_are_not_made_in_the_folder_of_the_run_that_waits_for_them(tmp_path):
    config = replace(CONFIG, prepared=str(tmp_path))
    with pytest.raises(ValueError, match="must be another folder than out"):
        continual(config, str(tmp_path))
    own = replace(config, method=("compo-realign",))
    asked = SweepConfig(command="continual", space="buffer.size=grid(0,8)", report_seeds=0, continual=own)
    with pytest.raises(ValueError, match="must be another folder than out"):
        sweep(asked, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_stream_of_ones_own_shards_is_learned(finished, tmp_path):

    for number, part in enumerate(("a-train", "a-test", "b-train", "b-test", "c-test")):
        for name, samples in world_shards(20, 0, number, per_shard=20):
            write_tar(str(tmp_path / part / name), samples)
    for _, samples in world_shards(5, 0, 0, per_shard=20):  # scenes of a-train
        write_tar(str(tmp_path / "c-test" / "again.tar"), samples)
    tasks = [{"name": name, "train": f"{name}-train", "test": f"{name}-test"} for name in "ab"]
    stream = {"tasks": tasks, "zero_shot": [{"name": "c", "test": "c-test"}]}
    (tmp_path / "stream.json").write_text(json.dumps(stream))
    settings: dict[str, Any] = {
        "stream": str(tmp_path / "stream.json"),
        "method": "frozen,compo-realign,zscl",
        "model.name": str(next((finished / "prepared").glob("backbone-*/scorer/model.json"))),
        "model.weights": "random:0",
        "order": "given",
        "reference": str(tmp_path / "a-train"),
        "overlap": "drop",
        "head.steps": 2,
        "tune.steps": 1,
        "tune.batch_size": 4,
    }
    heard: list[str] = []
    run = continual(override_all(ContinualConfig(), settings), str(tmp_path / "out"), heard.append)
    facts = next(iter(run["streams"].values()))
    line = "stream, c: 5 of 25 test images are among the training images of a (20.0 %)"
    assert f"{line}; they are left out (overlap=drop)" in run["warnings"] and set(run["warnings"]) <= set(
        heard
    )
    assert facts["samples"]["stream, c, test"] == {"contaminated": 5, "ok": 20}
    assert [one["images"] for one in facts["overlap"]] == [0, 0, 5] and facts["repeats"] == []
    found = facts["samples"]
    assert {said.rpartition("stream, ")[2] for said in found} >= {"a, train", "a, test", "c, test"}
    rows = list(csv.DictReader((tmp_path / "out/continual.csv").open()))
    assert any(row["metric"] == "fused zstd" for row in rows)


def test_a_stream_that_is_there_is_held_to_this_runs_share_of_bad_samples(finished, tmp_path):
    for number, part in enumerate(("train", "test")):
        for name, samples in world_shards(20, 0, number, per_shard=20):
            broken = [(key, {**one, "jpg": b"x"} if i < 4 else one) for i, (key, one) in enumerate(samples)]
            write_tar(str(tmp_path / part / name), broken)
    (tmp_path / "one.json").write_text(
        json.dumps({"tasks": [{"name": "a", "train": "train", "test": "test"}]})
    )
    settings: dict[str, Any] = {
        "stream": str(tmp_path / "one.json"),
        "method": "frozen",
        "model.name": str(next((finished / "prepared").glob("backbone-*/scorer/model.json"))),
        "model.weights": "random:0",
        "prepared": str(tmp_path / "prepared"),
        "max_bad_fraction": 0.5,
    }
    said: list[str] = []
    run = continual(override_all(ContinualConfig(), settings), str(tmp_path / "a"), said.append)
    why = "4 of 20 samples are corrupt_image (the image bytes do not decode); left out"
    assert {f"one, a, {half}: {why}" for half in ("train", "test")} <= {*run["warnings"]} & {*said}
    page = (tmp_path / "a" / "report.html").read_text()
    assert page.count(why) == 2 and "Samples used" in page
    strict = override_all(ContinualConfig(), {**settings, "max_bad_fraction": 0.1})
    with pytest.raises(TooMuchBadData, match=r"one, a, train: 20.0% of 20 samples .*max_bad_fraction=0.1"):
        continual(strict, str(tmp_path / "b"), lambda line: None)


def test_real_photos_are_learned_task_after_task(finished, shared, tmp_path):
    """flickr8k, then photos of the web, then coco, by a tiny model: heads learn, finetune moves the model."""
    write_photos(shared / "data", tmp_path, num=120)
    settings = {
        "stream": str(tmp_path / "photos.json"),
        "method": "frozen,compo-realign,finetune",
        "model.name": str(next((finished / "prepared").glob("backbone-*/scorer/model.json"))),
        "model.weights": "random:0",
        "order": "given",
        "head.steps": 20,
        "tune.steps": 2,
    }
    run = continual(override_all(ContinualConfig(), settings), str(tmp_path / "out"), lambda line: None)
    counts = next(iter(run["streams"].values()))["samples"]
    num_asked = {said.split(", ")[1]: one for said, one in counts.items() if said.endswith("test")}
    assert list(num_asked) == list(NAMES)
    assert [sum(one.values()) for one in num_asked.values()] == [60, 60, 20]
    assert all(one["ok"] >= 0.9 * sum(one.values()) for one in num_asked.values())
    rows = list(csv.DictReader((tmp_path / "out/continual.csv").open()))
    found = {(row["method"], row["metric"]): float(row["mean"]) for row in rows}
    texts = [found[method, "text merged both last"] for method in ("frozen", "compo-realign", "finetune")]
    assert texts[0] == texts[1], "by captions alone a head is the frozen model"
    assert found["compo-realign", "gradient_mean"] > 0 and found["frozen", "forgetting_best"] == 0
    facts = json.loads((tmp_path / "out/cells/photos-finetune-00.json").read_text())
    assert facts["tasks"] == list(NAMES) and facts["order"] == [0, 1, 2]


@pytest.mark.slow
def test_a_sweep_embeds_its_streams_once_and_reports_each_point(tmp_path):
    own = replace(CONFIG, stream=(STREAM,), method=("compo-realign",), seeds=1)
    config = SweepConfig(
        command="continual",
        space="buffer.size=grid(0,4) trust.quantile=grid(0.5,0.9)",
        metric="world.last_minus_frozen",
        seeds=1,
        report_seeds=1,
        continual=own,
    )
    heard: list[str] = []
    run = sweep(config, str(tmp_path / "out"), heard.append)
    assert sum("streams: embedded" in line for line in heard) == 1
    table = pq.read_table(tmp_path / "out/trials.parquet").to_pylist()
    assert len({row["trial"] for row in table}) == 4 and {row["status"] for row in table} == {"finished"}
    assert run["metric"] == "world.last_minus_frozen.all"
    assert not (tmp_path / "out/work").exists()
    best = (tmp_path / "out/best.py").read_text()
    assert "def continual() -> ContinualConfig" in best
    assert "last minus frozen" in (tmp_path / "out/report.html").read_text().replace("_", " ")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "stream=: name a .json file that lists tasks, or FILE.py:NAME, a StreamMaker"),
        (["stream=nowhere"], "stream='nowhere': must be a .json file that lists tasks, or FILE.py:NAME"),
        ([f"stream={__file__}:CONFIG"], "must name a StreamMaker of raycomp.continual.method in that file"),
        (["stream=missing.json"], "missing.json"),
        (["method=compo"], "method='compo': must be one of all, frozen"),
        (["trust.gamma=0"], "trust.gamma=0.0: must be above 0"),
        (["buffer.size=-1"], "buffer.size=-1: must be between 0 and 10,000,000"),
        (["method=zscl", "stream=own.json"], "reference=None: must be set for zscl"),
        (["weight=2"], "weight=2.0: must be between 0 and 1"),
        (["head.mix=caley"], "head.mix='caley': must be one of cayley"),
    ],
)
def test_what_the_user_can_fix_is_reported_in_a_line(settings, said, tmp_path, capsys):
    sets = [part for one in settings for part in ("--set", one)]
    assert main(["continual", *sets, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_store_is_refused(tmp_path, capsys):
    assert main(["continual", "--out", "s3://bucket/out"]) == 2
    assert "needs a folder on a disk that all nodes share" in capsys.readouterr().err
