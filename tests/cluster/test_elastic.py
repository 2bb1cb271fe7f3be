"""A cluster that grows from its head alone, and back: late scorers are used, and the bytes stay the same."""

import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import ray

from raycomp.cluster.growth import count_there
from raycomp.cluster.parts import Part, read_parts
from raycomp.cluster.passes import Pass
from raycomp.cluster.record import describe_phases
from raycomp.cluster.session import connect
from raycomp.cluster.waves import Phase
from raycomp.config import ClusterConfig
from raycomp.loops.stage import SCORERS, Stage
from raycomp.shards.folder import Folder
from raycomp.shards.parquet import write_table
from raycomp.shards.paths import join_uri
from raycomp.words import OK, POSITION, SHARD_ORDINAL, STATUS
from tests.cluster.growing import kill_node, start_growing
from tests.cluster.test_passes import Clock

NUM_SHARDS, ROWS, PER_CALL = 24, 128, 16
# What a call takes until all scorers are there, and after that.
SLOW_S, QUICK_S = 5.0, 0.05
PATIENCE_S = 600
NODES, CPUS, IDLE_S = 3, 4, 20
SCHEMA = pa.schema([(POSITION, pa.int32()), ("score", pa.float64())])


def read(ordinal: int) -> Iterator[pa.Table]:
    for start in range(0, ROWS, PER_CALL):
        yield pa.table(
            {
                SHARD_ORDINAL: pa.array([ordinal] * PER_CALL, pa.int32()),
                POSITION: pa.array(range(start, start + PER_CALL), pa.int32()),
                STATUS: pa.array([OK] * PER_CALL),
            }
        )


class Slow:
    """A scorer that waits as a GPU would compute, until there is a mark not as long."""

    def __init__(self, num_threads: int | None, mark: str):
        self.device, self.mark = Clock(), Path(mark)

    def __call__(self, table: pa.Table) -> pa.Table:
        time.sleep(QUICK_S if self.mark.exists() else SLOW_S)
        rows = zip(table[SHARD_ORDINAL].to_pylist(), table[POSITION].to_pylist(), strict=True)
        return table.append_column("score", pa.array([hash(row) / 2**64 for row in rows]))


def merge(ordinal: int, parts_uri: str, names: list[str], target_uri: str) -> int:
    table = read_parts(parts_uri, names)
    write_table(table.select(SCHEMA.names), join_uri(target_uri, f"{ordinal:05d}.parquet"), SCHEMA)
    return len(table)


def score(config: ClusterConfig, out: Folder) -> dict:
    """Score all shards into ``out``; return what run.json would say of it."""
    with connect(config) as session:
        items = {ordinal: ordinal for ordinal in range(NUM_SHARDS)}
        stage = Stage("score", "waits", SCORERS, partial(Slow, mark=out.at("mark")))
        steps = Pass(session, items, read, (stage,), Part(SCHEMA), rows=PER_CALL, scorer_rows=PER_CALL)
        target = (out.at("scores"),)
        work = Folder(out.at("work"))
        phase = Phase("score", work, 4, merge, target, steps.crew, lambda: None, steps.most)
        stats = phase.run(list(items), steps.lay, dict.fromkeys(items, ROWS))
    return describe_phases({"score": stats})[0]


def digest(out: Folder) -> str:
    names = sorted(out.list_names("scores"))
    assert len(names) == NUM_SHARDS
    return hashlib.sha256(b"".join(out.read_bytes("scores", name) for name in names)).hexdigest()


def drive(out: str, loses_node: bool) -> None:
    """Run in the driver of a growing cluster; print what was seen."""
    folder = Folder(out)
    seen: dict[float, int] = {}
    killed: list[str] = []
    over = threading.Event()
    started = time.monotonic()

    def watch() -> None:
        while not over.wait(0.5):
            alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            seen[round(time.monotonic() - started, 1)] = len(alive)
            scorers, _ = count_there()
            if loses_node and scorers > 1 and not killed:
                killed.append(alive[0]["NodeID"])
                kill_node(killed[0])
            elif scorers == NODES:
                folder.write_bytes(b"", "mark")

    with connect(ClusterConfig(gpu=False), scores=False):
        threading.Thread(target=watch, daemon=True).start()
        phase = score(ClusterConfig(scorers=f"1..{NODES}", gpu=False), folder)
        deadline = time.monotonic() + PATIENCE_S
        while [*seen.values()][-1] and time.monotonic() < deadline:
            time.sleep(0.5)
        over.set()
    print(json.dumps({"phase": phase, "nodes": seen, "killed": killed, "digest": digest(folder)}))


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("loses_node", [False, True])
def test_late_scorers_are_used_and_the_bytes_are_those_of_one_machine(tmp_path, ray_cluster, loses_node):
    one = Folder(str(tmp_path / "one"))
    one.write_bytes(b"", "mark")
    score(ClusterConfig(gpu=False), one)
    code = f"from tests.cluster.test_elastic import drive; drive({str(tmp_path / 'many')!r}, {loses_node})"
    with (
        tempfile.TemporaryDirectory(prefix="grow") as name,
        start_growing(Path(name), CPUS, NODES, IDLE_S) as env,
    ):
        line = [sys.executable, "-c", code]
        done = subprocess.run(line, capture_output=True, text=True, timeout=2 * PATIENCE_S, env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["digest"] == digest(one)
    nodes = list(told["nodes"].values())
    assert nodes[0] == 0 and max(nodes) > 1 and nodes[-1] == 0
    assert bool(told["killed"]) == loses_node
    scorers = [scorers for _, scorers, _ in told["phase"]["growth"]]
    assert scorers[0] == 0 and max(scorers) == NODES
