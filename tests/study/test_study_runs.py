"""The study in small, through its command: a study that is broken off goes on and ends as one that is not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from raycomp.data.folder import Folder
from raycomp.study.command import study
from raycomp.study.config import StudyConfig
from raycomp.study.runs import StudyRun, list_runs
from raycomp.study.trial import list_worlds, run_one

RUNS = ("clip-cpi50", "clip-align50", "clip-oracle50", "triplet_mc-full", "negclip-full-add")
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
    runs=RUNS,
    side_by_side=2,
)


class Cut(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was broken off after two cells, and its trainings one at a time afterwards."""
    folder = tmp_path_factory.mktemp("study") / "out"
    heard: list[str] = []

    def listen(line: str) -> None:
        heard.append(line)
        if sum("recall@1" in line for line in heard) == 2:
            raise Cut

    with pytest.raises(Cut):
        study(CONFIG, str(folder), listen)
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    (place,) = list_worlds(CONFIG, Folder(str(folder / "work")))
    run_one(StudyRun("clip", "oracle50", 1), place, CONFIG, Folder(str(folder.parent / "alone")))
    times = {path: path.stat().st_mtime_ns for path in (folder / "cells").glob("*.json")}
    assert len(times) >= 2
    again: list[str] = []
    run = study(replace(CONFIG, side_by_side=1), str(folder), again.append)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert not any("world" in line for line in again[:-1]), "made a world again"
    assert run["status"] == "finished" and run["funnel"]["kept"] == len(list_runs(CONFIG)) == 8
    return folder


def test_a_study_leaves_runs_tables_figures_and_a_page(finished: Path) -> None:
    assert {path.stem for path in (finished / "cells").glob("*.json")} == {c.name for c in list_runs(CONFIG)}
    facts = read_facts(finished, "clip-cpi50-01")
    assert facts["pairs"] == sum(facts["faults"].values()) == 24
    assert read_facts(finished, "clip-oracle50-01")["faults"] == {"none": 24}
    page = (finished / "report.html").read_text()
    for title in ("Planned contrasts", "Training pairs of each selection rule", "unseen pairs", "undecided"):
        assert title in page
    lines = (finished / "table.csv").read_text().splitlines()
    assert lines[0].startswith("what,metric,value") and any(
        "clip-cpi50 minus clip-align50" in x for x in lines
    )
    assert (finished / "figures/contrasts.svg").read_text().startswith("<svg xmlns=")
    assert not (finished / "work").exists()


def test_a_run_is_the_same_whatever_runs_next_to_it(finished: Path) -> None:
    one, other = (pq.read_table(f"{folder}/cells/clip-oracle50-01.parquet") for folder in list_both(finished))
    assert one.equals(other) and len(one) > 50
    one, other = (read_facts(folder, "clip-oracle50-01") for folder in list_both(finished))
    assert {**one, "seconds": 0} == {**other, "seconds": 0}


def list_both(finished: Path) -> tuple[Path, Path]:
    return finished, finished.parent / "alone"


def read_facts(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"cells/{name}.json").read_text())


def test_a_finished_study_is_left_as_it_is(finished: Path) -> None:
    before, heard = (finished / "report.html").read_bytes(), []
    assert study(CONFIG, str(finished), heard.append)["status"] == "finished"
    assert "finished already" in heard[-1] and (finished / "report.html").read_bytes() == before


def test_what_cannot_be_a_study_is_reported_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"s3://bucket/a.*local folder"):
        study(CONFIG, "s3://bucket/a")
    with pytest.raises(ValueError, match=r"runs='clip-cp50'.*the closest is clip-cpi50"):
        study(replace(CONFIG, runs=("clip-cp50",)), str(tmp_path / "a"))
    with pytest.raises(ValueError, match=r"pairs=10: must be at least 16"):
        replace(CONFIG, pairs=10)
