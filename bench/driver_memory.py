"""Peak memory of the driver at 1x and 10x rows; what grows must be the disk, not the driver.

    python bench/driver_memory.py [--rows 2000]

Curates the little world with a one-layer scorer, in a new process for each size. Last line one JSON object.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import raycomp
from lab.worlds.samples import world_shards
from raycomp.config import ClusterConfig, ScorerConfig
from raycomp.curation.config import CurateConfig
from raycomp.data.samples import write_tar

PER_SHARD = 500
TINY = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
}


def measure(rows: int) -> dict[str, float]:
    """Curate ``rows`` rows in this process; return its peak resident memory."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.json"
        model.write_text(json.dumps(TINY))
        for name, samples in world_shards(rows, 0, seed=0, per_shard=PER_SHARD):
            write_tar(f"{folder}/in/{name}", samples)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        scorer = ScorerConfig(model=str(model), weights="random:0")
        config = CurateConfig(input=f"{folder}/in", scorer=scorer, cluster=ClusterConfig(executor="ray"))
        run = raycomp.curate(config, f"{folder}/out")
        assert run["funnel"]["read"] == rows
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"rows": rows, "before_mb": before / 1024, "peak_mb": peak / 1024}


def main() -> None:
    """Measure both sizes in processes of their own and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one)))
        return
    results = []
    for rows in (args.rows, 10 * args.rows):
        command = [sys.executable, __file__, "--one", str(rows)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        results.append(json.loads(output.splitlines()[-1]))
        print(results[-1])
    small, large = results
    print(json.dumps({"peak_ratio_10x_over_1x": large["peak_mb"] / small["peak_mb"], "sizes": results}))


if __name__ == "__main__":
    main()
