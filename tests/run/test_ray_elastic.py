"""A cluster that grows from its head alone, and back: late scorers are used, and the bytes stay the same."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import ray

from raycomp.config import ClusterConfig
from raycomp.data.files import Folder
from raycomp.run.executor import connect
from raycomp.run.ray_cluster import count_there
from tests.run.growing import kill_node, start_growing
from tests.run.slow_scorer import digest, score, score_at_once

# Of a node's CPUs a scorer takes two: Ray Data asks for more nodes where most are taken.
NODES, CPUS, IDLE_S = 3, 3, 20
PATIENCE_S = 600


def drive(out: str, loses_node: bool) -> None:
    """Run in the driver of a growing cluster; print what was seen."""
    folder = Folder(out)
    seen: dict[float, int] = {}
    killed: list[str] = []
    over = threading.Event()
    started = time.monotonic()

    def watch() -> None:
        while not over.wait(0.5):
            alive = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            seen[round(time.monotonic() - started, 1)] = len(alive)
            scorers, _ = count_there()
            if loses_node and not killed and scorers and len(alive) > 1:
                killed.append(alive[0])
                kill_node(alive[0])
            elif set(killed) - set(alive) if loses_node else scorers > 1:
                folder.write_bytes(b"", "mark")

    with connect(ClusterConfig(executor="ray", gpu=False), scores=False):
        threading.Thread(target=watch, daemon=True).start()
        phase = score(ClusterConfig(scorers=f"1..{NODES}", gpu=False), folder)
        deadline = time.monotonic() + PATIENCE_S
        while [*seen.values()][-1] and time.monotonic() < deadline:
            time.sleep(0.5)
        over.set()
    print(json.dumps({"phase": phase, "nodes": seen, "killed": killed, "digest": digest(folder)}))


@pytest.mark.slow
@pytest.mark.parametrize("loses_node", [False, True])
def test_late_scorers_are_used_and_the_bytes_are_those_of_one_machine(tmp_path, ray_cluster, loses_node):
    code = f"from tests.run.test_ray_elastic import drive; drive({str(tmp_path / 'many')!r}, {loses_node})"
    with (
        tempfile.TemporaryDirectory(prefix="grow") as name,
        start_growing(Path(name), CPUS, NODES, IDLE_S) as env,
    ):
        line = [sys.executable, "-c", code]
        done = subprocess.run(line, capture_output=True, text=True, timeout=2 * PATIENCE_S, env=env)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["digest"] == score_at_once(tmp_path / "one")
    nodes = list(reported["nodes"].values())
    assert nodes[0] == 0 and max(nodes) > 1 and nodes[-1] == 0
    assert bool(reported["killed"]) == loses_node
    scorers = [scorers for _, scorers, _ in reported["phase"]["growth"]]
    assert scorers[0] == 0 and max(scorers) > (not loses_node)
