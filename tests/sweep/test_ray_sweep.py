"""Sweeps in small that truly train: killed and gone on with, told of, run again, a job of a cluster."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ray.tune import Callback

import raycomp
from raycomp.config import ModelConfig, load_job
from raycomp.sweep.command import sweep
from raycomp.sweep.config import SweepConfig
from raycomp.training.config import FitConfig

pytestmark = pytest.mark.slow
METRIC = "sugarcrepe.accuracy.macro"
FIT = FitConfig(steps=3, batch_size=8, checkpoint_steps=1)


class Cut(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def config(curated, tiny_scorer, evaluation) -> SweepConfig:
    """Two shares of the pairs of a curation that is there, one training each."""
    return SweepConfig(
        space="attribute.keep=grid(0.5,0.4)",
        metric="sugarcrepe.accuracy",
        seeds=1,
        report_seeds=1,
        curated=str(curated[1]),
        model=ModelConfig(tiny_scorer.model, "random:0"),
        train=FIT,
        evaluate=evaluation,
    )


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory) -> tuple[Path, dict]:
    """A sweep that was broken off after its first training and gone on with; and its record."""
    folder = tmp_path_factory.mktemp("sweep") / "out"

    def break_off(line: str) -> None:
        if read_times(folder):
            raise Cut

    with pytest.raises(Cut):
        sweep(config, str(folder), break_off)
    before = read_times(folder)
    assert before and json.loads((folder / "run.json").read_text())["status"] == "failed"
    again: list[str] = []
    run = sweep(config, str(folder), again.append)
    assert before.items() <= read_times(folder).items(), "trained again"
    assert sum("seed" in line for line in again[:-1]) == 3 - len(before)
    return folder, run


def read_times(folder: Path) -> dict[Path, int]:
    """Return when every training was told of in the journal."""
    return {path: path.stat().st_mtime_ns for path in (folder / "trials").glob("*/*-*.json")}


def test_a_sweep_that_goes_on_trains_nothing_twice(finished):
    folder, run = finished
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert run["status"] == "finished" and run["funnel"]["kept"] == len(rows) == 3
    assert [(row["attribute.keep"], row["split"]) for row in rows if row["split"] == "development"] == [
        (0.5, "development"),
        (0.4, "development"),
    ]
    assert all(row["status"] == "finished" and 0 <= row["metric"] <= 1 for row in rows)
    assert all(row["seconds"] > 0 for row in rows)
    assert sum(row["starts"] == 1 for row in rows) >= 2 and not (folder / "work").exists()


def test_the_best_is_reported_and_written_as_a_job(finished, config):
    folder, run = finished
    (best,) = run["best"]
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    by_split = {(row["trial"], row["split"]): row["metric"] for row in rows}
    assert best["development"]["value"] == max(v for (_, s), v in by_split.items() if s == "development")
    assert best["report"]["value"] == by_split[best["trial"], "report"]
    job = load_job(str(folder / "best.py"))
    assert (
        job.space == f"attribute.keep={best['options']['attribute.keep']}" and job.curated == config.curated
    )
    page = (folder / "report.html").read_text()
    for words in ("sugarcrepe.accuracy over attribute.keep", "reported on held-out", "the same test set"):
        assert words in page
    assert (folder / "figures/over-attribute.keep.svg").read_text().startswith("<svg xmlns=")


def test_a_finished_sweep_is_left_as_it_is(finished, config):
    folder, _ = finished
    before, heard = (folder / "report.html").read_bytes(), []
    assert sweep(config, str(folder), heard.append)["status"] == "finished"
    assert "finished already" in heard[-1] and (folder / "report.html").read_bytes() == before
    with pytest.raises(ValueError, match=r"holds a run that differs in seeds"):
        sweep(replace(config, seeds=2), str(folder))


def test_the_best_as_a_job_comes_to_the_same_figures(finished, tmp_path):
    folder, _ = finished
    sweep(load_job(str(folder / "best.py")), str(tmp_path / "again"), [].append)
    first, again = (json.loads((at / "run.json").read_text())["best"] for at in (folder, tmp_path / "again"))
    assert again == [{**first[0], "group": {}}] and again[0]["report"]["low"] is None


def test_methods_are_tuned_alike_and_a_trial_that_fails_is_reported(config, tmp_path):
    space = "attribute.aggregate=grid(mean,min) train.learning_rate=grid(1e-4,1e30)"
    run = sweep(
        replace(config, space=space, per="attribute.aggregate", report_seeds=0),
        str(tmp_path / "out"),
        [].append,
    )
    assert sorted(one["group"]["attribute.aggregate"] for one in run["best"]) == ["mean", "min"]
    rows = pq.read_table(tmp_path / "out" / "trials.parquet").to_pylist()
    failed = [row for row in rows if row["status"] == "failed"]
    assert all(row["train.learning_rate"] == 1e30 and "finite" in row["why"] for row in failed)
    assert len(rows) == 4 and all(math.isfinite(one["development"]["value"]) for one in run["best"])


def test_rungs_are_trainings_of_their_own_length(config, tmp_path):
    space = "train.learning_rate=grid(1e-4,1e-3)"
    fit = replace(FIT, steps=9)
    rungs = replace(config, space=space, train=fit, scheduler="asha", rungs="steps")
    heard = Heard()
    result = raycomp.sweep(rungs, tmp_path / "out", callbacks=[heard])
    rows = pq.read_table(tmp_path / "out" / "trials.parquet").to_pylist()
    trained = [(row["rung"], row["steps"]) for row in rows if row["status"] == "finished"]
    assert sorted(trained, key=str) == [(1, 1), (1, 1), (2, 3), (3, 9), (None, 9)]
    assert sorted(row.status for row in result) == ["finished", "stopped"] and heard.num_results == 5
    assert result.best.steps == 22 and result.best.report == result.record["best"][0]["report"]["value"]
    assert "rung reached" in (tmp_path / "out" / "report.html").read_text()
    assert repr(raycomp.sweep(rungs, tmp_path / "out").rows) == repr(result.rows)


class Heard(Callback):
    """A callback of Ray Tune that counts."""

    num_results = 0

    def on_trial_result(self, *info, **more):
        self.num_results += 1
