"""A curation on an S3 whose requests fail: the bytes of an undisturbed one, or one line and a restart."""

import subprocess
import sys
from pathlib import Path

import pytest

from raycomp.cli import STORAGE_FAILED
from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder
from tests.faults.harness import digests
from tests.faults.proxy import FAULTS

SECRET = "testing-secret"
SEED = 3
# A few in a hundred of each; a silence costs the client ten seconds, so these are fewer.
MIXED = {"500": 0.02, "503": 0.02, "reset_get": 0.06, "reset_put": 0.04, "timeout": 0.005, "slow": 0.05}
DOWN = {"503": 1.0}


@pytest.fixture(scope="module")
def world(calm, bucket) -> str:
    """The same input on S3."""
    for path in Path(calm[0].input).glob("*.tar"):
        Folder(f"{bucket}/world").write_bytes(path.read_bytes(), path.name)
    return f"{bucket}/world"


def run_curate(config: CurateConfig, world: str, out: str) -> subprocess.CompletedProcess:
    options = {
        "input": world,
        "scorer.model": config.scorer.model,
        "scorer.weights": config.scorer.weights,
        "materialize": "true",
        "waves.shards_per_wave": "1",
        "cluster.executor": "ray",
    }
    line = [sys.executable, "-m", "raycomp", "curate", "--out", out]
    done = subprocess.run(
        [*line, *(f"--set={name}={value}" for name, value in options.items())], capture_output=True, text=True
    )
    assert SECRET not in done.stdout + done.stderr
    return done


def check_equal(out: Folder, expected: dict[str, str]) -> None:
    """Compare what is in S3, asked without faults; look for the secret in what people read."""
    assert digests(out) == expected
    assert out.exists("report.html") and not out.exists("work")
    for name in ("run.json", "report.html"):
        assert SECRET.encode() not in out.read_bytes(name)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAULTS, "all"])
def test_faults_change_no_byte(fault, proxy, calm, world):
    out = Folder(f"{world}-{fault}".replace("_", "-"))
    share = {"timeout": 0.03, "slow": 0.2}.get(fault, 0.1)
    proxy.start(MIXED if fault == "all" else {fault: share}, SEED)
    done = run_curate(calm[0], world, out.uri)
    assert done.returncode == 0, done.stderr
    found = proxy.faults()
    assert {"503", "reset_get"} <= {*found} if fault == "all" else found[fault]
    proxy.start({})
    check_equal(out, calm[1])


@pytest.mark.slow
@pytest.mark.parametrize("start", [30, 80, 400])
def test_a_storage_that_stays_down_ends_the_run_and_a_restart_finishes_it(start, proxy, calm, world):
    config, expected = calm
    out = Folder(f"{world}-down-{start}")
    proxy.start(DOWN, start=start)
    done = run_curate(config, world, out.uri)
    assert done.returncode == STORAGE_FAILED and "Traceback" not in done.stderr, done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("raycomp: ") and "AWS Error" in line
    # A file of the input, or of the run, whose folder's name starts like that of the input.
    assert all(part in line for part in world.removeprefix("s3://").split("/", 1)), line
    proxy.start({})
    records = [("run.json",)] if out.exists("run.json") else []  # the first fails before there is a record
    for name in (*records, *(("work", "waves", name) for name in out.list_names("work", "waves"))):
        assert SECRET.encode() not in out.read_bytes(*name)
    again = run_curate(config, world, out.uri)
    assert again.returncode == 0, again.stderr
    check_equal(out, expected)
