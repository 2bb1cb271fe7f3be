"""A job that another try would not mend is stopped; every other failure is left to be repeated."""

import json
import signal
import subprocess
import sys

import pytest

from raycomp.run import ray_job
from raycomp.run.ray_cluster import JOB_VARIABLE
from tests.run.head import start_head

JOB = json.dumps({"metadata": {"job_submission_id": "night"}})


class Command:
    """Stands for the process of the command line."""

    def __init__(self, code: int):
        self.code = code

    def wait(self) -> int:
        return self.code


@pytest.mark.parametrize(
    ("code", "ended", "stopped"),
    [(0, 0, []), (2, 2, ["night"]), (3, 3, ["night"]), (4, 4, []), (5, 5, []), (143, 143, []), (-9, 137, [])],
)
def test_what_another_try_would_repeat_is_stopped(monkeypatch, code, ended, stopped):
    lines: list[list[str]] = []
    monkeypatch.setattr(ray_job.subprocess, "Popen", lambda line: lines.append(line) or Command(code))
    monkeypatch.setenv(JOB_VARIABLE, JOB)
    found: list[str] = []
    assert ray_job.main(["curate", "--out", "a b"], found.append) == ended
    assert found == stopped and lines == [[sys.executable, "-m", "raycomp", "curate", "--out", "a b"]]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_outside_of_a_job_nothing_is_stopped(monkeypatch):
    monkeypatch.setattr(ray_job.subprocess, "Popen", lambda line: Command(2))
    monkeypatch.delenv(JOB_VARIABLE, raising=False)
    found: list[str] = []
    assert ray_job.main([], found.append) == 2 and found == []


@pytest.mark.slow
def test_ray_calls_a_mistake_stopped_and_another_failure_failed(tmp_path_factory):
    with start_head(tmp_path_factory.mktemp("h"), num_cpus=1) as head:

        def submit(name: str, words: str) -> str:
            line = f"ray job submit --submission-id {name} -- {sys.executable} -m raycomp.run.ray_job {words}"
            subprocess.run(line.split(), env=head.env, capture_output=True, text=True)
            asked = ["ray", "job", "status", name]
            return subprocess.run(asked, env=head.env, capture_output=True, text=True).stdout

        assert "'mistake' was stopped" in submit("mistake", "curate --set align.kep=1 --out /nowhere")
        assert "'lost' failed" in submit("lost", "show s3://no-such-bucket/nothing")
