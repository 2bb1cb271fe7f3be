"""Rows without images through duplicates, gates, selection and subset: what the driver and the disk need.

    python -m bench.scale_rows [--rows 1000000 3000000 10000000] [--per-file 100000] [--folder DIR]

Files of scores are made by Ray tasks: random uids of which one in a thousand stood before, alignments, a mean
PAS for all, captions of forty letters, no pictures, embeddings of one number. That is not timed. Timed, each
by itself, are the steps of a curation between and after its scoring phases, on a local cluster: finding and
marking duplicates, cutting the pool, choosing by cpi with subset.npy, planning the output shards, and writing
kept.parquet. Reported of each: wall seconds, the driver's own CPU seconds, and by how much its peak memory
grew. Each size is a process of its own. The last lines are the slopes from the second to last size to the
last, for 1e9 rows, and one JSON object. Goal for 1e9 rows: below 2 GB and an hour of CPU in the driver.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.selector import peak_mb
from raycomp.config import ClusterConfig
from raycomp.core.selection import format_uids
from raycomp.curation.config import (
    AttributeConfig,
    CurateConfig,
    SelectConfig,
    make_pool_selection,
    make_selection,
)
from raycomp.curation.outputs import plan_outputs
from raycomp.curation.score.score import mark_duplicates
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.select.select import choose, cut_pool, write_kept
from raycomp.data.files import Folder
from raycomp.data.parquet import aligned_schema, scores_schema, write_table
from raycomp.run.executor import connect
from raycomp.run.work import map_tasks
from raycomp.words import DUPLICATE_UID, OK, UID_CONFLICT

SCHEMA = scores_schema(aligned_schema(1, "float16"))
ROWS = 1_000_000_000
TWICE = 1000
"""One row in so many has the uid of the row as far into the first file."""


def make_file(ordinal: int, num_rows: int, folder: Folder) -> str:
    """Write one file of scores; return its uri."""
    rng = np.random.default_rng([0, ordinal])
    uid_N2 = rng.integers(0, 2**64, (num_rows, 2), dtype=np.uint64)
    if ordinal:
        first_N2 = np.random.default_rng([0, 0]).integers(0, 2**64, (num_rows, 2), dtype=np.uint64)
        uid_N2[::TWICE] = first_N2[::TWICE]
    uids = pa.array(format_uids(uid_N2))
    columns = {
        "uid": uids,
        "key": uids,
        "shard": pa.repeat(f"{ordinal:05d}.tar", num_rows),
        "position": pa.array(np.arange(num_rows, dtype=np.int32)),
        "image_sha256": uids,
        "caption": pa.repeat("a caption of some forty letters of a photo", num_rows),
        "status": pa.repeat(OK, num_rows),
        "alignment": pa.array(rng.normal(0.25, 0.05, num_rows).astype(np.float32)),
        "mean_pas": pa.array(rng.normal(0.02, 0.02, num_rows).astype(np.float32)),
        "image_embedding": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(num_rows, np.float16)), 1),
    }
    empty = {field.name: pa.nulls(num_rows, field.type) for field in SCHEMA if field.name not in columns}
    uri = folder.at(f"{ordinal:05d}.parquet")
    write_table(pa.table({name: {**empty, **columns}[name] for name in SCHEMA.names}), uri, SCHEMA)
    return uri


def measure(rows: int, per_file: int, place: str | None) -> dict[str, Any]:
    """Make so many rows and choose among them in this process; return what each step took."""
    mean_pas = AttributeConfig(aggregate="mean", unit="drop", targets="showable")
    config = CurateConfig(input="none", attribute=mean_pas, select=SelectConfig("cpi"))
    reported: dict[str, Any] = {"rows": rows}

    def time_step(name: str, step: Callable[[], Any]) -> Any:
        before, started, cpu_s = peak_mb(), time.perf_counter(), time.process_time()
        found = step()
        reported[f"{name}_driver_cpu_s"] = round(time.process_time() - cpu_s, 1)
        reported[f"{name}_s"] = round(time.perf_counter() - started, 1)
        reported[f"{name}_grew_mb"] = round(peak_mb() - before)
        return found

    on_ray = connect(ClusterConfig(executor="ray"), scores=False)
    with tempfile.TemporaryDirectory(dir=place) as temporary, on_ray:
        work, out = (Folder(f"{temporary}/{name}") for name in ("work", "out"))
        uris = list(map_tasks(make_file, range(rows // per_file), per_file, Folder(f"{temporary}/scores")))
        reported["files"], reported["peak_before_mb"] = len(uris), round(peak_mb())
        marked = time_step("duplicates", lambda: mark_duplicates(uris, rows, work))
        later = (len(uris) - 1) * -(-per_file // TWICE)
        assert marked[DUPLICATE_UID] + marked[UID_CONFLICT] == later, f"{marked}, made {later}"
        files = [ScoresFile(uri) for uri in uris]
        pool = make_pool_selection(config.pool, config.select.datacomp_compat)
        time_step("pool", lambda: cut_pool(files, pool))
        chosen = time_step("choose", lambda: choose(files, make_selection(config), out, work, lambda: None))
        outputs = time_step("outputs", lambda: plan_outputs(chosen.rows_S, chosen.pieces_S))
        assert sum(output.size for output in outputs) == chosen.num_kept
        time_step("kept", lambda: write_kept(chosen, out, work))
        assert chosen.num_kept == (rows - later) // 2, f"kept {chosen.num_kept} of {rows - later}"
        reported["kept"], reported["peak_mb"] = chosen.num_kept, round(peak_mb())
        subset = Path(temporary, "out", "subset")
        reported["subset_mb"] = round(sum(path.stat().st_size for path in subset.iterdir()) / 1e6)
    return reported


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--per-file", type=int, default=100_000)
    parser.add_argument("--folder", help="where the temporary folder is made: 100 bytes a row")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.rows[0], args.per_file, args.folder)))
        return
    sizes = []
    for rows in args.rows:
        own = ["--one", "--rows", str(rows), "--per-file", str(args.per_file)]
        own += ["--folder", args.folder] if args.folder else []
        line = [sys.executable, "-m", "bench.scale_rows", *own]
        output = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
        sizes.append(json.loads(output.splitlines()[-1]))
        print(sizes[-1], flush=True)
    slopes = {}
    if len(sizes) > 1:
        before, last = sizes[-2:]
        per_row = {name: (last[name] - before[name]) / (last["rows"] - before["rows"]) for name in last}
        slopes = {
            name: round(slope * ROWS)
            for name, slope in per_row.items()
            if name.endswith(("_cpu_s", "grew_mb"))
        }
        print(f"for {ROWS:.0e} rows", slopes)
    print(json.dumps({"bench": "scale_rows", "sizes": sizes, "slopes": slopes}))


if __name__ == "__main__":
    main()
