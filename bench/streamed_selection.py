"""Exact selection of the best half of 1.28e9 streamed scores with their uids, and what 12.8e9 would take.

    python -m bench.streamed_selection [--rows 1280000000] [--keep 0.5]

Nothing is stored: every pass makes the same chunks of 2^20 rows anew, scores like CLIP's (normal, mean 0.25,
standard deviation 0.05, float32) and random uids, and the generator's seconds are timed apart. So what is
reported as selection is counting, comparing and marking in one process; reading is the store's to add. At
this size float32 scores tie at the threshold, which is asserted, and so uids decide there: a pass more, and
the marking pass reads uids, too. A quarter, a half and all of the rows are measured, each in its own process;
a line through them gives 12.8e9 rows, the size of DataComp's largest pool. Last line one JSON object.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import reduce

import numpy as np

from bench.selector import CHUNK_ROWS, cpu_name, peak_mb
from raycomp.config import exact_share
from raycomp.core.selection import KthSearch, count_digit, keep_mask, sortable_bits

LARGEST = 12_800_000_000
GOAL_S, GOAL_MB = 300, 500


class Stream:
    """The rows, made anew in every pass; keeps the seconds that making them took."""

    def __init__(self, num_rows: int):
        self.num_rows = num_rows
        self.making_s = 0.0

    def __call__(self, with_uid: bool) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        for chunk, start in enumerate(range(0, self.num_rows, CHUNK_ROWS)):
            started = time.perf_counter()
            num = min(CHUNK_ROWS, self.num_rows - start)
            score_N = np.random.default_rng([0, chunk]).standard_normal(num, dtype=np.float32)
            score_N *= np.float32(0.05)
            score_N += np.float32(0.25)
            uids = np.random.default_rng([1, chunk])
            uid_N2 = uids.integers(0, 2**64, (num, 2), dtype=np.uint64) if with_uid else None
            self.making_s += time.perf_counter() - started
            yield score_N, uid_N2


def measure(num_rows: int, keep: float) -> dict[str, float | int]:
    """Select in this process; return its seconds, of selecting and of making rows, and its peak."""
    stream, k = Stream(num_rows), exact_share(keep, num_rows)
    started = time.perf_counter()
    search = KthSearch(k)
    while not search.done:
        counts = (count_digit(search, *rows) for rows in stream(search.needs_uid))
        search.advance(reduce(np.add, counts))
    threshold = search.threshold
    kept = tied = 0
    for rows in stream(threshold.uid is not None):
        kept += int(keep_mask(threshold, *rows).sum())
    seconds = time.perf_counter() - started - stream.making_s
    making_s = stream.making_s
    for score_N, _ in stream(False):
        tied += int((sortable_bits(score_N) == threshold.bits).sum())
    assert kept == k == threshold.count, f"kept {kept} of {k}"
    assert tied > 1 and threshold.uid is not None, "no two scores tie at the threshold"
    return {
        "rows": num_rows,
        "kept": kept,
        "tied_at_threshold": tied,
        "passes": len(search.digits) + 1,
        "seconds": round(seconds, 1),
        "making_s": round(making_s, 1),
        "peak_mb": round(peak_mb()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_280_000_000)
    parser.add_argument("--keep", type=float, default=0.5)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found = []
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as fresh:
        for share in (4, 2, 1):
            found.append(fresh.submit(measure, args.rows // share, args.keep).result())
            print(found[-1], flush=True)
    rows_3, seconds_3 = (np.array([one[name] for one in found], float) for name in ("rows", "seconds"))
    slope, start = np.polyfit(rows_3, seconds_3, 1)
    largest_s = slope * LARGEST + start
    result = {
        "bench": "streamed_selection",
        "sizes": found,
        "seconds_per_1e9": round(slope * 1e9, 2),
        "seconds_at_12.8e9": round(largest_s),
        "goal_met": bool(largest_s <= GOAL_S and found[-1]["peak_mb"] <= GOAL_MB),
        "machine": {"cpu": cpu_name(), "numpy": np.__version__},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
