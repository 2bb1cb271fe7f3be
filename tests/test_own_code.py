"""Code from files of the user's: rules, methods, benchmarks and layouts, each against a built-in one."""

import csv
import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import raycomp
from raycomp.cli import main
from raycomp.config import ModelConfig, override_all
from raycomp.continual.command import continual
from raycomp.continual.config import ContinualConfig
from raycomp.continual.streams.sources import read_stream
from raycomp.evaluation.config import BenchmarkConfig, EvaluateConfig
from raycomp.look.show import explain, show
from tests.continual.drawn_streams import STREAM
from tests.drawn import WORLD, write_test_set

RULES = """
import pyarrow.compute as pc

def words(caption, pas):
    return pc.list_value_length(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(caption)))

def best_pas(pas):
    return pas

def aligned(alignment):
    return alignment

def both(alignment, num_words):
    return alignment + 0.01 * num_words

def short(alignment):
    return alignment[1:]

def nan(alignment):
    return alignment * float("nan")

def mistaken(alignment):
    return alignment + mistyped

def stray(loudness):
    return loudness

def none():
    return 0

other = 3
"""


@pytest.fixture
def rules(tmp_path) -> Path:
    (tmp_path / "rules.py").write_text(RULES)
    return tmp_path / "rules.py"


def read_kept(out: Path) -> dict[str, float]:
    return {row["uid"]: row["score"] for row in pq.read_table(out / "subset/kept.parquet").to_pylist()}


def select(source: Path, rule: str, out: Path, capsys=None) -> str:
    """Run select; return the last line of what it says on stderr."""
    line = ["select", str(source), "--set", f"select.rule={rule}", "--set", "materialize=false"]
    code = main([*line, "--out", str(out)])
    said = capsys.readouterr().err.strip().splitlines()[-1:] if capsys else []
    assert code == (2 if said else 0)
    return "".join(said)


def test_an_own_rule_keeps_what_the_built_in_one_keeps(curated, rules, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for own, built_in in (("words", "length"), ("best_pas", "cpi"), ("aligned", "align_only")):
        select(curated[1], built_in, tmp_path / built_in)
        select(curated[1], f"rules.py:{own}", tmp_path / own)
        kept, found = read_kept(tmp_path / built_in), read_kept(tmp_path / own)
        if built_in == "cpi":  # whose scores are normalised
            kept, found = (dict.fromkeys(one) for one in (kept, found))
        assert found == kept and len(kept) == 45, own
    run = raycomp.open(tmp_path / "aligned")
    assert run["config"]["select"]["rule"] == f"{rules}:aligned" and len(run["fingerprint"]["rule"]) == 64


def test_a_run_with_an_own_rule_is_shown_without_its_file_and_another_when_it_changed(
    curated, rules, tmp_path, capsys
):
    select(curated[1], f"{rules}:both", tmp_path / "out")
    uid = next(iter(read_kept(tmp_path / "out")))
    assert "both" in explain(str(tmp_path / "out"), uid)
    said = (tmp_path / "out/report.html").read_text().partition("have the highest both")[2]
    assert said and str(tmp_path) not in said[:200]
    rules.write_text(RULES.replace("0.01", "0.02"))
    assert "rule" in select(curated[1], f"{rules}:both", tmp_path / "out", capsys)
    rules.unlink()
    assert f"{rules}:both; attribute.keep 0.5" in "".join(show(str(tmp_path / "out")))


def test_a_faulty_rule_is_one_line(curated, rules, tmp_path, capsys):
    for own, message in [
        ("short", "rules.py:short: must return a number for each of "),
        ("nan", "rules.py:nan: must return numbers, returned NaN for uid "),
        ("mistaken", "rules.py:mistaken: NameError: name 'mistyped' is not defined ("),
        ("stray", "rules.py:stray: parameter='loudness': must be one of "),
        ("none", "rules.py:none: must have parameters: columns of scores/, such as alignment"),
        ("other", "rules.py:other: must name a function in that file"),
    ]:
        error = select(curated[1], f"{rules}:{own}", tmp_path / "out", capsys)
        assert message in error and "select.rule=" in error


METHODS = """
from raycomp.continual.methods.tuner import Finetune
from raycomp.continual.methods.head import Frozen


class Plain(Finetune):
    pass


class Still(Frozen):
    def __init__(self, config, stream, seed):
        super().__init__()

    def step(self, step, row_B):
        return {"loss": 0.0}


class Useless:
    pass
"""
CONTINUAL = override_all(
    ContinualConfig(stream=(STREAM,), side_by_side=1),
    {"tune.steps": 1, "tune.batch_size": 4, "head.steps": 1, "head.batch_size": 4},
)


def test_an_own_method_has_the_figures_of_the_built_in_one(tmp_path):
    methods = tmp_path / "methods.py"
    methods.write_text(METHODS)
    names = ("frozen", "finetune", f"{methods}:Plain", f"{methods}:Still")
    run = continual(replace(CONTINUAL, method=names), str(tmp_path / "out"))
    rows = list(csv.DictReader((tmp_path / "out/continual.csv").open()))
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        if "minus" not in row["metric"] and row["metric"] != "seconds":
            found[row["method"]].append((row["metric"], row["mean"]))
    assert found["Plain"] == found["finetune"] and len(found["Plain"]) > 10
    assert dict(found["Still"])["last"] == dict(found["frozen"])["last"]
    assert run["funnel"]["kept"] == 4 and (tmp_path / "out/cells/world.Plain-00.json").is_file()
    assert "Plain" in (tmp_path / "out/report.html").read_text()


def test_what_is_no_method_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("methods.py", "again.py"):
        Path(name).write_text(METHODS)
    for named, message in [
        ("methods.py:Useless", "methods.py:Useless: must name a Method, or a class with start_task, step"),
        ("gone.py:Plain", "no such file; it must be a Python file, FILE.py:NAME"),
        ("finetuned", "must be one of all, frozen, "),
        ("methods.py:Plain,again.py:Plain", "method='Plain': must be a name that no other method has"),
    ]:
        assert main(["continual", "--set", f"method={named}", "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


BENCHMARK = """
from tests.drawn import world
from raycomp.evaluation.benchmarks.choice import Choice


def scenes(folder):
    yield from world(folder)


def tuples(folder):
    yield ("split", "id")


def faulty(folder):
    yield Choice("", "split", "0", "none.jpg", ("a cat",), (missing,))


def world_(folder):
    return []
"""


def test_own_benchmarks_with_the_same_rows_have_the_same_scores(tiny_scorer, tmp_path, capsys, monkeypatch):
    write_test_set(str(tmp_path / "set"), 12, 0)
    (tmp_path / "own.py").write_text(BENCHMARK)
    monkeypatch.chdir(tmp_path)

    def evaluate(out: str, *benchmarks: str, weights: str = "random:0", **more: int) -> pa.Table:
        model, own = ModelConfig(tiny_scorer.model, weights), BenchmarkConfig(str(tmp_path / "set"))
        raycomp.evaluate(EvaluateConfig(model, benchmarks, own=own, **more), out)
        return pq.read_table(f"{out}/scores/{benchmarks[0].rpartition(':')[2]}.parquet")

    first, second = evaluate("first", WORLD), evaluate("second", "own.py:scenes", WORLD)
    assert first.equals(pq.read_table("second/scores/world.parquet"))
    assert second.drop_columns(["benchmark"]).equals(first.drop_columns(["benchmark"]))
    run = raycomp.compare("first", "second", out="compared")
    assert run["warnings"][1:] == ["scenes: not every run was evaluated on it"]
    evaluate("other", "own.py:scenes", weights="random:1")
    raycomp.compare("second", "other", out="apart")
    assert 'src="data:image' in Path("apart/report.html").read_text()
    assert len(evaluate("third", "own.py:scenes", rows=2)) < len(first)
    for name, message in (
        ("tuples", "own.py:tuples: must yield Choice rows, yielded ('split', 'id')"),
        ("faulty", "own.py:faulty: NameError: name 'missing' is not defined ("),
        ("none", "own.py:none: must name a function in that file"),
        ("world_", "own.py:world_: holds no row"),
    ):
        line = ["evaluate", f"benchmarks=own.py:{name}", f"model.name={tiny_scorer.model}"]
        assert main([*line, "model.weights=random:0", "--out", "out"]) == 2
        assert message in capsys.readouterr().err


LAYOUT = """
from raycomp.continual.layouts import Row, read_clevr


def scenes(folder, name, half):
    yield from read_clevr(folder, name, half)


def texts(folder, name, half):
    return ["a red cube"]


def faulty(folder, name, half):
    return 1 / 0
"""


def test_an_own_layout_has_the_samples_of_the_built_in_one(tmp_path, monkeypatch):
    things = [
        {"size": "large", "color": color, "material": "metal", "shape": "cube"} for color in ("red", "blue")
    ]
    found = [{"image_filename": f"{i}.png", "split": "train", "objects": things[i:]} for i in range(2)]
    (tmp_path / "scenes.json").write_text(json.dumps({"scenes": found}))
    (tmp_path / "train").mkdir()
    for i in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / f"train/{i}.png")
    (tmp_path / "mine.py").write_text(LAYOUT)
    monkeypatch.chdir(sys.prefix)  # its path starts at the stream's file

    def read(layout: str) -> list[list[Any]]:
        task = {"name": "cubes", "train": "scenes.json", "test": "scenes.json", "layout": layout}
        (tmp_path / "stream.json").write_text(json.dumps({"tasks": [task]}))
        return [half.samples for half in read_stream(str(tmp_path / "stream.json")).halves]

    assert read("mine.py:scenes") == read("clevr")
    assert [len(samples) for samples in read("clevr")] == [2, 2]
    for name, message in (
        ("texts", "must yield Row, yielded 'a red cube'"),
        ("faulty", "ZeroDivisionError: division by zero ("),
        ("none", "must name a function in that file"),
    ):
        with pytest.raises(ValueError, match=r"mine\.py:") as caught:
            read(f"mine.py:{name}")
        assert message in str(caught.value) and "tasks[0]" in str(caught.value)
