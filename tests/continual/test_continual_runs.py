"""Continual learning in small, through its command: one that is broken off ends as one that is not."""

import csv
import json
import re
import shutil
from collections.abc import Callable
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
from raycomp.continual.method import FULL, METHODS
from raycomp.data.samples import write_tar
from raycomp.sweep.command import sweep
from raycomp.sweep.config import SweepConfig
from tests.continual.drawn_streams import QUESTIONS, STREAM
from tests.continual.streams import task
from tests.drawn import world_shards

CONFIG = override_all(
    ContinualConfig(
        stream=(STREAM, QUESTIONS),
        method=("frozen", FULL, "finetune"),
        seeds=2,
        tune_seeds=1,
        checkpoint_steps=2,
        side_by_side=2,
    ),
    {"head.steps": 3, "head.batch_size": 8, "tune.steps": 1, "tune.batch_size": 4, "trust.first": 2},
)


class Cut(Exception):
    """Stands for a kill."""


def ignore(line: str) -> None:
    """Say nothing."""


def read_csv(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "continual.csv").open()))


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

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        patch.setattr("lab.continual.streams._NUM_HELD_OUT", 64)  # fewer pairs are quicker
        continual(config, str(folder / "out"), listen)
    again: list[str] = []
    run = continual(config, str(folder / "out"), again.append)
    assert run["status"] == "finished" and run["funnel"]["kept"] == 10
    assert not any("embedded" in line or "made-" in line for line in again), "made a stream again"
    left = [path.name for path in (folder / "prepared").iterdir() if path.name.startswith("embedded")]
    assert not left, "embeddings lie in the streams' arrays"
    return folder


def test_a_command_leaves_runs_a_table_figures_and_a_page(finished):
    out, found = finished / "out", {}
    for row in read_csv(out):
        found.setdefault((row["track"], row["metric"]), {})[row["method"]] = row
    assert {track for track, _ in found} == {"world", "questions_function"}
    seeds = {name: row["seeds"] for name, row in found["world", "last"].items()}
    assert seeds == {"frozen": "2", FULL: "2", "finetune": "1"}
    assert float(found["world", "forgetting_best"]["frozen"]["mean"]) == 0
    zeros = found["world", "composed margin REPLACE relation zero"]
    assert float(zeros[FULL]["mean"]) == 1 > float(zeros["frozen"]["mean"])
    margins = {name: row["mean"] for name, row in found["world", "text margin SWAP attribute"].items()}
    assert margins[FULL] == margins["frozen"] != margins["finetune"]
    page = (out / "report.html").read_text()
    assert all(title in page for title in ("world: results by method", "questions_function: minus frozen"))
    assert (out / "figures/world.svg").read_text().startswith("<svg xmlns=")
    for one in json.loads((out / "run.json").read_text())["streams"].values():
        assert one["samples"].pop("reference")["ok"] and all(len(num) == 1 for num in one["samples"].values())


def test_a_stream_embedded_alone_and_after_a_cut_is_that_embedded_next_to_another(
    finished, tmp_path, monkeypatch
):
    (tmp_path / "prepared").mkdir()
    for path in (finished / "prepared").iterdir():
        if path.name.startswith(("backbone-", "made-")):
            copy: Callable = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, tmp_path / "prepared" / path.name)
    shutil.move(finished / "prepared", finished / "away")  # the copy names nothing there
    config = replace(CONFIG, prepared=str(tmp_path / "prepared"), stream=(STREAM,), seeds=1, side_by_side=1)

    def cut(*_):
        raise Cut

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(embed, "embed_texts", cut)
        continual(config, str(tmp_path / "out"), ignore)
    heard: list[str] = []
    continual(config, str(tmp_path / "out"), heard.append)
    shutil.move(finished / "away", finished / "prepared")
    assert any("embedded" in line for line in heard) and not any("made-" in line for line in heard)
    (alone,) = (tmp_path / "prepared").glob("world-*")
    both = (alone, finished / "prepared" / alone.name)
    files, others = ({path.name: path.read_bytes() for path in one.iterdir()} for one in both)
    assert files == others and len(files) > 2
    for method in CONFIG.method:
        cells = (one / f"cells/world-{method}-00.parquet" for one in (tmp_path / "out", finished / "out"))
        one, other = (str(pq.read_table(cell).to_pylist()) for cell in cells)
        assert one == other, method


def test_rates_are_chosen_on_development_seeds_and_reported_on_others(finished, tmp_path):
    own = replace(
        CONFIG, prepared=str(finished / "prepared"), stream=(STREAM,), method=("frozen", FULL), seeds=1
    )
    options = {"develop.rates": "1,3", "develop.weights": "0.25,1", "buffer.reading": "paraphrase"}
    heard: list[str] = []
    run = continual(override_all(own, {"develop.seeds": 1, **options}), str(tmp_path / "out"), heard.append)
    chosen, said = run["chosen"], "an end of the grid; extend develop.rates"
    assert any(said in line for line in heard) and any(said in line for line in run["warnings"])
    facts = json.loads((tmp_path / f"out/cells/world-{FULL}-00.json").read_text())
    assert chosen == {FULL: {name: facts[name] for name in ("rate", "weight")}}
    tried = json.loads((tmp_path / f"out/cells/world-{FULL}-01-x3.0.json").read_text())
    assert (tried["rate"], tried["cell"]["seed"], tried["weight"]) == (3, 1, 0.5)
    rows = read_csv(tmp_path / "out")
    assert {row["seeds"] for row in rows} == {"1"} and not any("w=" in row["metric"] for row in rows)
    assert "Development seeds: learning and forgetting" in (tmp_path / "out/report.html").read_text()


def test_a_stream_of_ones_own_shards_is_learned_and_held_to_each_runs_share_of_bad_samples(
    finished, tmp_path
):
    for number, part in enumerate(("a-train", "a-test", "b-train", "b-test", "c-test")):
        for name, samples in world_shards(20, 0, number, per_shard=20):
            if part == "b-train":
                samples = [
                    (key, {**one, "jpg": b"x"} if i < 4 else one) for i, (key, one) in enumerate(samples)
                ]
            write_tar(str(tmp_path / part / name), samples)
    for _, samples in world_shards(5, 0, 0, per_shard=20):  # scenes of a-train
        write_tar(str(tmp_path / "c-test" / "again.tar"), samples)
    tasks = [task(name, f"{name}-train", f"{name}-test") for name in "ab"]
    stream = {"tasks": tasks, "zero_shot": [{"name": "c", "test": "c-test"}]}
    (tmp_path / "stream.json").write_text(json.dumps(stream))
    settings: dict[str, Any] = {
        "stream": str(tmp_path / "stream.json"),
        "method": "frozen,zscl",
        "model.name": str(next((finished / "prepared").glob("backbone-*/scorer/model.json"))),
        "model.weights": "random:0",
        "order": "given",
        "prepared": str(tmp_path / "prepared"),
        "reference": str(tmp_path / "a-train"),
        "overlap": "drop",
        "max_bad_fraction": 0.5,
        "tune.steps": 1,
        "tune.batch_size": 4,
    }
    heard: list[str] = []
    run = continual(override_all(ContinualConfig(), settings), str(tmp_path / "out"), heard.append)
    (facts,) = run["streams"].values()
    leak = "stream, c: 5 of 25 test images are among the training images of a (20.0 %)"
    bad = "stream, b, train: 4 of 20 samples are corrupt_image (the image bytes do not decode); left out"
    assert {f"{leak}; they are left out (overlap=drop)", bad} <= {*run["warnings"][1:]} <= {*heard}
    assert "every score" in run["warnings"][0] and run["warnings"][0][1:-1] in run["headline"]
    found = facts["samples"]
    assert found["stream, c, test"] == {"contaminated": 5, "ok": 20}
    assert [one["images"] for one in facts["overlap"]] == [0, 0, 5] and facts["repeats"] == []
    assert any(row["metric"] == "fused zstd" for row in read_csv(tmp_path / "out"))
    assert "Samples used" in (tmp_path / "out" / "report.html").read_text()
    strict = override_all(ContinualConfig(), {**settings, "max_bad_fraction": 0.1})
    with pytest.raises(TooMuchBadData, match=r"stream, b, train: 20.0% of 20 samples .*max_bad_fraction=0.1"):
        continual(strict, str(tmp_path / "strict"), ignore)


@pytest.mark.slow
def test_a_sweep_embeds_its_streams_once_and_reports_each_point(tmp_path):
    own = replace(CONFIG, stream=(STREAM,), method=(FULL,), seeds=1)
    space = "buffer.size=grid(0,4) trust.quantile=grid(0.5,0.9)"
    config = SweepConfig("continual", space, "world.last_minus_frozen", seeds=1, continual=own)
    heard: list[str] = []
    run = sweep(replace(config, report_seeds=1), str(tmp_path / "out"), heard.append)
    assert sum("streams: embedded" in line for line in heard) == 1
    table = pq.read_table(tmp_path / "out/trials.parquet").to_pylist()
    assert len({row["trial"] for row in table}) == 4 and {row["status"] for row in table} == {"finished"}
    assert run["metric"] == "world.last_minus_frozen.all" and not (tmp_path / "out/work").exists()
    assert "def continual() -> ContinualConfig" in (tmp_path / "out/best.py").read_text()


def test_what_cannot_be_had_is_refused_before_ray_starts(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "connect", None)
    for name, samples in world_shards(8, 0, 1):
        write_tar(str(tmp_path / "a" / name), samples)
    (tmp_path / "mine.json").write_text(json.dumps({"tasks": [task("a", "a", "a")]}))
    mine = ContinualConfig(stream=(str(tmp_path / "mine.json"),))
    for options, said in (
        ({"model.name": "no-such-model", "model.weights": "random:0"}, "model.name='no-such-model'"),
        ({"prepared": "/dev/null/b"}, "prepared='/dev/null/b': must be a folder; /dev/null is a file"),
        ({"prepared": str(tmp_path / "out")}, "must be another folder than out"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)) as error:
            continual(override_all(mine, options), str(tmp_path / "out"))
        assert type(error.value) is ValueError and "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()
    own = replace(CONFIG, prepared=str(tmp_path / "out"), method=(FULL,))
    asked = SweepConfig(command="continual", space="buffer.size=grid(0,8)", report_seeds=0, continual=own)
    with pytest.raises(ValueError, match="must be another folder than out"):
        sweep(asked, str(tmp_path / "out"))
    config = replace(CONFIG, prepared=str(finished / "prepared"))
    assert continual(config, str(finished / "out"), ignore)["status"] == "finished", "left as it is"
    monkeypatch.setitem(METHODS, FULL, METHODS["no-buffer"])
    with pytest.raises(ValueError, match="holds a run that differs in methods; name another folder"):
        continual(config, str(finished / "out"), ignore)


def test_what_the_user_can_fix_is_reported_in_a_line(tmp_path, capsys):
    for settings, said in (
        ([], "stream=: name a .json file that lists tasks, or FILE.py:NAME, a StreamMaker"),
        ([f"stream={__file__}:CONFIG"], "must name a StreamMaker of raycomp.continual.method in that file"),
        (["stream=a/x.json,b/x.json"], "x occurs twice; name each stream once"),
        (["method=zscl", "stream=own.json"], "reference=None: must be set for zscl"),
    ):
        sets = [part for one in settings for part in ("--set", one)]
        assert main(["continual", *sets, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error
    assert main(["continual", "--out", "s3://bucket/out"]) == 2
    assert "needs a folder on a disk that all nodes share" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
