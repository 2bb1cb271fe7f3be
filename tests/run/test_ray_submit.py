"""Commands as jobs of a cluster: its dashboard, its token, S3, and an environment that holds nothing else."""

import re
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path

import pytest

import raycomp
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from tests.drawn import world_shards
from tests.faults.harness import digests
from tests.run.head import Head, join, start_head
from tests.run.test_spot import Metadata

pytestmark = pytest.mark.slow
ROOT = Path(raycomp.__file__).parents[1]
CURATE = " curate $BUCKET"
# What Ray puts before its lines where it writes to no terminal, and colours.
_TRIMMINGS = re.compile(r"\x1b\[\d+m|^[\d-]{10} [\d:,]{12}\t[A-Z]+ \w+\.py:\d+ -- ", re.MULTILINE)


@pytest.fixture(scope="module")
def head(s3_store, tmp_path_factory) -> Iterator[Head]:
    with start_head(tmp_path_factory.mktemp("h"), num_cpus=4) as head:
        yield head


@pytest.fixture(scope="module")
def pool(bucket) -> str:
    """A bucket with a few shards in it."""
    for name, samples in world_shards(90, 0, 0, per_shard=30):
        write_tar(f"{bucket}/pool/{name}", samples)
    return bucket


@pytest.fixture(scope="module")
def transcript(head, pool) -> list[tuple[str, str, str]]:
    """Every command of docs/cluster.md that a $ stands before, what it is to print, and what it prints."""
    return [(line, wanted, run(head, line, BUCKET=pool)) for line, wanted in read_transcript()]


def run(head: Head, line: str, **more: str) -> str:
    """Run a line in the checkout, with nothing but the head's environment; return what it says."""
    env = {**head.env, **more}
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=env, text=True, capture_output=True)
    print(f"$ {line}{done.stdout}{done.stderr}[{done.returncode}]")
    return _TRIMMINGS.sub("", done.stdout)


def read_transcript() -> Iterator[tuple[str, str]]:
    text = (ROOT / "docs" / "cluster.md").read_text()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines(keepends=True)
            end = next(i for i, line in enumerate(lines) if not line.endswith("\\\n"))
            yield "".join(lines[: end + 1]), "".join(lines[end + 1 :])


def test_the_transcript_of_the_docs(transcript):
    assert len(transcript) == 3
    agrees = OutputChecker().check_output
    for line, wanted, said in transcript:
        assert agrees(wanted, said, ELLIPSIS | NORMALIZE_WHITESPACE), f"{line}\n{said}"


def test_a_stopped_job_ends_like_ctrl_c_and_goes_on_to_the_same_bytes(head, pool, transcript):
    line = next(line for line, *_ in transcript if CURATE in line).replace("/curated", "/again").strip()
    line = f"{line} --set waves.shards_per_wave=1 --set cluster.labels=ray.io/market-type=on-demand"
    run(head, line.replace("submit", "submit --no-wait --submission-id night", 1), BUCKET=pool)
    again = Folder(f"{pool}/again")
    while not again.list_names("work", "waves"):  # the first wave is committed, two are to come
        assert "RUNNING" in (said := run(head, "ray job status night")) or "PENDING" in said
        time.sleep(0.5)
    assert "Job 'night' was stopped" in run(head, "ray job stop night")
    said = run(head, "ray job logs night")
    assert re.search(r"^raycomp: terminated; .*to resume: raycomp curate .*/again$", said, re.MULTILINE), said
    assert again.list_names() and "lease.json" not in again.list_names()
    assert "kept 45 of 90 rows" in run(head, line, BUCKET=pool)
    assert digests(again) == digests(Folder(f"{pool}/curated"))


def test_no_one_waits_for_a_label_that_no_node_has(head, pool, transcript):
    line = next(line for line, *_ in transcript if CURATE in line).replace("/curated", "/spot").strip()
    said = run(head, f"{line} --set cluster.labels=ray.io/market-type=spot", BUCKET=pool)
    assert "raycomp: cluster.labels='ray.io/market-type=spot': no node has these labels" in said
    assert "exit code 2" in said


def test_workers_know_what_the_driver_knows(head):
    script = f"""
import os, ray
from raycomp.run.executor import connect
from raycomp.config import ClusterConfig
with connect(ClusterConfig(address="{head.address}")):
    print(ray.get(ray.remote(lambda: os.environ.get("HF_TOKEN")).remote()))
"""
    assert run(head, f"python -c '{script}'", HF_TOKEN="secret").strip() == "secret"


def test_who_has_no_token_is_turned_away(head):
    wrong = {"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": "0" * 64}
    assert "Invalid authentication token" in run(head, "ray job list 2>&1", **wrong)


@pytest.fixture
def notice() -> Iterator[str]:
    """The metadata of an instance that AWS takes back two minutes from now."""
    until = datetime.now(UTC) + timedelta(minutes=2)
    server = Metadata()
    server.answers = [(404, {}), (200, {"action": "terminate", "time": f"{until:%Y-%m-%dT%H:%M:%SZ}"})]
    yield server.url
    server.shutdown()
    server.server_close()


def test_a_node_that_aws_takes_back_leaves_the_cluster(head, notice):
    script = f"""
from ray._raylet import GcsClient
for node in GcsClient(address="{head.address}").get_all_node_info().values():
    if node.instance_id == "i-1" and node.death_info.reason == node.death_info.AUTOSCALER_DRAIN_PREEMPTED:
        print("preempted")
"""
    with join(head, "i-1"):
        drain = f"python -m raycomp.run.ray_spot {head.address}"
        watch = f"for i in $(seq 60); do {drain} && break; sleep 1; done"
        env = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": notice, "RAY_CLOUD_INSTANCE_ID": "i-1"}
        assert "i-1: drained" in run(head, watch, **env)
        # It has nothing to do, and goes at once; what was lost there would be nobody's fault.
        assert run(head, f"sleep 5; python -c '{script}'").strip() == "preempted"
