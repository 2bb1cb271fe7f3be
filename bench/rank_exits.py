"""How the processes of ranks end: exit codes and signals.

    python -m bench.rank_exits [--exits 200] [--load 2] [--only REGEX] [--out bench/results/rank_exits.csv]

Pairs of ranks meet over gloo, compute the gradient of a gathered loss behind DistributedDataParallel, sum a
value, and leave as a rank of ``torch.multiprocessing.spawn`` does: the interpreter is finalized. Eight ranks
run at once, and LOAD processes keep the cores busy meanwhile. Four variants:

- ``late``: ``torch.distributed.nn`` is imported when the group exists, as DistributedDataParallel does when
  it is first made. Defaults of its functions keep the group, so destroy_process_group leaves its threads.
- ``early``: it is imported before, and cycles are collected. The group dies and its threads are joined.
- ``late waiting``, ``early waiting``: the same with a switch interval of 1 s instead of Python's 5 ms, so
  that a thread that asks for the interpreter waits until the main thread gives it away. A thread that waits
  when the interpreter is finalized is ended by Python in the middle of C++, which aborts the process. This
  turns an accident of load into a usual case.

Ranks are forks of a process that has imported torch and has one thread: 0.4 CPU seconds an exit instead of 4.
"""

import argparse
import csv
import ctypes
import gc
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raycomp.training.towers import add_up, gather

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "rank_exits.csv"
PAIRS = 4
VARIANTS = {
    f"{kind}{' waiting' * is_waiting}": (kind, is_waiting)
    for is_waiting in (False, True)
    for kind in ("late", "early")
}


def run_rank(rank: int, meet: str, kind: str, is_waiting: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meet}", rank=rank, world_size=2)
    if kind == "late":
        importlib.reload(torch.distributed.nn.functional)
    towers = DistributedDataParallel(nn.Linear(3, 2))
    gather(towers(torch.ones(1, 3)), 2).square().sum().backward()
    del towers
    if kind == "early":
        gc.collect()
    if is_waiting:
        sys.setswitchinterval(1)
    add_up(torch.ones(()))
    dist.destroy_process_group()


def fork_rank(rank: int, meet: str, kind: str, is_waiting: bool) -> int:
    """Return the id of a process that runs a rank and leaves."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run_rank(rank, meet, kind, is_waiting)
            code = 0
        finally:  # finalizes the interpreter, without what the parent's frames do at their end
            ctypes.pythonapi.Py_Exit(code)
    return pid


def count_exits(kind: str, is_waiting: bool, num_exits: int) -> Counter[int]:
    """Return how many ranks ended with each exit code, a signal as a negative one."""
    codes: Counter[int] = Counter()
    while codes.total() < num_exits:
        folder = tempfile.mkdtemp()  # a TemporaryDirectory would be removed by the first rank that leaves
        pids = [
            fork_rank(rank, f"{folder}/{pair}", kind, is_waiting)
            for pair in range(min(PAIRS, (num_exits - codes.total()) // 2))
            for rank in range(2)
        ]
        codes.update(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
        shutil.rmtree(folder)
    return codes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--exits", type=int, default=200, help="an even number for each variant")
    parser.add_argument("--load", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    assert len(os.listdir("/proc/self/task")) == 1, (
        "start with OMP_NUM_THREADS=1: threads do not survive a fork"
    )
    gc.freeze()  # a rank's collections need not copy the pages of what is imported
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(options.load)]
    rows = []
    try:
        for name, (kind, is_waiting) in VARIANTS.items():
            if re.search(options.only, name):
                started = time.perf_counter()
                codes = count_exits(kind, is_waiting, options.exits)
                aborted = codes[-signal.SIGABRT]
                failed = codes.total() - codes[0] - aborted
                spent = round(time.perf_counter() - started)
                rows.append([name, codes.total(), options.load, aborted, failed, spent])
                print(*rows[-1], sep=", ", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["variant", "exits", "load", "aborted", "other_failures", "seconds"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
