"""How long the same curation takes in this process and on Ray, by its size: what chose MOST_LOCAL_BYTES.

    python -m bench.executors [--photos 200,800] [--model ViT-B-32] [--out bench/results/executors_size.csv]

Curates the real photos of the folder RAYCOMP_SHARED (else ../shared), again and again under other keys until
there are as many as asked for, in shards of 200, from reading to shards, as a command of its own on each
executor, in turn. A line through the seconds of the smallest and the largest run has a start and a rate;
Ray is faster from where the two lines cross, if they do.
"""

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.digest_inputs import PHOTO_SET, write_shards
from bench.digests import ROOT, Place

COLUMNS = ("model", "photos", "megabytes", "executor", "seconds", "cpu_seconds")
_PER_SHARD = 200


def write_photos(folder: Path, count: int) -> int:
    """Write so many photos with a caption each, in shards; return their bytes."""
    photos = Path(os.environ.get("RAYCOMP_SHARED", ROOT.parent / "shared")) / PHOTO_SET
    rows = [json.loads(line) for line in (photos / "captions.jsonl").read_text("utf-8").splitlines()]
    shards: dict[str, list] = {}
    for place in range(count):
        row, again = rows[place % len(rows)], place // len(rows)
        caption = row["captions"][again % len(row["captions"])]
        members = {"jpg": (photos / "images" / row["image"]).read_bytes(), "txt": caption.encode()}
        name = f"{place // _PER_SHARD:05d}.tar"
        shards.setdefault(name, []).append((f"{place:09d}", members))
    write_shards(folder, shards)
    return sum(path.stat().st_size for path in folder.iterdir())


def measure(counts: list[int], model: str, folder: Path) -> Iterator[tuple]:
    """Yield a row of COLUMNS for each size and executor."""
    place = Place(folder, ())
    for count in counts:
        size = write_photos(folder / f"in-{count}", count)
        for executor in ("local", "ray"):
            sets = {"input": f"in-{count}", "scorer.model": model, "scorer.weights": "random:0"}
            words = [f"--set={name}={value}" for name, value in sets.items()]
            out = f"--out={executor}-{count}"
            line = [sys.executable, "-m", "raycomp", "curate", *words, f"--set=cluster.executor={executor}"]
            started = time.perf_counter()
            code, _, complained, cpu_s = place.run([*line, out])
            assert code == 0, complained
            seconds = time.perf_counter() - started
            yield model, count, round(size / 1e6, 1), executor, round(seconds, 1), round(cpu_s, 1)


def fit(rows: list[tuple], executor: str) -> tuple[float, float]:
    """Return the start in seconds and the seconds per megabyte, through the smallest and the largest run."""
    points = sorted((megabytes, seconds) for _, _, megabytes, name, seconds, _ in rows if name == executor)
    (least, first), (most, last) = points[0], points[-1]
    rate = (last - first) / (most - least)
    return first - rate * least, rate


def main() -> None:
    """Measure, print, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", default="200,800")
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/executors_size.csv")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in measure([int(count) for count in asked.photos.split(",")], asked.model, Path(folder)):
            rows.append(row)
            print(*row, sep=",", flush=True)
    with asked.out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    (here_s, here_rate), (ray_s, ray_rate) = fit(rows, "local"), fit(rows, "ray")
    for name, start, rate in (("local", here_s, here_rate), ("ray", ray_s, ray_rate)):
        print(f"{name}: starts in {start:.1f} s, then {1000 * rate:.0f} ms a MB")
    gain = here_rate - ray_rate
    print(f"the lines cross at {(ray_s - here_s) / gain:,.0f} MB" if gain > 0 else "the lines do not cross")


if __name__ == "__main__":
    main()
