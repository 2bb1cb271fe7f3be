"""Sweeps in small that truly train: killed and resumed, reported, run again."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raycomp.config import ModelConfig, load_job
from raycomp.sweep.command import sweep
from raycomp.sweep.config import SweepConfig
from raycomp.training.config import FitConfig
from tests.sweep.runs import Cut

pytestmark = pytest.mark.slow
FIT = FitConfig(steps=3, batch_size=8, checkpoint_steps=1)


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


def read_times(folder: Path) -> dict[Path, int]:
    """Return when every training was written into the journal."""
    return {path: path.stat().st_mtime_ns for path in (folder / "trials").glob("*/*-*.json")}


def test_a_sweep_that_is_killed_resumes_and_its_best_is_reported_and_repeats(config, tmp_path):
    folder, heard = tmp_path / "out", []

    def break_off(line: str) -> None:
        if read_times(folder):
            raise Cut

    with pytest.raises(Cut):
        sweep(config, str(folder), break_off)
    before = read_times(folder)
    assert before and json.loads((folder / "run.json").read_text())["status"] == "failed"
    run = sweep(config, str(folder), heard.append)
    assert before.items() <= read_times(folder).items(), "trained again"
    assert sum("seed" in line for line in heard[:-1]) == 3 - len(before)
    rows = pq.read_table(folder / "trials.parquet").to_pylist()
    assert run["status"] == "finished" and run["funnel"]["kept"] == len(rows) == 3
    assert all(row["status"] == "finished" and row["seconds"] > 0 for row in rows)
    assert [row["attribute.keep"] for row in rows if row["split"] == "development"] == [0.5, 0.4]
    assert sum(row["starts"] == 1 for row in rows) >= 2 and not (folder / "work").exists()
    (best,) = run["best"]
    values = {(row["trial"], row["split"]): row["metric"] for row in rows}
    assert best["development"]["value"] == max(
        v for (_, split), v in values.items() if split == "development"
    )
    assert best["report"]["value"] == values[best["trial"], "report"]
    job, page = load_job(str(folder / "best.py")), (folder / "report.html").read_text()
    assert job.space == f"attribute.keep={best['options']['attribute.keep']}"
    assert "sugarcrepe.accuracy over attribute.keep" in page
    assert (folder / "figures/over-attribute.keep.svg").read_text().startswith("<svg xmlns=")
    assert sweep(config, str(folder), heard.append)["status"] == "finished"
    assert "finished already" in heard[-1] and (folder / "report.html").read_text() == page
    with pytest.raises(ValueError, match=r"holds a run that differs in seeds"):
        sweep(replace(config, seeds=2), str(folder))
    again = sweep(job, str(tmp_path / "again"), [].append)["best"]
    assert json.loads(json.dumps(again)) == [{**json.loads(json.dumps(best)), "group": {}}]
