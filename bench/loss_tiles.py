"""Memory and time of the contrastive loss in tiles against open_clip's, forward and backward.

    python -m bench.loss_tiles [--pairs 65536] [--dims 512] [--device cuda]

Each side runs in a process of its own on random embeddings of length 1. Memory is what the loss adds above
the inputs: gradients of both inputs are part of it. open_clip's runs only where ``--memory_gb`` GB hold its
four matrices of N x N. Last line one JSON object.
"""

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import open_clip
import torch
from torch import Tensor

from raycomp.core.losses import clip_loss

SCALE = 1 / 0.07
# Logits both ways and their log-softmax, which the gradients then replace.
MATRICES = 4


def read_mb(name: str) -> float:
    """Return VmHWM, the peak of this process, or VmRSS, what it has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def embed(num: int, dims: int, device: str) -> list[Tensor]:
    """Return images and texts of length 1, that require gradients."""
    generator = torch.Generator().manual_seed(0)
    rows = (torch.randn(num, dims, generator=generator) for _ in range(2))
    return [torch.nn.functional.normalize(part, dim=1).to(device).requires_grad_() for part in rows]


def measure(side: str, num: int, dims: int, device: str, threads: int) -> dict[str, float]:
    """Return loss, seconds and megabytes of one forward and backward pass."""
    torch.set_num_threads(threads)
    loss = {"raycomp": clip_loss, "open_clip": open_clip.ClipLoss()}[side]
    scale = torch.tensor(SCALE, device=device)
    loss(*embed(64, dims, device), scale).backward()  # what is loaded once is loaded
    rows = embed(num, dims, device)
    if device == "cuda":
        loss(*rows, scale).backward()  # a first pass at this size takes its memory
        for row in rows:
            row.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 1e6
    else:
        Path("/proc/self/clear_refs").write_text("5")
        before = read_mb("VmRSS")
    started = time.perf_counter()
    value = loss(*rows, scale)
    value.backward()
    found = value.item()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else read_mb("VmHWM")
    return {"loss": found, "seconds": round(seconds, 4), "mb_above_inputs": round(peak - before)}


def main() -> None:
    """Measure each side in a fresh process, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, nargs="+", default=[65536])
    parser.add_argument("--dims", type=int, default=512)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory_gb", type=float, default=8, help="GB that open_clip's loss may take")
    args = parser.parse_args()
    report: dict = {"device": args.device, "dims": args.dims}
    context = multiprocessing.get_context("spawn")
    for num in args.pairs:
        needed = MATRICES * 4 * num**2 / 1e9
        report[str(num)] = {"open_clip_matrices_gb": round(needed, 1)}
        for side in ("raycomp", "open_clip") if needed <= args.memory_gb else ("raycomp",):
            with ProcessPoolExecutor(1, mp_context=context) as fresh:
                task = fresh.submit(measure, side, num, args.dims, args.device, args.threads)
                report[str(num)][side] = task.result()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
