"""The study in small, through its command: a study that is broken off goes on and ends as one that is not."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raycomp.cluster.study import command
from raycomp.cluster.study.command import study
from raycomp.config import StudyConfig
from raycomp.loops.study.cells import list_cells

pytestmark = pytest.mark.ray

CELLS = ("clip-cpi50", "clip-align50", "clip-align70_random50", "triplet_mc-full", "negclip-full-add")
CONFIG = StudyConfig(
    worlds=1,
    seeds=2,
    other_seeds=1,
    steps=2,
    batch_size=8,
    pairs=48,
    scorer_pairs=32,
    scorer_steps=2,
    scenes=12,
    unseen_scenes=6,
    cells=CELLS,
    side_by_side=2,
)


class Cut(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, ray_cluster) -> Path:
    """A study that was broken off after two cells, and its trainings one at a time afterwards."""
    folder = tmp_path_factory.mktemp("study") / "out"
    heard: list[str] = []

    def listen(line: str) -> None:
        heard.append(line)
        if sum("recall@1" in line for line in heard) == 2:
            raise Cut

    with pytest.raises(Cut):
        study(CONFIG, str(folder), listen)
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    times = {path: path.stat().st_mtime_ns for path in (folder / "cells").glob("*.json")}
    assert len(times) >= 2
    again: list[str] = []
    run = study(replace(CONFIG, side_by_side=1), str(folder), again.append)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert not any("world" in line for line in again[:-1]), "made a world again"
    assert run["status"] == "finished" and run["funnel"]["kept"] == len(list_cells(CONFIG)) == 8
    return folder


def test_a_study_leaves_cells_tables_figures_and_a_page(finished: Path) -> None:
    assert {path.stem for path in (finished / "cells").glob("*.json")} == {c.name for c in list_cells(CONFIG)}
    facts = json.loads((finished / "cells/clip-cpi50-01.json").read_text())
    assert facts["pairs"] == sum(facts["faults"].values()) == 24
    page = (finished / "report.html").read_text()
    for title in ("The contrasts named in advance", "What the arms train on", "unseen pairs", "undecided"):
        assert title in page
    lines = (finished / "table.csv").read_text().splitlines()
    assert lines[0].startswith("what,metric,value") and any(
        "clip-cpi50 minus clip-align50" in x for x in lines
    )
    assert (finished / "figures/contrasts.svg").read_text().startswith("<svg xmlns=")
    assert not (finished / "work").exists()


def test_a_cell_is_the_same_whatever_runs_beside_it(finished: Path, tmp_path: Path, monkeypatch) -> None:
    heard: list[str] = []
    study(replace(CONFIG, cells=CELLS[:1], side_by_side=1), str(tmp_path / "alone"), heard.append)
    for name in ("clip-cpi50-00", "clip-cpi50-01"):
        tables = [
            pq.read_table(folder / f"cells/{name}.parquet") for folder in (finished, tmp_path / "alone")
        ]
        assert tables[0].equals(tables[1])
        facts = [
            json.loads((folder / f"cells/{name}.json").read_text())
            for folder in (finished, tmp_path / "alone")
        ]
        assert facts[0]["losses"] == facts[1]["losses"]
    monkeypatch.setattr(command, "_run_cells", None)
    run = study(replace(CONFIG, cells=CELLS[:1]), str(tmp_path / "alone"), heard.append)
    assert run["status"] == "finished" and "finished already" in heard[-1]


def test_what_cannot_be_a_study_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"s3://bucket/a.*local folder"):
        study(CONFIG, "s3://bucket/a")
    with pytest.raises(ValueError, match=r"cells='clip-cp50'.*the closest is clip-cpi50"):
        study(replace(CONFIG, cells=("clip-cp50",)), str(tmp_path / "a"))
    with pytest.raises(ValueError, match=r"pairs=10: must be at least 16"):
        replace(CONFIG, pairs=10)
