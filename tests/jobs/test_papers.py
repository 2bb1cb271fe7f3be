"""The tables of the papers: layouts have the rows of their rows, options are valid, the costs are printed."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from raycomp.config import override_all
from raycomp.config.commands import to_dict
from raycomp.continual.data import list_runs
from raycomp.continual.streams.sources import LAYOUTS
from raycomp.curation.config import choose_config
from raycomp.evaluation.seeds import read_layout

JOBS = Path(__file__).resolve().parents[2] / "jobs"
FILES = ("paper_cpi", "paper_lens")


@pytest.fixture
def jobs(monkeypatch) -> list[ModuleType]:
    monkeypatch.syspath_prepend(str(JOBS))
    return [__import__(name) for name in FILES]


def test_a_table_has_a_row_for_each_arm_and_its_options_are_valid(jobs, tmp_path):
    for job in jobs:
        for name, (rows, seeds) in job.TABLES.items():
            layout = read_layout(str(JOBS / "tables" / f"{name}.csv"))[0]
            assert list(layout[0].published) == list(rows) and seeds >= 3, name
            assert all(figure.needs for figure in layout), name
            for experiment in (job.make("data", name), job.make_tiny(str(tmp_path))):
                for row in rows.values():
                    choose_config(to_dict(experiment.curate), row.select)
                    assert row.negatives is None or row.negatives in experiment.negatives
                    own = {"negatives": "out"} if row.negatives else {}
                    own |= {"negative_images": "out"} if row.needs_images else {}
                    override_all(experiment.train, {**row.train, **own})
    assert not list(tmp_path.iterdir())


def test_a_dry_run_prints_the_cost(jobs, capsys):
    job, line = jobs[0], ["cpi_table1", "--out", "x", "--dry-run"]
    job.main(job.__doc__, job.TABLES, job.make, job.make_tiny, line)
    assert "6 rows x 3 seeds: 18 trainings of 21,700 steps x 1,024 pairs" in capsys.readouterr().out
    job = jobs[1]
    for table, corpus in (("lens_cc3m", "data/cc3m"), ("lens_cc12m", "data/cc12m")):
        job.main(job.__doc__, job.TABLES, job.make, job.make_tiny, [table, *line[1:]])
        assert f"pairs: {corpus} (not there yet)" in capsys.readouterr().out
    assert not Path("x").exists()


@pytest.fixture
def realign(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(JOBS))
    return __import__("paper_realign")


def test_a_table_of_continual_learning_has_a_row_for_each_method_and_its_streams_exist(realign, tmp_path):
    own = __import__("tiny_streams")
    for table, study in realign.TABLES.items():
        layout = read_layout(str(JOBS / "tables" / f"{table}.csv"))[0]
        assert tuple(layout[0].published) == study.methods, table
        used = {metric.partition(".")[0] for figure in layout for metric in figure.metrics}
        assert used <= {*study.streams} and all(figure.needs for figure in layout), table
        for config, streams in (
            (realign._make_tiny(), [f"{JOBS}/tiny_streams.py:{name}" for name in study.streams]),
            (replace(realign._make("data"), reference="cc3m"), [f"{name}.json" for name in study.streams]),
        ):
            assert list_runs(replace(config, stream=tuple(streams), method=study.methods))
        assert all(hasattr(own, name) for name in study.streams)
        assert all((JOBS / "streams" / f"{name}.json").exists() for name in study.streams)


def test_templates_of_streams_have_fields_of_their_layouts_and_leave_out_what_is_missing(
    realign, tmp_path, capsys
):
    for file in (JOBS / "streams").iterdir():
        content = json.loads(file.read_text())
        for record in (*content["tasks"], *content.get("zero_shot", [])):
            known = LAYOUTS[record["layout"]] if "layout" in record else ()
            assert set(record) - {"name", "train", "test", "layout"} <= {*known}, file.name
            for field in {"train", "test", "images"} & set(record):
                if "cifar100" not in record[field]:
                    (tmp_path / record[field]).mkdir(parents=True, exist_ok=True)
    placed = json.loads(Path(realign.place_stream("track_b", str(tmp_path), str(tmp_path))).read_text())
    assert placed["tasks"][3]["train"] == f"{tmp_path}/rsicd/train"
    assert [one["name"] for one in placed["zero_shot"]] == ["cifar10"]
    assert "zero-shot set cifar100: left out, for" in capsys.readouterr().out
    (tmp_path / "rsicd/train").rmdir()
    assert realign.place_stream("track_b", str(tmp_path)) is None
    with pytest.raises(SystemExit):
        realign.main(["realign_main", "--out", str(tmp_path / "out"), "--data", str(tmp_path / "none")])
    assert "has the data of no stream of realign_main" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_table_of_continual_learning_resumes_after_a_kill_and_has_every_row(tmp_path):
    line = [str(JOBS / "paper_realign.py"), "realign_ablations", "--tiny", "--seeds", "1"]
    done = run_twice([*line, "--out", str(tmp_path)], "ablations, track_a (")
    assert "ablations, track_a (0 s)" in done, "finished runs are not repeated"
    assert re.search(r"\b(\d+) of \1 figures measured", done), done


@pytest.mark.slow
def test_a_small_table_resumes_after_a_kill_and_has_every_column(tmp_path):
    line = [str(JOBS / "paper_cpi.py"), "cpi_table1", "--tiny", "--seeds", "1", "--out", str(tmp_path)]
    done = run_twice(line, "top80: selected")
    assert "full, seed 0: trained (0 s)" in done, "finished steps are not repeated"
    assert "54 of 54 figures measured" in done


def run_twice(line: list[str], killed_at: str) -> str:
    """Return what a job prints when it resumes after a kill at a line that starts so."""
    command, environment = [sys.executable, *line], {**os.environ, "PYTHONPATH": str(JOBS.parent)}
    asked = {"env": environment, "stdout": subprocess.PIPE, "text": True}
    killed = subprocess.Popen(command, **asked, start_new_session=True)
    assert killed.stdout
    for said in killed.stdout:
        if said.startswith(killed_at):
            os.killpg(killed.pid, signal.SIGKILL)
            break
    return subprocess.run(command, **asked, check=True).stdout
