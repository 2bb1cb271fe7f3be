"""Reading pairs from single files against tars: pairs per second, listing included.

    python -m bench.single_files [--pairs 200000] [--kilobytes 20] [--folder DIR]

The same images of random bytes, with captions, are written as tars of 1,000 pairs, as images with a text next
to each in folders of 1,000, and as the images with one CSV. Then each is listed and read to its end by
``expand_input`` and ``read_shard`` in this process, twice, in turn; the files are in the system's cache.
Prints pairs per second, and the ratio to tars; then the ratio if each pair is also decoded and resized, for
which one core needs 5.7 ms a photo.
"""

import argparse
import csv
import os
import tempfile
import time
from pathlib import Path

from raycomp.data.inputs import expand_input
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar

PER_SHARD = 1000
DECODE_S = 0.0057


def write_all(folder: Path, num_pairs: int, num_bytes: int) -> None:
    """Write the pairs in all layouts."""
    for name in ("tars", "texts", "list"):
        (folder / name).mkdir()
    rows = []
    for shard in range(num_pairs // PER_SHARD):
        samples = []
        for name in ("texts", "list"):
            (folder / name / f"{shard:04d}").mkdir()
        for i in range(PER_SHARD):
            image, text = os.urandom(num_bytes), f"a caption of photo {shard} {i}"
            samples.append((f"{i:04d}", {"jpg": image, "txt": text.encode()}))
            (folder / f"texts/{shard:04d}/{i:04d}.jpg").write_bytes(image)
            (folder / f"texts/{shard:04d}/{i:04d}.txt").write_text(text)
            (folder / f"list/{shard:04d}/{i:04d}.jpg").write_bytes(image)
            rows.append([f"{shard:04d}/{i:04d}.jpg", text])
        write_tar(str(folder / f"tars/{shard:04d}.tar"), samples)
    with open(folder / "list/captions.csv", "w", newline="") as file:
        csv.writer(file).writerows([["file_name", "caption"], *rows])


def read_all(folder: Path) -> tuple[int, float]:
    """Return the pairs of a folder, and the seconds of listing and reading them."""
    started = time.perf_counter()
    count = sum(len(table) for shard in expand_input(str(folder)) for table in read_shard(shard, 256))
    return count, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--kilobytes", type=int, default=20)
    parser.add_argument("--folder", default=None)
    arguments = parser.parse_args()
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
        folder = Path(place)
        write_all(folder, arguments.pairs, arguments.kilobytes * 1024)
        for _ in range(2):
            for name in ("tars", "texts", "list"):
                count, seconds = read_all(folder / name)
                assert count == arguments.pairs, (name, count)
                best[name] = min(best.get(name, seconds), seconds)
    for name, seconds in best.items():
        decoded = arguments.pairs * DECODE_S
        ratio, seen = best["tars"] / seconds, (best["tars"] + decoded) / (seconds + decoded)
        rate = f"{arguments.pairs / seconds:>9,.0f} pairs/s"
        print(f"{name:6} {rate}, {ratio:.2f} of tars; {seen:.2f} with decoding")


if __name__ == "__main__":
    main()
