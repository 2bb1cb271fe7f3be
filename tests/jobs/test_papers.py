"""The tables of the papers: layouts have the rows of their arms, options are valid, the costs are printed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from raycomp.config import override_all
from raycomp.config.change import to_dict
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
        for name, (arms, seeds) in job.TABLES.items():
            layout = read_layout(str(JOBS / "tables" / f"{name}.csv"))
            assert list(layout[0].published) == list(arms) and seeds >= 3, name
            assert all(figure.needs for figure in layout), name
            for experiment in (job.make("data"), job.make_tiny(str(tmp_path))):
                for arm in arms.values():
                    choose_config(to_dict(experiment.curate), arm.select)
                    assert arm.negatives is None or arm.negatives in experiment.negatives
                    own = {"negatives": "out"} if arm.negatives else {}
                    own |= {"negative_images": "out"} if arm.needs_images else {}
                    override_all(experiment.train, {**arm.train, **own})
    assert not list(tmp_path.iterdir())


def test_a_dry_run_prints_the_cost(jobs, capsys):
    job, line = jobs[0], ["cpi_table1", "--out", "x", "--dry-run"]
    job.main(job.__doc__, job.TABLES, job.make, job.make_tiny, line)
    assert "6 arms x 3 seeds: 18 trainings of 21,700 steps x 1,024 pairs" in capsys.readouterr().out
    assert not Path("x").exists()


@pytest.mark.slow
def test_a_small_table_resumes_after_a_kill_and_has_every_column(tmp_path):
    line = [str(JOBS / "paper_cpi.py"), "cpi_table1", "--tiny", "--seeds", "1", "--out", str(tmp_path)]
    command, environment = [sys.executable, *line], {**os.environ, "PYTHONPATH": str(JOBS.parent)}
    asked = {"env": environment, "stdout": subprocess.PIPE, "text": True}
    killed = subprocess.Popen(command, **asked, start_new_session=True)
    assert killed.stdout
    for line in killed.stdout:
        if line.startswith("top80: selected"):
            os.killpg(killed.pid, signal.SIGKILL)
            break
    done = subprocess.run(command, **asked, check=True).stdout
    assert "full, seed 0: trained (0 s)" in done, "finished steps are not repeated"
    assert "54 of 54 figures measured" in done
