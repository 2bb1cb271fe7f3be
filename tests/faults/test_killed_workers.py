"""Workers and nodes that are killed, as a machine short of memory would: Ray runs their work again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from ray._private.ray_constants import OBJECT_STORE_MINIMUM_MEMORY_BYTES as SMALLEST_STORE
from ray._private.ray_constants import PROCESS_TYPE_RAYLET
from ray.cluster_utils import Cluster

from tests.faults.harness import (
    Run,
    check_promise,
    find_parent,
    finish,
    processes,
    start,
)

ALIGN, ATTRIBUTE = "ray::MapWorker(MapBatches(align))", "ray::MapWorker(MapBatches(attribute))"
# A scoring actor loads its model under its own name with a suffix.
LOADING = ".__init__"
WORKERS = [
    f"{ALIGN}{LOADING}",
    "ray::MapBatches(decode)",
    "ray::_merge_timed",
    "ray::MapBatches(parse)",
    f"{ATTRIBUTE}{LOADING}",
    "ray::_do_each",  # what ``map_files`` runs, such as the choice of rows
    "ray::_write_output",
]

# Holds nine tenths of the smallest store and reads it over and over: Ray must fetch back what it spilled.
HOG = """
import sys, time
import numpy, ray
ray.init(address=sys.argv[1], log_to_driver=False)
held = [ray.put(numpy.ones(2**23, numpy.uint8)) for _ in range(8)]
print("full", flush=True)
while True:
    for ref in held:
        ray.get(ref)
    time.sleep(0.1)
"""


def scores_now(run: Run, phase: str) -> bool:
    """Whether a phase's scorer is at work: something is staged."""
    return bool(run.out.list_names("work", "parts", phase))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "phase"), [*((name, None) for name in WORKERS), (ATTRIBUTE, "attribute")])
def test_a_killed_worker_is_replaced(calm, out, name, phase):
    with start(calm[0], out.uri, "cluster.block_rows=5") as run:
        run.reach(lambda: (phase is None or scores_now(run, phase)) and run.kill_worker(name))
        assert run.wait()[0] == 0
    check_promise(run.out, calm[1])


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """A head that is too small for a scorer, and two nodes of which either can hold it."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=3)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def full_store() -> Iterator[Cluster]:
    """A node with the smallest object store there is, which another driver keeps full of what it reads."""
    node = {"num_cpus": 6, "include_dashboard": False, "object_store_memory": SMALLEST_STORE}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        line = [sys.executable, "-c", HOG, cluster.address]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as hog:
            assert hog.stdout.readline() == "full\n"
            yield cluster
            assert hog.poll() is None, "nothing filled the store"
            hog.kill()
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_a_full_object_store_changes_no_byte(calm, out, full_store):
    config, expected = calm
    finish(config, out, expected, f"cluster.address={full_store.address}")


def kill_node_of(nodes: Cluster, name: str) -> bool:
    """Kill the raylet above a worker of that name; its workers die with it."""
    raylets = {node.all_processes[PROCESS_TYPE_RAYLET][0].process.pid for node in nodes.worker_nodes}
    for pid, line in processes(os.getsid(0)).items():
        if line.startswith(name) and (raylet := find_parent(pid)) in raylets:
            os.kill(raylet, signal.SIGKILL)
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("name", "phase"), [(ALIGN, "align"), (ATTRIBUTE, "attribute")])
def test_a_lost_node_loses_nothing(calm, out, nodes, name, phase):
    config, expected = calm
    options = (f"cluster.address={nodes.address}", "cluster.block_rows=5", "scorer.batch_size=5")
    with start(config, out.uri, *options) as run:
        run.reach(lambda: scores_now(run, phase) and kill_node_of(nodes, name))
        assert run.wait()[0] == 0
    check_promise(out, expected)
