"""The demo in small: the whole way, and again in the same folder."""

from dataclasses import replace
from functools import partial

import pyarrow.parquet as pq
import pytest

from raycomp.cluster.demo import command as demo
from raycomp.loops.train.little_world import FIT, make_world

pytestmark = pytest.mark.ray


def test_the_demo_runs_and_runs_again(tmp_path, monkeypatch, ray_cluster):
    small = partial(make_world, num_train=256, num_clean=80, num_faulty=60, num_held_out=40, per_shard=35)
    monkeypatch.setattr(demo, "make_world", small)
    monkeypatch.setattr(demo, "FIT", replace(FIT, steps=6, batch_size=32))
    heard: list[str] = []
    run = demo.demo(str(tmp_path), say=heard.append)
    assert run["funnel"]["read"] == 140 and run["funnel"]["dropped"]["corrupt_image"] > 0
    page = (tmp_path / "curated/report.html").read_text()
    for table in ("How well each score finds", "What each rule keeps of", "What the scores favour among"):
        assert table in page
    assert "wrong relation" in page and "3 things" in page
    scores = pq.read_table(tmp_path / "curated/scores")
    assert len(set(scores["fault"].to_pylist())) == 7
    assert scores["mean_pas"].null_count == run["funnel"]["dropped"]["corrupt_image"]
    assert any(str(tmp_path / "curated/report.html") in line for line in heard)
    demo.demo(str(tmp_path), say=heard.append)
    assert any("finished already" in line for line in heard)
