"""Reading, decoding and scoring run together on a cluster of any size, and training with its batches."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest

from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder
from raycomp.run import ray_cluster
from raycomp.run.executor import Session
from raycomp.run.ray_cluster import share_cpus, split_cpu
from tests.faults.harness import digests
from tests.run.head import start_head
from tests.run.test_ray_passes import BLOCK, make_pass

ROOT = Path(__file__).parents[2]
# Far more than a run here takes on a busy machine, far less than a wait for ever.
PATIENCE_S = 600
# A refusal takes some seconds, most of them imports; on a busy machine more.
REFUSED_S = 60


def test_a_cpu_is_split_until_workers_and_two_tasks_fit():
    for cpus, own, workers, each, parts in [
        # A scorer of two, a reader and one more task.
        ([4], [4], 1, 2, 1),
        ([3], [3], 1, 2, 2),
        ([2], [2], 1, 2, 2),
        ([1], [1], 1, 2, 4),
        ([5], [5], 3, 2, 2),
        # No node has two CPUs; then only one of them has the label.
        ([1] * 8, [1] * 8, 1, 2, 2),
        ([1] * 8, [1] * 8, 8, 2, 3),
        ([1, 16], [1], 2, 2, 4),
        # Ranks or scorers on GPUs, and no workers at all.
        ([2], [2], 2, 1, 2),
        ([8], [8], 8, 1, 2),
        ([10], [10], 8, 1, 1),
        ([1], [1], 0, 1, 2),
        ([2], [2], 0, 1, 1),
    ]:
        assert split_cpu(cpus, own, workers, each) == parts
        less = parts - 1
        fits = sum(n * less // each for n in own) >= workers and sum(cpus) * less >= workers * each + 2
        assert not less or not fits, (cpus, workers)


def see(
    monkeypatch, cpus: Sequence[int], offered: float = 0, labels: Mapping[str, str] | None = None
) -> None:
    """Let the cluster have nodes with so many CPUs, and an autoscaler with so many in all."""
    nodes = [{"Alive": True, "Resources": {"CPU": float(n)}, "Labels": labels or {}} for n in cpus]
    dead = {"Alive": False, "Resources": {"CPU": 64.0}, "Labels": labels or {}}
    monkeypatch.setattr(ray_cluster.ray, "nodes", lambda: [*nodes, dead])
    monkeypatch.setattr(ray_cluster, "count_offered", lambda resource: offered)


def test_what_an_autoscaler_adds_counts(monkeypatch):
    """Nodes will come: as many as are said, or an unknown number."""
    now = [([2], 0, 0.5), ([2], 2, 0.5), ([0, 1], 0, 0.25)]
    for cpus, offered, share in [*now, ([0, 2], 100, 1), ([], 100, 1), ([0], inf, 1), ([64], inf, 1)]:
        see(monkeypatch, cpus, offered)
        assert share_cpus(1, 2, {}) == share, (cpus, offered)


def test_shares_of_a_cpu_never_exceed_it(monkeypatch):
    for workers in range(1, 40):
        see(monkeypatch, [1])
        each = share_cpus(workers, 1, {})
        assert 0 < each * (workers + 2) <= 1 and round(each, 4) == each


def test_a_cluster_without_cpus_is_refused_unless_some_may_come(monkeypatch):
    see(monkeypatch, [0])
    with pytest.raises(ValueError, match=r"^cluster: its nodes have no CPUs and no autoscaler can add any"):
        share_cpus(1, 2, {})
    see(monkeypatch, [4])
    with pytest.raises(ValueError, match=r"^cluster: nodes with cluster\.labels have no CPUs"):
        share_cpus(1, 2, {"zone": "a"})
    see(monkeypatch, [4], labels={"zone": "a"})
    assert share_cpus(1, 2, {"zone": "a"}) == 1


def test_a_pass_knows_how_many_tasks_fit_beside_its_scorer():
    for cpus, each, tasks in [(3, 0.5, 4), (2, 0.5, 2), (1, 0.25, 2), (6, 1.0, 4)]:
        session = Session(1, {"num_cpus": 2 * each}, 1, cpus, 1, BLOCK, cpus_per_task=each)
        assert make_pass(9, session).free_cpus == tasks


@contextmanager
def on(num_cpus: int, way: str) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield the environment and the options of commands on a cluster with so many CPUs: one that they join,
    or that each starts."""
    own = {"PYTHONPATH": str(ROOT), "RAYCOMP_CACHE": os.environ["RAYCOMP_CACHE"]}
    if way == "starts":
        yield {**os.environ, **own}, {"cluster.num_cpus": num_cpus}
        return
    with (
        tempfile.TemporaryDirectory(prefix="h") as folder,
        start_head(Path(folder), num_cpus, RAY_worker_niceness="0") as head,
    ):
        yield {**head.env, **own}, {"cluster.address": head.address}


def call(command: str, out: Path, env: Mapping[str, str], options: Mapping[str, Any]) -> Any:
    line = [sys.executable, "-m", "raycomp", command, "--out", str(out)]
    line += [f"--set={name}={value}" for name, value in {**options, "cluster.executor": "ray"}.items()]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=PATIENCE_S)


def describe_training(curated: tuple[CurateConfig, Path, Any], workers: int) -> dict[str, Any]:
    config, out, _ = curated
    return {
        "input": out,
        "model.name": config.scorer.model,
        "model.weights": config.scorer.weights,
        "train.batch_size": 8,
        "train.steps": 2,
        "train.workers": workers,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("num_cpus", "way"), [(2, "joins"), (1, "starts")])
def test_a_small_cluster_curates_to_the_same_bytes(num_cpus, way, curated, tmp_path):
    config, local, _ = curated
    scoring = {
        "input": config.input,
        "scorer.model": config.scorer.model,
        "scorer.weights": config.scorer.weights,
        "scorer.batch_size": config.scorer.batch_size,
        "attribute.pool": config.attribute.pool,
        "attribute.unit": config.attribute.unit,
        "attribute.aggregate": config.attribute.aggregate,
        "attribute.targets": config.attribute.targets,
        "select.rule": config.select.rule,
    }
    with on(num_cpus, way) as (env, where):
        done = call("curate", tmp_path / "out", env, {**scoring, **where})
        assert done.returncode == 0, done.stderr
        found = digests(Folder(str(tmp_path / "out")), "scores", "subset")
        assert found == digests(Folder(str(local)), "scores", "subset") and len(found) > 2
        training = describe_training(curated, num_cpus + 1)
        started = time.monotonic()
        done = call("train", tmp_path / "refused", env, {**training, **where})
        took_s = time.monotonic() - started
        said = f"train.workers={num_cpus + 1}: must be at most {num_cpus}, the CPUs of the cluster"
        assert done.returncode == 2 and said in done.stderr and took_s < REFUSED_S, (took_s, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(("num_cpus", "workers"), [(1, 1), (3, 2), (3, 3)])
def test_a_small_cluster_trains_on_as_many_workers_as_it_has_cpus(num_cpus, workers, curated, tmp_path):
    with on(num_cpus, "starts") as (env, where):
        done = call("train", tmp_path / "out", env, {**describe_training(curated, workers), **where})
    assert done.returncode == 0, done.stderr
    assert Folder(str(tmp_path / "out")).read_json("run.json")["workers"] == workers
