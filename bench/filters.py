"""Filters and near-duplicates over generated tables: seconds and peak memory by the number of rows.

    python -m bench.filters [--rows 1000000,3000000,10000000] [--repeats 3] [--names NAMES]

Files of 100,000 rows are generated: random uids, a hash of an image of which one in fifty occurs twice,
perceptual hashes of which one in fifty is two bits from another, captions with numbers, urls of a thousand
domains, a width, and a score in a table to join. For near semantic and clusters they also have random
embeddings of 512 dims, of which one in fifty has a cosine of .995 with another. That is not timed. Timed is
``mark_rows`` of a curation, on the local executor, in a process of its own: a condition, a joined table of
all rows, an opt-out list of 1 % of the uids, near-duplicates by each rule, and caps of 50 rows on 1,000
clusters. One thread. Prints a row for each, then the slope: seconds and bytes for a million rows, by least
squares over all runs with a 95 % interval by Student's t, and what it gives for 1e8 rows. Perceptual pairs
grow with the square of the rows: no slope is given.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from raycomp.config import override_all
from raycomp.core.selection import format_uids
from raycomp.curation.config import CurateConfig
from raycomp.curation.select.marks import mark_rows
from raycomp.data.files import Folder
from raycomp.data.parquet import write_table
from raycomp.run.executor import use
from raycomp.run.local import Local

PER_FILE = 100_000
SETTINGS: dict[str, dict[str, Any]] = {
    "where": {"filter.where": "alignment > 0.2 and original_width >= 200 and url like '%7%'"},
    "join": {"filter.join": "more.parquet", "filter.where": "score < 0.5"},
    "exclude": {"filter.exclude": "optout.txt"},
    "near exact": {"near.rules": ("exact",)},
    "near captions": {"near.rules": ("captions",)},
    "near perceptual": {"near.rules": ("perceptual",)},
    "near semantic": {"near.rules": ("semantic",)},
    "clusters": {"near.clusters": 1000, "near.cap": 50},
}
OF_EMBEDDINGS = ("near semantic", "clusters")
DIM = 512


def make_file(number: int, folder: Path, with_embeddings: bool) -> None:
    """Write one file of scores, and its part of the joined table and of the list."""
    rng = np.random.default_rng([1, number])
    uids = format_uids(rng.integers(0, 2**64, (PER_FILE, 2), dtype=np.uint64))
    image = rng.integers(0, 2**64, (PER_FILE, 4), dtype=np.uint64)
    hashes = rng.integers(1, 2**63, PER_FILE, dtype=np.uint64)
    image[1::50], hashes[1::50] = image[::50], hashes[::50] ^ np.uint64(0b1001)
    columns = {
        "uid": uids,
        "image_sha256": [row.tobytes().hex() for row in image],
        "perceptual_hash": pa.array(hashes, pa.uint64()),
        "url": [f"https://host{i % 1000}.org/{i}.jpg" for i in range(PER_FILE)],
        "caption": [f"a caption of photo number {number} {i - i % 2}" for i in range(PER_FILE)],
        "original_width": pa.array(rng.integers(50, 2000, PER_FILE), pa.int32()),
        "alignment": pa.array(rng.normal(0.25, 0.05, PER_FILE), pa.float32()),
    }
    if with_embeddings:
        columns["image_embedding"] = draw_embeddings(rng)
    table = pa.table(columns)
    write_table(table, str(folder / f"scores/{number:05d}.parquet"), table.schema)
    pq.write_table(
        pa.table({"uid": uids, "score": rng.random(PER_FILE)}), folder / f"more/{number:05d}.parquet"
    )
    with open(folder / "optout.txt", "a") as file:
        file.writelines(f"{uid}\n" for uid in uids[::100])


def draw_embeddings(rng: np.random.Generator) -> pa.FixedSizeListArray:
    """Return random rows of length 1, one in fifty near another."""
    rows = rng.normal(size=(PER_FILE, DIM)).astype(np.float32)
    rows[1::50] = rows[::50] + 0.1 * rows[1::50]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.astype(np.float16).reshape(-1)), DIM)


def measure(folder: Path, name: str) -> dict[str, float]:
    """Mark all rows; return seconds, and the growth of this process's peak memory in MB."""
    files = sorted(str(path) for path in (folder / "scores").iterdir())
    config = override_all(CurateConfig(), SETTINGS[name])
    before = peak_mb()
    os.chdir(folder)
    started = time.perf_counter()
    with use(Local(1)):
        out = Folder(str(folder / name.replace(" ", "-")))
        mark_rows(files, config, out, out, Folder(str(folder / "work")))
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "mb": peak_mb() - before}


def peak_mb() -> float:
    """Return this process's peak memory; ru_maxrss would be that of the process that started it."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) / 1024


def fit(rows: list[float], values: list[float]) -> str:
    """Return the slope for a million rows with its interval, and the value at 1e8 rows."""
    line = stats.linregress(np.array(rows) / 1e6, values)
    half = stats.t.ppf(0.975, max(len(rows) - 2, 1)) * line.stderr
    at = line.intercept + 100 * line.slope
    return f"{line.slope:.2f} [{line.slope - half:.2f}, {line.slope + half:.2f}], 1e8 rows: {at:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1000000,3000000,10000000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", default=None)
    plain = ",".join(name for name in SETTINGS if name not in OF_EMBEDDINGS)
    parser.add_argument("--names", default=plain, help="what is timed, separated by commas")
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "NAME"))
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(Path(arguments.one[0]), arguments.one[1])))
        return
    names = arguments.names.split(",")
    found: dict[str, list[tuple[int, float, float]]] = {name: [] for name in names}
    for num_rows in map(int, arguments.rows.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
            folder = Path(place)
            for name in ("scores", "more"):
                (folder / name).mkdir()
            for number in range(num_rows // PER_FILE):
                make_file(number, folder, any(name in OF_EMBEDDINGS for name in names))
            parts = [pq.read_table(path) for path in sorted((folder / "more").iterdir())]
            pq.write_table(pa.concat_tables(parts), folder / "more.parquet")
            for name in names * arguments.repeats:
                command = [sys.executable, "-m", "bench.filters", "--one", place, name]
                ended = subprocess.run(command, capture_output=True, text=True, check=True)
                one = json.loads(ended.stdout.splitlines()[-1])
                found[name].append((num_rows, one["seconds"], one["mb"]))
                print(
                    f"{name:16} {num_rows:>11,} rows {one['seconds']:8.1f} s {one['mb']:8.0f} MB", flush=True
                )
    for name, runs in found.items():
        if name != "near perceptual" and len({rows for rows, *_ in runs}) > 1:
            rows, seconds, mb = map(list, zip(*runs, strict=True))
            print(f"{name}: s per million rows {fit(rows, seconds)}; MB per million rows {fit(rows, mb)}")


if __name__ == "__main__":
    main()
