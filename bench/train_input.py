"""raycomp's making of training batches against open_clip_train's webdataset loader, at equal workers.

    python -m bench.train_input ../shared [--workers 1 2] [--batch 64]

Both read the same tars of 1,200 photos with their captions, decode by Pillow, draw a crop of 90 to 100 %
of the area, resize to 224 x 224 and tokenise in worker processes of a DataLoader; open_clip_train by its own
``get_wds_dataset`` and training transform, raycomp by ``make_batch``, a worker for each slice of a batch.
raycomp's pixels travel as uint8 and are normalised by the process that trains, which counts. One epoch warms
up; rounds of one epoch each, sides in turn. Then tasks of Ray Data make them as in `raycomp train`, on as
many CPUs as the most workers; as these continue between epochs, a side runs all its rounds before the other.
A share of the rows at an epoch's end fills no batch and is not counted. Last line one JSON object.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import ray
import torch
from open_clip_train import data
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from jobs.real_photos import write_shards
from raycomp.config import ClusterConfig, ModelConfig
from raycomp.core.batches import EpochPlan, slice_of
from raycomp.data.files import Folder
from raycomp.models.images import ImageSpec
from raycomp.run.executor import connect, use
from raycomp.run.local import Local
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.training.journal import Course
from raycomp.training.pairs import Drawing, Pairs, find_pairs, make_index, read_batches
from raycomp.training.ray_feed import Feed, start_cache
from raycomp.training.towers import to_batch

MODEL = "ViT-B-32"
PER_SHARD = 100
SPEC = ImageSpec(224, 224, open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD)


class Slices(IterableDataset):
    """What each worker makes: its rows of every batch of an epoch."""

    def __init__(self, pairs: Pairs, plan: EpochPlan, draw: Drawing):
        self.parts = pairs, plan, draw
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield this worker's rows."""
        worker = get_worker_info()
        plan = self.parts[1]
        own = slice_of(worker.id, worker.num_workers, plan.batch_size)
        steps = plan.steps_per_epoch
        yield from read_batches(*self.parts, int(self.epoch) * steps, steps, own)


def make_raycomp(folder: str, batch_size: int, workers: int) -> Callable[[], int]:
    """Return a function that runs an epoch and counts its rows."""
    pairs = find_pairs(TrainConfig(input=folder))
    with use(Local(1)):
        index = make_index(pairs, Folder(tempfile.mkdtemp()))
    pairs = replace(pairs, listed=index.uris)
    plan = EpochPlan(index.rows_S, batch_size, FitConfig().window, 0)
    model = ModelConfig(name=MODEL, weights="random:0")
    slices = Slices(pairs, plan, Drawing(SPEC, model, FitConfig(), pairs.max_pixels))
    loader = DataLoader(slices, None, num_workers=workers, persistent_workers=True, collate_fn=dict)

    def run() -> int:
        rows = sum(len(to_batch(arrays, "cpu", SPEC).image_RCHW) for arrays in loader)
        slices.epoch += 1
        return rows

    return run


def make_on_ray(folder: str, batch_size: int, work: Folder) -> Callable[[], int]:
    """Return a function that takes an epoch from Ray Data's tasks, as a rank does, and counts its rows."""
    pairs = find_pairs(TrainConfig(input=folder))
    index = make_index(pairs, work)
    plan = EpochPlan(index.rows_S, batch_size, FitConfig().window, 0)
    model = ModelConfig(name=MODEL, weights="random:0")
    course = ray.put(Course(plan, Drawing(SPEC, model, FitConfig(), pairs.max_pixels)))
    steps = 1_000_000
    cache = start_cache(ray.put(replace(pairs, listed=index.uris)), plan, steps, 1)
    batches = Feed(course, cache, 0, 1).batches(0, steps)

    def run() -> int:
        taken = (next(batches) for _ in range(plan.steps_per_epoch))
        return sum(len(to_batch(arrays, "cpu", SPEC).image_RCHW) for arrays in taken)

    return run


def group_files(files: Iterator[dict[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
    """Group as open_clip_train does, which fails at the end that webdataset 1.0 marks in each shard."""
    return _group((file for file in files if "fname" in file), **options)


_group = data.group_by_keys_nothrow
data.group_by_keys_nothrow = group_files


def make_open_clip(folder: str, batch_size: int, workers: int, num_rows: int) -> Callable[[], int]:
    """Return a function that runs an epoch and counts its rows."""
    shards = sorted(str(path) for path in Path(folder).rglob("*.tar"))
    args = SimpleNamespace(
        train_data="::".join(shards),
        train_num_samples=num_rows,
        train_data_upsampling_factors=None,
        dataset_resampled=False,
        seed=0,
        batch_size=batch_size,
        workers=workers,
        world_size=1,
    )
    transform = open_clip.image_transform(224, is_train=True, mean=SPEC.mean, std=SPEC.std)
    loader = data.get_wds_dataset(
        args, transform, is_train=True, floor=True, tokenizer=open_clip.get_tokenizer(MODEL)
    )
    epoch = iter(range(1 << 30))

    def run() -> int:
        loader.set_epoch(next(epoch))
        return sum(len(images) for images, _ in loader.dataloader)

    return run


def cpu_seconds() -> float:
    """Return what this process and its living children have used."""
    ticks = 0
    for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def compare(ways: dict[str, Callable[[], int]], rounds: int) -> dict[str, Any]:
    """Return samples per second and CPU milliseconds per sample of all ways, in turn."""
    speed: dict[str, list[float]] = {name: [] for name in ways}
    cost: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, run in ways.items():
            started, used = time.perf_counter(), cpu_seconds()
            rows = run()
            speed[name].append(rows / (time.perf_counter() - started))
            cost[name].append(1000 * (cpu_seconds() - used) / rows)
    kept = {name: np.array(values[1:]) for name, values in speed.items()}
    return {
        "samples_per_s": {
            n: [round(float(f(v)), 1) for f in (np.median, np.min, np.max)] for n, v in kept.items()
        },
        "cpu_ms_per_sample": {name: round(float(np.median(values[1:])), 2) for name, values in cost.items()},
        "ratio": round(float(np.median(kept["raycomp"] / kept["open_clip_train"])), 3),
    }


def time_epochs(run: Callable[[], int], rounds: int) -> list[float]:
    """Return samples per second of rounds without a rest, after as many that warm up."""
    speeds = []
    for _ in range(2 * rounds):
        started = time.perf_counter()
        rows = run()
        speeds.append(round(rows / (time.perf_counter() - started), 1))
    return speeds[rounds:]


def main() -> None:
    """Write the shards, time both sides, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shared", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"batch": args.batch}
    with tempfile.TemporaryDirectory() as folder:
        num_rows = write_shards(args.shared, Path(folder), PER_SHARD)
        for workers in args.workers:
            ways = {
                "raycomp": make_raycomp(folder, args.batch, workers),
                "open_clip_train": make_open_clip(folder, args.batch, workers, num_rows),
            }
            report[f"workers_{workers}"] = compare(ways, args.rounds)
        most = max(2, *args.workers)
        with connect(ClusterConfig(executor="ray", num_cpus=most), needed=most):
            run = make_on_ray(folder, args.batch, Folder(f"{folder}/work"))
            report[f"ray_{most}"] = time_epochs(run, args.rounds)
        run = make_open_clip(folder, args.batch, most, num_rows)
        report[f"open_clip_train_{most}"] = time_epochs(run, args.rounds)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
