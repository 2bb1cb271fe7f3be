"""The demo in small: the whole way, and again in the same folder."""

import csv
import re
from dataclasses import replace
from functools import partial

import pyarrow.parquet as pq

from lab.demo import command as demo
from lab.demo.config import DemoConfig
from lab.demo.halves import NAMES
from lab.worlds.shards import FIT, make_world
from raycomp.config import ClusterConfig
from raycomp.data.files import Folder
from raycomp.data.runs import read_run

RUNS = {
    "curated": "curate",
    "selected/random": "select",
    "selected/alignment": "select",
    "trained/random": "train",
    "trained/alignment": "train",
    "trained/chosen": "train",
    "evaluated/random": "evaluate",
    "evaluated/alignment": "evaluate",
    "evaluated/chosen": "evaluate",
    "compared": "compare",
    "negatives": "negatives",
}


def test_the_demo_runs_and_runs_again(tmp_path, monkeypatch):
    small = partial(make_world, num_train=256, num_clean=80, num_faulty=60, num_held_out=40, per_shard=35)
    monkeypatch.setattr(demo, "make_world", small)
    monkeypatch.setattr(demo, "FIT", replace(FIT, steps=6, batch_size=32))
    monkeypatch.setattr(demo, "STEPS", 3)
    monkeypatch.setattr(demo, "NUM_SCENES", 20)
    heard: list[str] = []
    config = DemoConfig(cluster=ClusterConfig(executor="local"))  # as Ray's: tests/test_ray_executors.py
    run = demo.demo(config, str(tmp_path), say=heard.append)
    assert run["funnel"]["read"] == 140 and run["funnel"]["dropped"]["corrupt_image"] > 0
    page = (tmp_path / "curated/report.html").read_text()
    for table in ("How well each score finds", "What each rule keeps of", "What the scores favour among"):
        assert table in page
    assert "wrong relation" in page and "3 things" in page
    scores = pq.read_table(tmp_path / "curated/scores")
    assert len(set(scores["fault"].to_pylist())) == 7
    assert scores["mean_pas"].null_count == run["funnel"]["dropped"]["corrupt_image"]
    check_index(tmp_path)
    first = [i for i, line in enumerate(heard) if str(tmp_path / "curated/report.html") in line]
    assert first and first[0] < len(heard) - 5, "the first report is told when it is there"
    assert f"open {tmp_path}/index.html" in heard[-1]
    assert run["rule"] == "cpi: mean drop of nouns, 1 nonce"
    beside = f"The rule is {run['rule']}. Compared with the best half by alignment alone (align_only)"
    assert heard[-2].startswith(beside) and beside in (tmp_path / "index.html").read_text()
    index = (tmp_path / "index.html").read_bytes()
    heard.clear()
    demo.demo(config, str(tmp_path), say=heard.append)
    assert sum("finished already" in line for line in heard) == 1, "of the others no line is printed"
    assert (tmp_path / "index.html").read_bytes() == index


def check_index(folder):
    """The page links every run's report, and its figures are those of the runs."""
    found = {name: read_run(Folder(str(folder / name))) for name in RUNS}
    assert {name: run["kind"] for name, run in found.items()} == RUNS
    page = (folder / "index.html").read_text()
    links = re.findall('href="([^"#]+)"', page)
    assert set(links) == {f"{name}/report.html" for name in RUNS}
    assert all((folder / link).is_file() for link in links)
    trained = [found[f"trained/{name}"] for name in NAMES]
    assert len({run["config"]["model"]["weights"] for run in trained}) == 1, "one start"
    assert {run["steps"] for run in trained} == {3}
    kept = [found[name]["funnel"]["kept"] for name in ("curated", "selected/random", "selected/alignment")]
    assert len(set(kept)) == 1, "halves of one size"
    lines = csv.DictReader((folder / "compared/table.csv").open())
    own = {(line["run"], line["split"], line["metric"]): line for line in lines}
    shown = [("macro", "accuracy"), ("macro", "brittleness"), ("test", "text_retrieval_recall@1")]
    for line in (own["chosen", *key] for key in shown):
        for name in ("reference_value", "run_value", "difference"):
            assert f"{float(line[name]):.3f}".replace("-", "\u2212") in page
    pictures = re.findall('<img src="data:image/jpeg;base64,[^"]+" alt="([^"]+)"', page)
    assert 4 <= len(pictures) <= 6
