"""Samples per second out of WebDataset tars: ours, the webdataset library, ray.data.read_webdataset.

    OMP_NUM_THREADS=1 python bench/tar_reader.py [--shards 8] [--samples 8000] [--repeats 5]

Goals: at least 3 times read_webdataset (both through Ray Data on 2 CPUs, one read task per shard, to blocks
in its object store, Ray started beforehand) and at least once the webdataset library (both in one process and
one thread). Samples are like img2dataset's: an image of 8 to 22 KB, a caption, a json. The others hand over
raw members (webdataset undecoded, read_webdataset with decoder=None); ours also decodes the caption, parses
the json and gives every row its uid and status. The shards were written just before, so the page cache is
read and no disk. Readers take turns; each one's best round counts, for wall time and for CPU time (of this
process and Ray's), which other work on the machine disturbs less. The last line is one JSON object.
"""

import argparse
import contextlib
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import ray
import webdataset

from raycomp.data.inputs import ShardPath, expand_input
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar
from raycomp.run.ray_cluster import ItemSource

# Ray Data spends about a millisecond of its own on every table that a read task hands over.
BLOCK_ROWS = 512


def make_samples(rng: np.random.Generator, num_samples: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield samples with the members that img2dataset writes."""
    for i in range(num_samples):
        caption = f"a dog runs over the wet grass behind a red house, photo number {i}"
        fields = {"uid": rng.bytes(16).hex(), "url": f"https://example.org/{i}.jpg", "caption": caption}
        fields |= {"key": f"{i:09d}", "status": "success", "error_message": None, "width": 256, "height": 256}
        fields |= {"original_width": 800, "original_height": 600, "exif": "{}", "sha256": rng.bytes(32).hex()}
        image = rng.bytes(int(rng.integers(8_000, 22_000)))
        yield f"{i:09d}", {"jpg": image, "json": json.dumps(fields).encode(), "txt": caption.encode()}


def count_ours(shards: list[ShardPath]) -> int:
    return sum(len(table) for shard in shards for table in read_shard(shard, BLOCK_ROWS))


def count_webdataset(shards: list[ShardPath]) -> int:
    dataset = webdataset.WebDataset([shard.uri for shard in shards], shardshuffle=False)
    return sum(len(sample["jpg"]) > 0 for sample in dataset)


def read_blocks(shard: ShardPath) -> Iterator[pa.Table]:
    return read_shard(shard, BLOCK_ROWS)


def count_ours_on_ray(shards: list[ShardPath]) -> int:
    source = ItemSource(shards, read_blocks)
    return count_rows(ray.data.read_datasource(source, override_num_blocks=len(shards)))


def count_read_webdataset(shards: list[ShardPath]) -> int:
    paths = [shard.uri for shard in shards]
    return count_rows(ray.data.read_webdataset(paths, decoder=None, override_num_blocks=len(paths)))


def count_rows(dataset: ray.data.Dataset) -> int:
    """Read all into the object store; ``Dataset.count`` could be answered without reading."""
    return sum(bundle.num_rows() for bundle in dataset.iter_internal_ref_bundles())


def start_ray() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def cpu_seconds() -> float:
    """Return the CPU time so far of this process and all processes below it."""
    import psutil  # comes with ray, which must be imported first

    me = psutil.Process()
    times = []
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times.append(process.cpu_times())
    return sum(time.user + time.system for time in times)


def measure(
    readers: dict[str, Callable[[list[ShardPath]], int]], shards: list[ShardPath], repeats: int, wanted: int
) -> dict[str, tuple[float, float]]:
    """Return each reader's samples per second and CPU microseconds per sample, the best of all rounds."""
    rounds = {name: [] for name in readers}
    for _ in range(repeats):
        for name, count in readers.items():
            start, cpu_start = time.perf_counter(), cpu_seconds()
            found = count(shards)
            rounds[name].append((time.perf_counter() - start, cpu_seconds() - cpu_start))
            if found != wanted:
                raise ValueError(f"{name}: {found} samples, must be {wanted}")
    best = {}
    for name, values in rounds.items():
        wall_s, cpu_s = (min(column) for column in zip(*values, strict=True))
        best[name] = (wanted / wall_s, 1e6 * cpu_s / wanted)
        print(f"{name:16} {best[name][0]:9.0f} samples/s {best[name][1]:9.1f} us of CPU a sample")
    return best


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )


def main() -> None:
    """Write shards, read them with every reader, print the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8000, help="per shard")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.shards):
            rng = np.random.default_rng(i)
            write_tar(os.path.join(folder, f"{i:05d}.tar"), make_samples(rng, args.samples))
        shards = expand_input(folder)
        wanted = args.shards * args.samples
        best = measure({"ours": count_ours, "webdataset": count_webdataset}, shards, args.repeats, wanted)
        start_ray()
        on_ray = {"ours_on_ray": count_ours_on_ray, "read_webdataset": count_read_webdataset}
        best |= measure(on_ray, shards, args.repeats, wanted)
        ray.shutdown()
    ratios = {
        f"vs_{theirs}": [best[ours][0] / best[theirs][0], best[theirs][1] / best[ours][1]]
        for ours, theirs in (("ours", "webdataset"), ("ours_on_ray", "read_webdataset"))
    }
    result = {
        "bench": "tar_reader",
        "goal": "vs_webdataset >= 1, vs_read_webdataset >= 3, by wall time",
        "goal_met": ratios["vs_webdataset"][0] >= 1 and ratios["vs_read_webdataset"][0] >= 3,
        "samples": wanted,
        "block_rows": BLOCK_ROWS,
        "samples_per_s": {name: round(rate) for name, (rate, _) in best.items()},
        "cpu_us_per_sample": {name: round(cpu, 1) for name, (_, cpu) in best.items()},
        "wall_ratio": {name: round(wall, 2) for name, (wall, _) in ratios.items()},
        "cpu_ratio": {name: round(cpu, 2) for name, (_, cpu) in ratios.items()},
        "load_at_end": round(os.getloadavg()[0], 1),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {"ray": ray.__version__, "webdataset": webdataset.__version__, "pyarrow": pa.__version__},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
