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


def test_what_another_try_would_repeat_is_stopped_within_a_job(monkeypatch):
    for code, ended, is_final in [
        (0, 0, 0),
        (2, 2, 1),
        (3, 3, 1),
        (4, 4, 0),
        (5, 5, 0),
        (143, 143, 0),
        (-9, 137, 0),
    ]:
        for job, stopped in [(JOB, ["night"] * is_final), ("{}", [])]:
            lines: list[list[str]] = []
            take = lambda line, lines=lines, code=code: lines.append(line) or Command(code)  # noqa: E731
            monkeypatch.setattr(ray_job.subprocess, "Popen", take)
            monkeypatch.setenv(JOB_VARIABLE, job)
            found: list[str] = []
            assert ray_job.main(["curate", "--out", "a b"], found.append) == ended, code
            assert found == stopped, (code, job)
            assert lines == [[sys.executable, "-m", "raycomp", "curate", "--out", "a b"]]
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


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
