"""GPUs that may come are counted and awaited, and scorers have all the same, without a GPU in the house."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from ray.core.generated.autoscaler_pb2 import ClusterConfig as Offer
from ray.data import DataContext

from raycomp.config import ClusterFailed, UserError, WavesConfig
from raycomp.data.files import Folder
from raycomp.run import ray_cluster as ray_gpus
from raycomp.run import ray_cluster as ray_private
from raycomp.run import work
from raycomp.run.executor import GPU_KIND, SCORERS, Pass, Session, Stage, WorkerPool, stage_part, use
from raycomp.run.local import Local
from raycomp.run.progress import describe_phases
from raycomp.run.ray_cluster import MIXED, _Scorer, await_gpu, check_gpu, count_offered
from raycomp.run.run import say_gpu
from raycomp.run.work import Phase
from tests.run.test_ray_passes import BLOCK, ROWS, STAGES, Clock, Score, make_pass
from tests.run.test_ray_waves import PART, make_rows

L4 = {"name": "NVIDIA L4", "capability": "8.9", "multiprocessors": 58, "cuda": "13.0", "cudnn": 92000}
H100 = {**L4, "name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "multiprocessors": 132}

HEAD = {"resources": {"CPU": 0}}
TYPES = {
    "head": HEAD,
    "cpu": {"resources": {"CPU": 8}, "min_workers": 1, "max_workers": 10},
    "gpu": {"resources": {"CPU": 48, "GPU": 4}, "max_workers": 3},
    "many": {"resources": {"CPU": 192, "GPU": 8}, "max_workers": 2},
}

POOLS = {"read": "cpus", "score": SCORERS, "device": "gpus", "write": "cpus"}


def write_config(monkeypatch, tmp_path, **values) -> None:
    config = {"head_node_type": "head", "available_node_types": TYPES, **values}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    monkeypatch.setattr(ray_gpus, "_CLUSTER_CONFIG", tmp_path / "config.yaml")
    monkeypatch.setattr(ray_private.state, "get_max_resources_from_cluster_config", lambda: None)


def test_as_many_gpus_may_come_as_there_may_be_workers_with_them(monkeypatch, tmp_path):
    for most, offered in [({}, 3 * 4 + 2 * 8), ({"max_workers": 3}, 2 * 8 + 4), ({"max_workers": 0}, 0)]:
        write_config(monkeypatch, tmp_path, **most)
        assert count_offered("GPU") == offered, most


def test_limits_that_nobody_reports_are_none_only_where_nothing_starts_nodes(monkeypatch, tmp_path):
    write_config(monkeypatch, tmp_path)
    monkeypatch.setattr(ray_gpus, "_CLUSTER_CONFIG", tmp_path / "no.yaml")
    for nodes, offered in [
        ([(True, {"ray.io/node-id": "a"})], 0),
        ([(True, {"ray.io/node-group": "headgroup"})], math.inf),
        ([(True, {}), (True, {"ray.io/node-group": "gpu-spot"})], math.inf),
        ([(True, {}), (False, {"ray.io/node-group": "gpu-spot"})], 0),
    ]:
        found = [{"Alive": alive, "Labels": labels} for alive, labels in nodes]
        monkeypatch.setattr(ray_gpus.ray, "nodes", lambda found=found: found)
        assert count_offered("GPU") == offered, nodes


def test_what_the_cluster_itself_knows_of_its_node_types_goes_first(monkeypatch, tmp_path):
    write_config(monkeypatch, tmp_path)
    offer = Offer()
    offer.node_group_configs.add(resources={"GPU": 8}, max_count=5)
    find = ray_private.state._calculate_max_resource_from_cluster_config
    monkeypatch.setattr(
        ray_private.state, "get_max_resources_from_cluster_config", lambda: {"GPU": find(offer, "GPU") or 0}
    )
    assert count_offered("GPU") == 40 and count_offered("TPU") == 0
    offer.node_group_configs.add(resources={"GPU": 1}, max_count=-1)
    assert count_offered("GPU") == math.inf


def find(gpu: dict | None):
    return lambda: ("10.0.0.7", gpu)


def test_a_gpu_that_does_not_come_is_awaited_so_long_and_reported(ray_cluster, capsys, monkeypatch):
    monkeypatch.setattr("raycomp.run.progress._LINE_EVERY_S", 0.2)
    with pytest.raises(ValueError, match=r"^cluster\.gpu: no GPU was free within .*=1 s, requested at \d+:"):
        await_gpu(1, probe=find(L4))
    assert "start: GPU 0 of 1, time left unknown, waiting for the first GPU for" in capsys.readouterr().err


COMES_LATE = """
import time
from concurrent.futures import ThreadPoolExecutor
import ray
from ray.cluster_utils import Cluster
from raycomp.run.ray_cluster import await_gpu
from tests.run.test_ray_gpus import L4, find

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
ray.init(address=cluster.address, log_to_driver=False)
awaited = ThreadPoolExecutor(1).submit(await_gpu, None, probe=find(L4))
time.sleep(2)
print(awaited.done())
cluster.add_node(num_cpus=1, num_gpus=1)
print(awaited.result() == L4)
try:
    await_gpu(None, probe=find(None))
except ValueError as error:
    print(error)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_gpu_that_comes_late_is_found():
    """A node with a GPU joins a cluster of its own while it is awaited."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", COMES_LATE], capture_output=True, text=True, timeout=240, env=env
    )
    was_there, came, none = done.stdout.splitlines()
    assert (was_there, came) == ("False", "True"), done
    assert none.startswith("cluster.gpu: node 10.0.0.7 reports a GPU, but torch finds none"), done


def test_a_scorer_without_the_gpu_it_was_promised_or_with_another_is_refused(monkeypatch):
    for wanted in (L4, MIXED):
        with pytest.raises(UserError, match=r"reports a GPU, but torch finds none there"):
            check_gpu(wanted)
    monkeypatch.setattr(ray_gpus, "describe_gpu", lambda: L4)
    assert check_gpu(MIXED) == say_gpu(L4) == check_gpu(dict(L4))
    with pytest.raises(UserError, match=r"^cluster: a scorer has NVIDIA L4 \(capability 8\.9, .* H100 80GB"):
        check_gpu(H100)


def test_rows_of_several_kinds_of_gpu_are_counted_by_shard(tmp_path, monkeypatch):
    """Two scorers, an L4 and an H100; the last shard's blocks are scored by both."""
    stage = Stage("score", "scores", SCORERS, Score)
    scorers = []
    for gpu in (L4, H100):
        monkeypatch.setattr(ray_gpus, "describe_gpu", lambda gpu=gpu: gpu)
        scorers.append(_Scorer(stage, None, MIXED))
        assert GPU_KIND not in _Scorer(stage, None, gpu)(make_rows(0)).column_names
    on_l4, on_h100 = scorers
    tables = [on_l4(make_rows(0)), on_h100(make_rows(1))]
    tables += [on_l4(make_rows(2).slice(0, 2)), on_h100(make_rows(2).slice(2))]
    parts = str(tmp_path / "elsewhere")
    all_metadata = [stage_part(table, parts, PART).to_pylist() for table in tables]
    pools = {name: WorkerPool(name, 2, where) for name, where in POOLS.items()}
    steps = SimpleNamespace(items={0: 0, 1: 1, 2: 2}, worker_pools=pools, most=None)
    steps.run = lambda *_: all_metadata
    phase = Phase("score", Folder(str(tmp_path)), WavesConfig(), steps, lambda *_: 5, ())
    logged: list[tuple[str, dict]] = []
    monkeypatch.setattr(work, "log_event", lambda event, **facts: logged.append((event, facts)))
    with use(Local(1)):
        stats, again = phase.run(), phase.run()
    first, second = say_gpu(L4), say_gpu(H100)
    rows = {facts["shard"]: facts["rows"] for event, facts in logged if event == "gpus"}
    assert rows == {0: {first: 5}, 1: {second: 5}, 2: {first: 2, second: 3}}
    # A run that resumes reads the counts back from the manifests of its waves.
    for found in (stats, again):
        assert describe_phases({"score": found})[0]["gpu_rows"] == {first: 7, second: 8}


def test_a_pool_without_its_gpus_ends_the_pass_in_a_line(tmp_path, ray_cluster, monkeypatch):
    monkeypatch.setattr(DataContext.get_current(), "max_consecutive_actor_init_deaths", 0)
    session = Session(1, {"num_cpus": 2}, None, 6, 1, BLOCK, gpu=L4)
    with pytest.raises(ValueError, match=r"^cluster\.gpu: node .* torch finds none there"):
        list(make_pass(1, session).run([0], str(tmp_path)))


class Broken(Clock):
    def is_broken(self) -> bool:
        return True


class Breaks(Score):
    """A scorer whose GPU breaks as often as there are no marks in a folder."""

    def __init__(self, num_threads: int | None, folder: str, times: int):
        self.device, self.folder, self.times = Broken(), Path(folder), times

    def __call__(self, table: pa.Table) -> pa.Table:
        marks = len(list(self.folder.glob("mark-*")))
        if marks < self.times:
            (self.folder / f"mark-{marks}").touch()
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().__call__(table)


def break_so_often(times: int, folder: Path) -> Pass:
    stage = Stage("score", "scores", SCORERS, partial(Breaks, folder=str(folder), times=times))
    session = Session(1, {"num_cpus": 2}, None, 6, 1, BLOCK)
    return replace(make_pass(1, session), stages=(STAGES[0], stage))


def test_a_scorer_whose_gpu_breaks_is_started_again_and_scores_its_rows(tmp_path, ray_cluster):
    (tmp_path / "marks").mkdir()
    steps = break_so_often(2, tmp_path / "marks")
    all_metadata = [one for block in steps.run([0], str(tmp_path)) for one in block]
    assert sum(metadata["rows"] for metadata in all_metadata) == ROWS
    assert len(list((tmp_path / "marks").iterdir())) == 2


@pytest.mark.slow
def test_a_gpu_that_breaks_again_and_again_ends_the_run_in_a_line(tmp_path, ray_cluster):
    (tmp_path / "marks").mkdir()
    steps = break_so_often(99, tmp_path / "marks")
    with pytest.raises(ClusterFailed, match=r"^a scorer was restarted 5 times and its GPU .* illegal"):
        list(steps.run([0], str(tmp_path)))
