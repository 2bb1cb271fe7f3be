"""How long training waits for its checkpoints when the store is slow: written by a thread, and in the loop.

    python -m bench.checkpoints [--model ViT-B-32] [--pairs 8] [--interval 40] [--checkpoints 2]

A training of random pixels and tokens writes a state every ``--interval`` seconds' worth of steps, to a
folder whose writes are made to take half of that. ``thread``: as ``raycomp train`` does. ``loop``: every
checkpoint is waited for, as before. Sides in turn, each with a trainer of its own. The wait is the time from
the end of a step to the start of the next. Goal: below 2 % of the steps' time for ``thread``. Last line one
JSON object.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from raycomp.config import ModelConfig
from raycomp.models.clip import load_start
from raycomp.training import loop
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.training.journal import Training
from raycomp.training.loop import Trainer, Writer
from raycomp.training.towers import Batch, PairsObjective


def make_trainer(args: argparse.Namespace, num_steps: int) -> Trainer:
    clip = load_start(ModelConfig(name=args.model, weights="random:0"))
    return Trainer(PairsObjective(clip, FitConfig(), num_steps, args.pairs), num_steps)


def make_batch(args: argparse.Namespace) -> Batch:
    torch.manual_seed(0)
    token_RN = torch.randint(1, 1000, (args.pairs, 77))
    token_RN[:, 20] = 49407
    token_RN[:, 21:] = 0
    return Batch(torch.randn(args.pairs, 3, 224, 224), token_RN)


@contextmanager
def slow_store(seconds: float) -> Iterator[None]:
    """Let the write of a state take so long: half of it for each of its two large files."""
    plain = loop.new_path

    @contextmanager
    def slow(uri: str) -> Iterator[str]:
        started = time.perf_counter()
        with plain(uri) as path:
            yield path
            time.sleep(max(0.0, seconds / 2 - (time.perf_counter() - started)))

    with patch.object(loop, "new_path", slow):
        yield


def measure(args: argparse.Namespace, side: str, steps: int, batch: Batch) -> dict[str, float]:
    """Return the seconds of the steps, and those waited for checkpoints."""
    trainer = make_trainer(args, steps * args.checkpoints + 1)
    trainer.take(batch)
    trainer.step, waited, worked = 0, 0.0, 0.0
    spec: Any = None
    with tempfile.TemporaryDirectory() as folder:
        training = Training(TrainConfig(), folder, None, None, trainer.num_steps, 0, spec, None, None)
        writer = Writer(trainer, training, lambda row: None)
        for _ in range(steps * args.checkpoints):
            started = time.perf_counter()
            writer.take(trainer.take(batch))
            worked += time.perf_counter() - started
            if trainer.step % steps == 0:
                started = time.perf_counter()
                writer.keep()
                if side == "loop":
                    writer.states.wait()
                waited += time.perf_counter() - started
        writer.settle()
        writer.states.wait()
        writer.journal.close()
        writer.states.stop()
    return {
        "steps_s": round(worked, 2),
        "waited_s": round(waited, 2),
        "waited_share": round(waited / worked, 4),
    }


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--interval", type=float, default=40)
    parser.add_argument("--checkpoints", type=int, default=2)
    args = parser.parse_args()
    batch, trainer = make_batch(args), make_trainer(args, 10)
    trainer.take(batch)
    started = time.perf_counter()
    for _ in range(3):
        trainer.take(batch)
    steps = max(1, round(args.interval * 3 / (time.perf_counter() - started)))
    del trainer
    found = {}
    with slow_store(args.interval / 2):
        for side in ("thread", "loop"):
            found[side] = measure(args, side, steps, batch)
            print(side, found[side], flush=True)
    print(json.dumps({"model": args.model, "steps_between": steps, **found}))


if __name__ == "__main__":
    main()
