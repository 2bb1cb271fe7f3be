"""Samples per second out of WebDataset tars: ours, the webdataset library, ray.data.read_webdataset.

    OMP_NUM_THREADS=1 python bench/tar_reader.py [--shards 8] [--samples 4000] [--repeats 5]

Goals: at least 3 times read_webdataset (both through Ray Data on 2 CPUs, one read task per shard, to blocks
in its object store, Ray started beforehand) and at least once the webdataset library (both in one process and
one thread). Samples are like img2dataset's: an image of 8 to 22 KB, a caption, a json. The others hand over
raw members (webdataset undecoded, read_webdataset with decoder=None); ours also decodes the caption, parses
the json and gives every row its uid and status. The shards were written just before, so the page cache is
read and no disk. Readers take turns; each one's best round counts. The last line is one JSON object.
"""

import argparse
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

from raycomp.cluster.source import ItemSource
from raycomp.shards.paths import ShardPath, expand_input
from raycomp.shards.reader import read_shard
from raycomp.shards.tar import write_tar

# Ray Data spends about a millisecond of its own on every table that a read task hands over.
BLOCK_ROWS = 256


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


def measure(
    readers: dict[str, Callable[[list[ShardPath]], int]], shards: list[ShardPath], repeats: int, wanted: int
) -> dict[str, float]:
    """Return the samples per second of each reader's best round."""
    seconds = {name: [] for name in readers}
    for _ in range(repeats):
        for name, count in readers.items():
            start = time.perf_counter()
            found = count(shards)
            seconds[name].append(time.perf_counter() - start)
            if found != wanted:
                raise ValueError(f"{name}: {found} samples, must be {wanted}")
    for name, values in seconds.items():
        print(f"{name:28} {wanted / min(values):9.0f} samples/s, rounds {[round(v, 2) for v in values]} s")
    return {name: wanted / min(values) for name, values in seconds.items()}


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )


def main() -> None:
    """Write shards, read them with every reader, print the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4000, help="per shard")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.shards):
            rng = np.random.default_rng(i)
            write_tar(os.path.join(folder, f"{i:05d}.tar"), make_samples(rng, args.samples))
        shards = expand_input(folder)
        wanted = args.shards * args.samples
        rates = measure({"ours": count_ours, "webdataset": count_webdataset}, shards, args.repeats, wanted)
        start_ray()
        on_ray = {"ours_on_ray": count_ours_on_ray, "read_webdataset": count_read_webdataset}
        rates |= measure(on_ray, shards, args.repeats, wanted)
        ray.shutdown()
    ratios = {
        "vs_webdataset": rates["ours"] / rates["webdataset"],
        "vs_read_webdataset": rates["ours_on_ray"] / rates["read_webdataset"],
    }
    result = {
        "bench": "tar_reader",
        "goal": "vs_webdataset >= 1, vs_read_webdataset >= 3",
        "goal_met": ratios["vs_webdataset"] >= 1 and ratios["vs_read_webdataset"] >= 3,
        "samples": wanted,
        "block_rows": BLOCK_ROWS,
        "samples_per_s": {name: round(rate) for name, rate in rates.items()},
        **{name: round(ratio, 2) for name, ratio in ratios.items()},
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {"ray": ray.__version__, "webdataset": webdataset.__version__, "pyarrow": pa.__version__},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
