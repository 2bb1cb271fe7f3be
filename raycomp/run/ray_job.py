"""A command as a job that its scheduler repeats after every failure, as KubeRay repeats a RayJob.

``python -m raycomp.run.ray_job curate --set ... --out DIR`` runs ``python -m raycomp`` with these arguments.
Another try resumes a run that lost its cluster or its storage. After a user's mistake or too much bad data it
would fail alike: this job is then stopped, which KubeRay reports as STOPPED and does not repeat.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

FINAL = (2, 3)
"""Exit codes of the command line that another try would repeat: a user's mistake, too much bad data."""
_STOPPED_WITHIN_S = 60.0


def main(arguments: Sequence[str], stop: Callable[[str], None] | None = None) -> int:
    """Run the command and return its exit code; ``stop`` ends a job that need not be repeated."""
    # Ray sends SIGTERM to the command, too, which reports how it resumes.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    code = subprocess.Popen([sys.executable, "-m", "raycomp", *arguments]).wait()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from raycomp.run.ray_cluster import JOB_VARIABLE  # Ray takes a second, and most runs end well

    config = json.loads(os.environ.get(JOB_VARIABLE, "{}"))
    job = (config.get("metadata") or {}).get("job_submission_id")  # none outside of a submitted job
    if code in FINAL and job:
        print(f"raycomp: exit code {code}: {job} is stopped and not repeated", file=sys.stderr, flush=True)
        (stop or _stop)(job)
    return 128 - code if code < 0 else code


def _stop(job: str) -> None:
    """Stop the job, which ends this process. Where Ray does not answer the job fails and is repeated."""
    from ray.job_submission import JobSubmissionClient

    try:
        JobSubmissionClient().stop_job(job)
    except (OSError, RuntimeError) as error:
        said = " ".join(str(error).split())
        print(f"raycomp: {job} cannot be stopped: {said}", file=sys.stderr, flush=True)
        return
    time.sleep(_STOPPED_WITHIN_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
