"""How many requests a curation makes to S3: by phase and operation, and per million pairs.

    python -m bench.s3_requests [--runs 8x50,8x100,16x50,1x2000] [--pair-kb 50]

Each run curates SHARDS x ROWS rendered scenes with a scorer of one layer, materialised, in and out on an
S3 server of this machine (moto) behind the tests' proxy, which here only counts. Phases are separated by the
objects that end them. requests = a + b * shards + c * parts is fitted over the runs, a part being what
stage_part writes of one shard and one block; the worst misfit is printed. Rows alone cost no request: they
make parts, whose rows follow from the block size of 32 MiB and the 147 KiB of pixels of a row.

For shards of 10,000 pairs the last run's rows per part are taken, on a CPU as here; a GPU's calls take more
blocks at a time, so its parts are fewer. What grows with bytes is added: tars read twice, 8 MiB at a time,
the kept half sent 10 MiB at a time. All options are the defaults. Last line one JSON object.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lab.worlds.samples import world_shards
from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.table import Table
from tests.faults.proxy import Proxy, Request, run_proxy

ENDS = {
    "open": "/run.json",
    "align": "/waves/align-",
    "gate 1": "/parts/attribute/",
    "attribute": "/waves/attribute-",
    "gate 2": "/subset/subset.npy",
    "materialise": "/shards/__len__",
}
LAST = "report"
KINDS = ("head", "get", "list", "put", "part", "uploads", "complete", "delete")
# S3 asks about ten times as much for one of these as for a GET or HEAD; deleting is free.
WRITES = ("list", "put", "part", "uploads", "complete")
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_REGION": "us-east-1",
    "OMP_NUM_THREADS": "1",
}
PAIRS_PER_SHARD = 10_000
MILLION = 1_000_000
READ_BYTES, UPLOAD_BYTES = 8 << 20, 10 << 20


@contextmanager
def run_server() -> Iterator[str]:
    """Run an S3 server while the block runs; yield its endpoint."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(endpoint, timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield endpoint
    finally:
        server.terminate()
        server.wait(20)


def write_scorer(folder: Path) -> str:
    """Write the config of a CLIP of one layer; return its path."""
    vision = {"image_size": 224, "layers": 1, "width": 64, "head_width": 32, "patch_size": 112}
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
    path = folder / "tiny.json"
    path.write_text(json.dumps({"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}))
    return str(path)


def record_run(proxy: Proxy, model: str, root: str, num_shards: int, rows: int) -> list[Request]:
    """Curate once; return every request in order."""
    for name, samples in world_shards(num_shards * rows, 0, 0, per_shard=rows):
        write_tar(f"{root}/in/{name}", samples)
    proxy.start({})
    sets = [f"input={root}/in", f"scorer.model={model}", "scorer.weights=random:0", "materialize=true"]
    sets += ["cluster.executor=ray"]
    line = [sys.executable, "-m", "raycomp", "curate", "--out", f"{root}/out"]
    subprocess.run([*line, *(f"--set={text}" for text in sets)], check=True, stdout=subprocess.DEVNULL)
    seen = list(proxy.seen)
    assert Folder(f"{root}/out").exists("report.html")
    return seen


def split_phases(seen: list[Request]) -> dict[str, Counter]:
    """Return phase -> operation -> number. A phase ends with the last write of what ends it."""
    writes = [i for i, request in enumerate(seen) if request.method == "PUT"]
    phases: dict[str, Counter] = {}
    start = 0
    for name, mark in ENDS.items():
        found = [i for i in writes if mark in seen[i].key]
        # run.json is written again at the very end, the first part begins attribution.
        end = found[-1] + 1 if name not in ("open", "gate 1") else found[0] + (name == "open")
        phases[name] = Counter(request.kind for request in seen[start:end])
        start = end
    phases[LAST] = Counter(request.kind for request in seen[start:])
    return phases


def count_parts(seen: list[Request]) -> int:
    """Return how many parts were staged, both phases together."""
    keys = {request.key for request in seen if request.method == "PUT" and "/work/parts/" in request.key}
    return sum(key.endswith(".parquet") for key in keys)


def fit(shapes: list[tuple[int, int]], totals: list[float]) -> tuple[np.ndarray, float]:
    """Return a, b, c of a + b * shards + c * parts, and the worst misfit over the totals."""
    design = np.array([[1, shards, parts] for shards, parts in shapes], float)
    target = np.array(totals, float)
    found, *_ = np.linalg.lstsq(design, target, rcond=None)
    return found, float(np.abs(design @ found - target).max() / target.max())


def per_million(fits: dict[str, np.ndarray], parts_per_row: float, pair_bytes: int) -> dict[str, int]:
    """Return requests per million pairs in shards of PAIRS_PER_SHARD, reads and writes apart."""
    config, shards = CurateConfig(), MILLION // PAIRS_PER_SHARD
    # Every shard ends in a part that is not full, in both phases.
    parts = MILLION * parts_per_row + shards
    total_bytes = MILLION * pair_bytes
    more = {
        "reads": 2 * total_bytes / READ_BYTES,
        "writes": config.attribute.keep * total_bytes / UPLOAD_BYTES
        + 2 * shards / config.waves.shards_per_wave,
    }
    found = {name: float(np.dot(fits[name], [1, shards, parts])) + more[name] for name in fits}
    return {"parts": round(parts), **{name: round(value) for name, value in found.items()}}


def print_phases(shape: str, phases: dict[str, Counter]) -> None:
    """Print one run's table."""
    shown = {**phases, "all": sum(phases.values(), Counter())}
    rows = [(name, *(counts[kind] for kind in KINDS), counts.total()) for name, counts in shown.items()]
    print("", Table("", (shape, *KINDS, "all"), rows).to_text(), sep="\n", flush=True)


def main() -> None:
    """Run every shape, print its table, fit, and say what a million pairs take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", default="8x50,8x100,16x50,1x2000")
    parser.add_argument("--pair-kb", type=int, default=50)
    args = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    totals, shapes, runs = defaultdict(list), [], {}
    with tempfile.TemporaryDirectory() as folder, run_server() as endpoint, run_proxy(endpoint) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        model = write_scorer(Path(folder))
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bench", method="PUT")).close()
        for shape in args.runs.split(","):
            num_shards, rows = map(int, shape.split("x"))
            seen = record_run(proxy, model, f"s3://bench/{shape}", num_shards, rows)
            phases = split_phases(seen)
            print_phases(shape, phases)
            shapes.append((num_shards, count_parts(seen)))
            counts = sum(phases.values(), Counter())
            totals["writes"].append(sum(counts[kind] for kind in WRITES))
            totals["reads"].append(counts["head"] + counts["get"])
            runs[shape] = {"parts": shapes[-1][1], "phases": {n: dict(c) for n, c in phases.items()}}
    fits, misfits = {}, {}
    for name, values in totals.items():
        fits[name], misfits[name] = fit(shapes, values)
        a, b, c = fits[name]
        print(f"{name} = {a:.1f} + {b:.2f} * shards + {c:.2f} * parts, worst misfit {misfits[name]:.1%}")
    million = per_million(fits, shapes[-1][1] / (num_shards * rows), args.pair_kb * 1000)
    rounded = {name: [round(float(x), 2) for x in found] for name, found in fits.items()}
    print(json.dumps({"runs": runs, "fits": rounded, "misfits": misfits, "per_million_pairs": million}))


if __name__ == "__main__":
    main()
