"""Scoring through Ray against a bare loop with the same encoders, on real photos.

    python -m bench.pipeline ../shared [--copies 1] [--model ViT-B-32] [--nodes 4]

Both sides read the same tars, prepare, align every pair and attribute the 70 % best; both load the model
twice. The loop is one process and writes nothing; Ray adds its blocks, its object store and the staging,
merging and committing of files. Ray is started before the clock. In turn, loop first; last line one JSON
object. With ``--nodes`` Ray is a cluster of so many nodes plus its head, all on this machine, with a scorer
for each: they share the cores that the loop has to itself. So many loops side by side, each with its part of
the shards, are a second baseline: they share the cores, too, and have as many copies of the model.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
from ray.cluster_utils import Cluster

from jobs.real_photos import write_shards
from raycomp.config import ClusterConfig, ScorerConfig, exact_share
from raycomp.curation.config import CurateConfig
from raycomp.curation.score.score import Scoring, align_stages, score
from raycomp.curation.score.stages import Align, Attribute, parse
from raycomp.data.files import Folder
from raycomp.data.inputs import expand_input
from raycomp.data.reader import read_shard
from raycomp.models.architecture import ScorerSpec, describe_scorer
from raycomp.run.executor import connect
from raycomp.words import ALIGNMENT, OK, STATUS, UID

BLOCK_ROWS = 64
CAPTIONS_PER_CALL = 256
# A scorer's two, and two for reading, decoding and parsing.
_CPUS_PER_NODE = 4


def read_prepared(
    config: CurateConfig, spec: ScorerSpec, part: int = 0, parts: int = 1
) -> Iterator[pa.Table]:
    """Yield the blocks of a part of the input's shards, decoded and tokenised."""
    decode, _ = align_stages(config, spec)
    for shard in expand_input(config.input, config.prepare.stored_embeddings)[part::parts]:
        for block in read_shard(shard, BLOCK_ROWS):
            yield decode.work(block)


def attribute_best(config: CurateConfig, aligned: pa.Table, attribute: Attribute) -> pa.Table:
    """Return the best aligned share of the rows, parsed and attributed."""
    table = aligned.filter(pa.array([status == OK for status in aligned[STATUS].to_pylist()]))
    order = np.lexsort((table[UID].to_numpy(), -table[ALIGNMENT].to_numpy()))
    pool = table.take(pa.array(np.sort(order[: exact_share(config.pool, len(table))])))
    parts = []
    for start in range(0, len(pool), CAPTIONS_PER_CALL):
        part = pool.slice(start, CAPTIONS_PER_CALL)
        parts.append(attribute(parse(part, config.parser, config.nonce, config.attribute, config.scorer)))
    return pa.concat_tables(parts)


def run_loop(config: CurateConfig, spec: ScorerSpec, part: int = 0, parts: int = 1) -> float:
    """Return the seconds that one plain process takes for a part of the shards."""
    started = time.perf_counter()
    align = Align(config.scorer, spec)
    aligned = pa.concat_tables([align(block) for block in read_prepared(config, spec, part, parts)])
    attribute_best(config, aligned, Attribute(config.scorer))
    return time.perf_counter() - started


def run_loops(config: CurateConfig, spec: ScorerSpec, count: int) -> float:
    """Return the seconds that so many plain processes take for the whole, their start included."""
    started = time.perf_counter()
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        waiting = [pool.submit(run_loop, config, spec, part, count) for part in range(count)]
        for one in waiting:
            one.result()
    return time.perf_counter() - started


def run_ray(config: CurateConfig, spec: ScorerSpec, out: Path) -> float:
    """Return the seconds that the phases take on Ray, from shards to committed scores."""
    with connect(config.cluster) as session:
        folder = Folder(str(out))
        started = time.perf_counter()
        shards = expand_input(config.input)
        score(Scoring(config, spec, shards, folder, Folder(folder.at("work")), session))
        return time.perf_counter() - started


@contextmanager
def start_nodes(count: int) -> Iterator[str | None]:
    """Start a head and so many nodes on this machine; yield their address, none where there are no nodes."""
    if not count:
        yield None
        return
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(count):
            cluster.add_node(num_cpus=_CPUS_PER_NODE, object_store_memory=500_000_000)
        yield cluster.address
    finally:
        cluster.shutdown()


def main() -> None:
    """Make the shards, time both sides in turn, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--copies", type=int, default=1, help="how often the photos stand in the input")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--nodes", type=int, default=0, help="nodes on this machine; 0 = Ray alone")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = sum(write_shards(args.shared, Path(folder) / f"in/{i}") for i in range(args.copies))
        config = CurateConfig(
            input=f"{folder}/in", scorer=ScorerConfig(model=args.model, weights="random:0"), materialize=False
        )
        spec = describe_scorer(config.scorer)
        taken: dict[str, list[float]] = {"loop": [], "loops": [], "ray": []}
        for i in range(args.rounds):
            taken["loop"].append(run_loop(config, spec))
            if args.nodes:
                taken["loops"].append(run_loops(config, spec, args.nodes))
            with start_nodes(args.nodes) as address:
                cluster = ClusterConfig(executor="ray", address=address, scorers=args.nodes or None)
                taken["ray"].append(run_ray(replace(config, cluster=cluster), spec, Path(folder) / f"out{i}"))
    report = {"rows": rows, "model": args.model, "nodes": args.nodes}
    for name, seconds in taken.items():
        if seconds:
            ratios = [own / ray for own, ray in zip(seconds, taken["ray"], strict=True)]
            report[f"{name}_rows_per_s"] = rows / float(np.median(seconds))
            if name != "ray":
                report[f"ray_over_{name}"] = float(np.median(ratios))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
