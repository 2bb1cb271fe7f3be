"""What raycomp expects of Ray beyond what Ray promises: a new Ray that breaks one of these fails here."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.job_config import JobConfig

from raycomp.run import ray_cluster as ray_private
from raycomp.run.ray_cluster import JOB_VARIABLE, ForgetBlocks, count_restarts, count_there, drain_node

PATIENCE_S = 120


class Teller:
    """An actor of a pool that tells how many of them there are, and how often it was started again."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[int]]:
        if not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os._exit(1)
        (self.folder / "alive").touch()
        deadline = time.monotonic() + PATIENCE_S
        while not (self.folder / "counted").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return {"restarts": [count_restarts()] * len(batch["id"])}


def count_meanwhile(folder: Path) -> tuple[int, int]:
    """Return the scorers and CPUs that there are while the actor is at work."""
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "alive").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        return count_there()
    finally:
        (folder / "counted").touch()


def test_actors_of_a_pool_are_counted_and_know_how_often_they_were_started_again(tmp_path, ray_cluster):
    """The first dies at its first call, as one whose GPU broke does."""
    before, _ = count_there()
    rows = ray.data.range(2, override_num_blocks=1).map_batches(
        Teller,
        fn_constructor_args=(str(tmp_path),),
        batch_size=2,
        compute=ActorPoolStrategy(size=1),
        num_cpus=0.5,
    )
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(count_meanwhile, tmp_path)
        reported = [row["restarts"] for row in rows.iter_rows()]
        scorers, cpus = counted.result()
    assert reported == [1, 1]
    assert scorers == before + 1 and cpus == int(ray.cluster_resources()["CPU"])


def test_a_cluster_without_an_autoscaler_has_no_limits(ray_cluster):
    assert ray_private.state.get_max_resources_from_cluster_config() is None


NAMED = """
import os, sys
import pyarrow as pa
import ray
from raycomp.run.ray_cluster import JOB_VARIABLE
ray.init(address=sys.argv[1], log_to_driver=False)
print(ray.get_runtime_context().runtime_env.get("env_vars"))
"""


def test_a_submitted_jobs_config_is_in_its_environment(ray_cluster):
    """Ray reads it there where a driver connects: so the name is right, and what is in it is json."""
    config = {"runtime_env": {"env_vars": {"NAMED_BY_THE_JOB": "1"}}, "metadata": {}}
    assert JobConfig.from_json(config).runtime_env["env_vars"] == {"NAMED_BY_THE_JOB": "1"}
    env = {**os.environ, JOB_VARIABLE: json.dumps(config)}
    line = [sys.executable, "-c", NAMED, ray_cluster]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, env=env)
    assert done.stdout.strip() == "{'NAMED_BY_THE_JOB': '1'}", done


def pass_on(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return batch


def test_notes_on_blocks_are_where_they_are_forgotten(ray_cluster):
    """They grow without the callback, so what it clears is what Ray Data keeps."""
    kept: list[int] = []

    class Observe(ExecutionCallback):
        def on_execution_step(self, executor: object) -> None:
            operators = [one for one in executor._topology if isinstance(one, ray_private.MapOperator)]
            assert operators
            kept.append(max(len(one._output_blocks_stats) for one in operators))

    context = DataContext.get_current()
    before = context.custom_execution_callback_classes
    assert ForgetBlocks in before
    for classes, most in (([ForgetBlocks, Observe], 0), ([Observe], 12)):
        kept.clear()
        context.custom_execution_callback_classes = classes
        try:
            list(ray.data.range(12, override_num_blocks=12).map_batches(pass_on).iter_batches())
        finally:
            context.custom_execution_callback_classes = before
        assert max(kept) == most


def test_a_machine_that_the_cluster_does_not_have_is_not_drained(ray_cluster):
    """The client, its list of nodes and the reason for it are there; who is drained: test_ray_submit.py."""
    assert drain_node(ray_cluster, "i-none", 0) == f"no node of the cluster at {ray_cluster}"


def test_a_read_task_of_megabytes_is_read(ray_cluster):
    """Ray names it in a warning, by the name of its function."""
    source = ray_private.ItemSource([0, 1], partial(read_held, bytes(3 << 20)))
    assert sorted(row["id"] for row in ray.data.read_datasource(source).take_all()) == [0, 1]


def read_held(held: bytes, item: int) -> Iterator[pa.Table]:
    """Yield a table of an item; what is ``held`` makes the task large."""
    yield pa.table({"id": [item]})
