"""Exact selection of the best 70 % of 1e8 rows in one process, from files, against numpy.partition.

    python bench/selector.py [--rows 100000000] [--tied-rows 10000000] [--folder DIR]

Goal: 1e8 scores in under 60 s and under 1 GB resident. Scores look like CLIP's (normal, mean 0.25, standard
deviation 0.05), uids are random; both lie in files of a temporary folder (20 bytes a row), whose making is
not timed. Timed are all passes of the search and the last pass, which writes which rows stay. Files are read
by ``np.fromfile`` into ordinary memory and never mapped, so ``ru_maxrss`` is what the selector needs, the
interpreter and numpy included; the page cache is not in it. The files were written just before, so reading
mostly meets the page cache; the disk is not measured.

The baseline is ``np.partition`` of all scores in memory: it has the threshold only, breaks no tie, and
needs the whole corpus in one place. Each case runs in a process of its own, because peaks never fall.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from raycomp.config import exact_share
from raycomp.core.selection import KthSearch, Threshold, count_digit, keep_mask

CHUNK_ROWS = 1 << 20
SCORES, UIDS, KEPT = "scores.f4", "uids.u8", "kept.bool"


def make_rows(folder: Path, num_rows: int, tied: bool) -> None:
    rng = np.random.default_rng(0)
    with open(folder / SCORES, "wb") as scores, open(folder / UIDS, "wb") as uids:
        for start in range(0, num_rows, CHUNK_ROWS):
            num = min(CHUNK_ROWS, num_rows - start)
            score_N = rng.standard_normal(num, dtype=np.float32) * np.float32(0.05) + np.float32(0.25)
            (np.full(num, 0.25, dtype=np.float32) if tied else score_N).tofile(scores)
            rng.integers(0, 2**64, (num, 2), dtype=np.uint64).tofile(uids)


def read_rows(folder: Path, with_uid: bool) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    with open(folder / SCORES, "rb") as scores, open(folder / UIDS, "rb") as uids:
        while len(score_N := np.fromfile(scores, np.float32, CHUNK_ROWS)):
            yield score_N, np.fromfile(uids, np.uint64, 2 * CHUNK_ROWS).reshape(-1, 2) if with_uid else None


def select(folder: Path, k: int) -> tuple[Threshold, int]:
    """Write which rows stay; return the threshold and the number of passes, the writing one included."""
    search = KthSearch(k)
    while not search.done:
        search.advance(sum(count_digit(search, *rows) for rows in read_rows(folder, search.needs_uid)))
    threshold = search.threshold
    with open(folder / KEPT, "wb") as kept:
        for rows in read_rows(folder, threshold.uid is not None):
            keep_mask(threshold, *rows).tofile(kept)
    return threshold, len(search.digits) + 1


def peak_mb() -> float:
    """Peak resident memory of this process so far; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def measure(num_rows: int, keep: float, tied: bool, parent: Path | None) -> dict[str, float | int]:
    k = exact_share(keep, num_rows)
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        make_rows(folder, num_rows, tied)
        before_mb = peak_mb()
        start = time.perf_counter()
        threshold, num_passes = select(folder, k)
        seconds = time.perf_counter() - start
        after_mb = peak_mb()
        num_kept = int(np.fromfile(folder / KEPT, bool).sum())
        assert num_kept == k == threshold.count, f"kept {num_kept} of {k}"
        start = time.perf_counter()
        score_N = np.fromfile(folder / SCORES, np.float32)
        value = float(np.partition(score_N, num_rows - k)[num_rows - k])
        partition_s = time.perf_counter() - start
    assert value == threshold.value, f"threshold {threshold.value}, numpy {value}"
    return {
        "rows": num_rows,
        "kept": num_kept,
        "passes": num_passes,
        "seconds": round(seconds, 2),
        "rows_per_s": round(num_rows / seconds),
        "peak_mb": round(after_mb),
        "peak_mb_before": round(before_mb),
        "partition_s": round(partition_s, 2),
        "seconds_over_partition": round(seconds / partition_s, 2),
        "peak_mb_with_partition": round(peak_mb()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--tied-rows", type=int, default=10_000_000)
    parser.add_argument("--keep", type=float, default=0.7)
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as fresh:
        spread = fresh.submit(measure, args.rows, args.keep, False, args.folder).result()
        print("spread  ", spread)
        tied = fresh.submit(measure, args.tied_rows, args.keep, True, args.folder).result()
        print("all tied", tied)
    result = {
        "bench": "selector",
        "goal": "1e8 rows in under 60 s and 1000 MB",
        "goal_met": args.rows >= 100_000_000 and spread["seconds"] < 60 and spread["peak_mb"] < 1000,
        "spread": spread,
        "all_tied": tied,
        "machine": {"cpu": cpu_name(), "python": platform.python_version(), "numpy": np.__version__},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
