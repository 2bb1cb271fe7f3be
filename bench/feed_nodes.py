"""The training feed on fake nodes: bytes that each node gets, and waits of ranks that only sleep.

    python -m bench.feed_nodes [--ranks 8] [--nodes 1 2 4 8] [--fake 4] [--step_s 2.0] [--steps 24]

24 shards of 256 images of random pixels, four shards in a window, batches of 16 pairs per rank. Reading a
shard waits twice 30 ms.

Bytes: for ranks on so many nodes, the tables that the cache gives them in an epoch; a node gets every table
once. ``whole`` is the cache as it was: each rank takes whole shards. Expected: ``cut`` falls as 1/nodes,
``whole`` stays. Waits: ranks on ``--fake`` Ray nodes of two CPUs on this machine, each with an object store
of its own, iterate over ``Feed`` and sleep ``--step_s`` a step; a wait is the time until the next batch.
Expected: none above a tenth of a step after the first window. Last line one JSON object.
"""

import argparse
import json
import tempfile
import time
from collections import ChainMap
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import ray
from PIL import Image
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raycomp.config import ClusterConfig, ModelConfig
from raycomp.core.batches import EpochPlan
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.models.images import ImageSpec
from raycomp.run.executor import connect
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.training.journal import Course
from raycomp.training.pairs import Drawing, Pairs, find_pairs, make_index
from raycomp.training.ray_feed import Feed, ShardCache

SHARDS, ROWS, WINDOW, PER_RANK = 24, 256, 4, 16
REQUEST_S = 0.03
SPEC = ImageSpec(32, 32, (0.5,) * 3, (0.5,) * 3)


@dataclass(frozen=True)
class SlowPairs(Pairs):
    """Files in a store that answers a request after 30 ms."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("shards", "listed"):
            time.sleep(REQUEST_S)
        return super().__getattribute__(name)


def write_shards(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        samples = []
        for row in range(ROWS):
            buffer = BytesIO()
            Image.fromarray(rng.integers(0, 256, (48, 48, 3), np.uint8)).save(buffer, "PNG")
            samples.append((f"{row:03d}", {"png": buffer.getvalue(), "txt": b"a photo of noise"}))
        write_tar(str(folder / f"{shard:02d}.tar"), samples)


@ray.remote
class Rank:
    """A rank that trains by sleeping."""

    def __init__(self, course: Any, cache: Any, rank: int, num_ranks: int):
        self.feed = Feed(course[0], cache, rank, num_ranks)

    def sleep_all(self, steps: int, step_s: float) -> list[float]:
        """Return the wait for every batch."""
        waits, batches = [], self.feed.batches(0, steps)
        for _ in range(steps):
            started = time.perf_counter()
            next(batches)
            waits.append(time.perf_counter() - started)
            time.sleep(step_s)
        return waits


def start_ranks(nodes: list[str], course: Any, cache: Any, num_ranks: int) -> list[Any]:
    """Start the ranks, as many on each node."""
    return [
        Rank.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            [course], cache, rank, num_ranks
        )
        for rank, node in enumerate(np.repeat(nodes, num_ranks // len(nodes)).tolist())
    ]


def measure_bytes(source: Any, plan: EpochPlan, num_ranks: int, whole: bool) -> list[dict[Any, int]]:
    """Return the tables of an epoch of each rank, with their bytes."""
    cache = ShardCache([source], plan, plan.steps_per_epoch, 1 if whole else num_ranks)
    taken: list[dict[Any, int]] = [{} for _ in range(num_ranks)]
    for step in range(plan.steps_per_epoch):
        shards = set(plan.batch(step)[0].tolist())
        for rank, tables in enumerate(taken):
            refs = cache.take(step, 0 if whole else rank)
            for ref in (refs[shard] for shard in shards):
                if ref not in tables:
                    tables[ref] = ray.get(ref).nbytes
    return taken


def count_mb(taken: list[dict[Any, int]], num_nodes: int) -> float:
    """Return the megabytes of the node that gets most."""
    nodes = [ChainMap(*part) for part in np.array_split(np.array(taken, object), num_nodes)]
    return round(max(sum(tables.values()) for tables in nodes) / 1e6, 2)


def measure_waits(nodes: list[str], course: Any, source: Any, plan: EpochPlan, args: Any) -> dict[str, float]:
    steps = args.steps
    cache = ray.remote(num_cpus=0)(ShardCache).remote([source], plan, steps, args.ranks)
    ranks = start_ranks(nodes, course, cache, args.ranks)
    waits = np.array(ray.get([rank.sleep_all.remote(steps, args.step_s) for rank in ranks]))
    first = WINDOW * ROWS // (PER_RANK * args.ranks)
    later = waits[:, first:]
    return {
        "steps": steps,
        "first_window_s": round(float(waits[:, :first].sum(1).max()), 2),
        "later_median_s": round(float(np.median(later)), 4),
        "later_most_s": round(float(later.max()), 3),
        "later_share_of_steps": round(float(later.sum() / (later.size * args.step_s)), 4),
        "waits_above_a_tenth": int((later > args.step_s / 10).sum()),
        "of": later.size,
    }


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--fake", type=int, default=4)
    parser.add_argument("--step_s", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    cluster = Cluster()
    for _ in range(args.fake):
        cluster.add_node(num_cpus=2, object_store_memory=300 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    found: dict[str, Any] = {"mb_of_a_node": {}}
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder) / "in")
        pairs = find_pairs(TrainConfig(input=f"{folder}/in"))
        with connect(ClusterConfig(executor="ray"), scores=False):
            index = make_index(pairs, Folder(f"{folder}/work"))
        source = ray.put(SlowPairs(**vars(pairs) | {"listed": index.uris}))
        plan = EpochPlan(index.rows_S, PER_RANK * args.ranks, WINDOW, 0)
        model = ModelConfig(name="ViT-B-32", weights="random:0")
        course = ray.put(Course(plan, Drawing(SPEC, model, FitConfig(), pairs.max_pixels)))
        sides = {name: measure_bytes(source, plan, args.ranks, name == "whole") for name in ("cut", "whole")}
        for num in args.nodes:
            mb = {name: count_mb(taken, num) for name, taken in sides.items()}
            found["mb_of_a_node"][num] = mb
            print(f"| {num} | {mb['cut']} | {mb['whole']} |", flush=True)
        del sides
        found["waits"] = measure_waits(nodes, course, source, plan, args)
        print(found["waits"], flush=True)
    print(json.dumps(found))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
