"""Cost of a pass over very many shards for the driver before any work is done: seconds and memory.

    python -m bench.many_shards [--shards 3000,10000,30000,1000000] [--num-cpus 8]

Every shard is one row made on the spot, so nothing is read: a pass over all of them is scheduled and runs
until the first parts are there, then it is stopped. Each size is a process of its own. Slopes are those of
the straight line closest to the sizes, per million shards. Last line one JSON object.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from bench.selector import peak_mb
from raycomp.config import ClusterConfig
from raycomp.run.executor import Part, Pass, connect
from raycomp.table import Table
from raycomp.words import OK, POSITION, SHARD_ORDINAL, STATUS

SHOWN = ("shards", "seconds", "grew_mb")


def read_one(ordinal: int) -> Iterator[pa.Table]:
    """Yield the only row of a shard."""
    yield pa.table(
        {
            SHARD_ORDINAL: pa.array([ordinal], pa.int32()),
            POSITION: pa.array([0], pa.int32()),
            STATUS: pa.array([OK]),
        }
    )


def measure(num_shards: int, num_cpus: int) -> dict[str, Any]:
    """Schedule a pass over so many shards in this process; return its cost until the first parts."""
    schema = pa.schema([(POSITION, pa.int32())])
    config = ClusterConfig(executor="ray", num_cpus=num_cpus)
    with tempfile.TemporaryDirectory() as folder, connect(config) as session:
        items = {ordinal: ordinal for ordinal in range(num_shards)}
        before, started = peak_mb(), time.perf_counter()
        steps = Pass(session, items, read_one, (), Part(schema), rows=1)
        first = next(steps.run(list(items), folder))
        assert first, "no part metadata arrived"
        seconds = time.perf_counter() - started
        return {"shards": num_shards, "seconds": round(seconds, 1), "grew_mb": round(peak_mb() - before)}


def main() -> None:
    """Measure every size; print the table and the slopes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", default="3000,10000,30000,1000000")
    parser.add_argument("--num-cpus", type=int, default=8)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.num_cpus)))
        return
    sizes = []
    for text in args.shards.split(","):
        line = [sys.executable, "-m", "bench.many_shards", "--one", text, "--num-cpus", str(args.num_cpus)]
        output = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
        sizes.append(json.loads(output.splitlines()[-1]))
        print(sizes[-1], flush=True)
    shards = [size["shards"] / 1e6 for size in sizes]
    slopes = {name: float(np.polyfit(shards, [size[name] for size in sizes], 1)[0]) for name in SHOWN[1:]}
    rows = [tuple(size.values()) for size in sizes]
    print(Table("", SHOWN, [*rows, ("per 1,000,000", *slopes.values())]).to_text())
    print(json.dumps({"bench": "many_shards", "sizes": sizes, "slopes": slopes}))


if __name__ == "__main__":
    main()
