"""A step of raycomp's training against one of open_clip_train: losses, gradients, seconds, memory of a GPU.

    python -m bench.train_step ../shared [--loss negclip] [--pairs 16] [--autocast] [--device cuda]

Baseline: open_clip_train's own ``train_one_epoch`` with its AdamW, groups, cosine and ``ClipLoss``; for
negclip, pairs with an alternative each as vinid/neg_clip has them: 2 B images, 4 B texts, a B of ``--pairs``.
Both sides start with the same weights and get the same batches, which lie ready on the device: photos and
captions of flickr8k_800, negatives being captions with their words in another order. On a GPU open_clip_train
has TF32 and cuDNN's search on, as its main sets them.

Parity: 20 steps without TF32. Seconds: rounds of some steps, both sides in turn; each round ends with the
device idle. Last line one JSON object.
"""

import argparse
import copy
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from open_clip_train.scheduler import cosine_lr
from open_clip_train.train import train_one_epoch
from PIL import Image
from torch import Tensor, nn

from raycomp.training.config import FitConfig
from raycomp.training.loop import Batch, Trainer
from raycomp.training.towers import PairsObjective

PARITY_STEPS = 20
SCHEDULE = 1000
LEARNING_RATE = 5e-4
SIDES = ("raycomp", "open_clip_train")


class Pairs(NamedTuple):
    """A batch: images (I, 3, H, W), their captions and, for negclip, as many negatives, (I, 77)."""

    image: Tensor
    text: Tensor
    negative: Tensor | None = None


class NegClipLoss(nn.Module):
    """As vinid/neg_clip computes it: captions first, negatives behind them, images in the captions' order."""

    def forward(
        self, image_features: Tensor, text_features: Tensor, logit_scale: Tensor, output_dict: bool
    ) -> dict[str, Tensor]:
        """Return the one part that the loop adds up."""
        num = len(image_features)
        own = torch.arange(num, device=image_features.device)
        per_image = logit_scale * image_features @ text_features.T
        per_text = (logit_scale * text_features @ image_features.T)[:num]
        return {"contrastive_loss": (F.cross_entropy(per_image, own) + F.cross_entropy(per_text, own)) / 2}


class Loader(list):
    """Batches in memory, as open_clip_train's loop asks for them."""

    @property
    def num_batches(self) -> int:
        """Steps of this epoch."""
        return len(self)

    @property
    def num_samples(self) -> int:
        """Images of this epoch."""
        return sum(len(batch[0]) for batch in self)


class Theirs:
    """open_clip_train."""

    def __init__(self, clip: nn.Module, args: argparse.Namespace, num_steps: int, log_steps: int):
        self.clip, self.done, self.losses = clip, 0, []
        config = FitConfig()
        named = list(clip.named_parameters())
        free = [p for n, p in named if is_free(n, p)]
        rest = [p for n, p in named if not is_free(n, p)]
        self.optimizer = torch.optim.AdamW(
            [{"params": free, "weight_decay": 0.0}, {"params": rest, "weight_decay": config.weight_decay}],
            lr=LEARNING_RATE,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
        )
        self.schedule = cosine_lr(self.optimizer, LEARNING_RATE, round(config.warmup * num_steps), num_steps)
        self.loss = NegClipLoss() if args.loss == "negclip" else open_clip.ClipLoss()
        self.args = SimpleNamespace(
            device=args.device,
            precision="amp_bf16" if args.autocast else "fp32",
            batch_size=args.pairs,
            log_every_n_steps=log_steps,
            accum_freq=1,
            grad_clip_norm=None,
            rank=0,
            world_size=1,
            distill=False,
            skip_scheduler=False,
            horovod=False,
            wandb=False,
        )

    def run(self, batches: list[Pairs]) -> list[float]:
        """Take a step with every batch; return the losses that its loop logs."""
        found: list[float] = []

        def add_scalar(name: str, value: float, step: int) -> None:
            if name == "train/loss":
                found.append(value)

        loader = Loader(
            (b.image, b.text if b.negative is None else torch.cat([b.text, b.negative])) for b in batches
        )
        data = {"train": SimpleNamespace(dataloader=loader, set_epoch=lambda epoch: None)}
        first, writer = self.done, SimpleNamespace(add_scalar=add_scalar)
        train_one_epoch(
            self.clip, data, self.loss, 0, self.optimizer, None,
            lambda step: self.schedule(first + step), None, self.args, writer,
        )  # fmt: skip
        self.done += len(batches)
        return found


class Ours:
    """raycomp."""

    def __init__(self, clip: nn.Module, args: argparse.Namespace, num_steps: int, log_steps: int):
        config = FitConfig(loss=args.loss, autocast=args.autocast, learning_rate=LEARNING_RATE)
        self.clip = clip
        # One run of the loop, whatever comes in between: it asks for a batch when a step is wanted.
        self.queue: deque[Pairs] = deque()
        batches = map(as_batch, iter(self.queue.popleft, None))
        size = args.pairs * (2 if args.loss == "negclip" else 1)
        self.reported = Trainer(PairsObjective(clip, config, num_steps, size), num_steps).run(batches)

    def run(self, batches: list[Pairs]) -> list[float]:
        """Take a step with every batch; return the losses."""
        self.queue.extend(batches)
        reported = [next(self.reported) for _ in batches]
        return [one.loss for one in reported]  # read once all steps are queued


def as_batch(pairs: Pairs) -> Batch:
    """Return the pairs as raycomp's loop takes them."""
    if pairs.negative is None:
        return Batch(pairs.image, pairs.text)
    negative_RKN = pairs.negative[:, None]
    valid_RK = torch.ones(negative_RKN.shape[:2], dtype=torch.bool, device=pairs.image.device)
    return Batch(pairs.image, pairs.text, negative_RKN, valid_RK)


def is_free(name: str, parameter: nn.Parameter) -> bool:
    """Whether open_clip_train's main lets a weight go without decay."""
    return parameter.ndim < 2 or any(part in name for part in ("bn", "ln", "bias", "logit_scale"))


def make_batches(args: argparse.Namespace, size: int) -> Iterator[Pairs]:
    """Yield batches without end, each another, on the CPU."""
    folder = args.shared / "data/flickr8k_800"
    lines = (folder / "captions.jsonl").read_text("utf-8").splitlines()
    rows = [(row["image"], text) for row in map(json.loads, lines) for text in row["captions"]]
    rng, tokenize = np.random.default_rng(0), open_clip.get_tokenizer(args.model)
    transform = open_clip.image_transform(size, is_train=False)
    images = args.pairs * (2 if args.loss == "negclip" else 1)
    while True:
        chosen = [rows[i] for i in rng.choice(len(rows), images)]
        image = torch.stack([transform(Image.open(folder / "images" / name)) for name, _ in chosen])
        texts = [text for _, text in chosen]
        shuffled = [" ".join(rng.permutation(text.split())) for text in texts]
        negative = tokenize(shuffled) if args.loss == "negclip" else None
        yield Pairs(image, tokenize(texts), negative)


def move(batch: Pairs, device: str, tokens: str | None = None) -> Pairs:
    image, *texts = batch
    return Pairs(image.to(device), *(None if text is None else text.to(tokens or device) for text in texts))


@contextmanager
def their_flags(side: str) -> Iterator[None]:
    """TF32 and cuDNN's search as open_clip_train's main sets them, for its side."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.benchmark
    if side == "open_clip_train":
        matmul.allow_tf32 = cudnn.benchmark = True
    yield
    matmul.allow_tf32, cudnn.benchmark = before


def make_sides(
    base: nn.Module, args: argparse.Namespace, num_steps: int, log_steps: int, names: tuple[str, ...] = SIDES
) -> dict[str, Any]:
    """Return the sides of these names, each with a copy of the model."""
    kinds = dict(zip(SIDES, (Ours, Theirs), strict=True))
    return {n: kinds[n](copy.deepcopy(base).to(args.device), args, num_steps, log_steps) for n in names}


def settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def compare_losses(make: Callable[..., dict[str, Any]], batches: list[Pairs]) -> dict[str, Any]:
    """Return both sides' losses, and how far they and the gradients of the first step are apart."""
    sides = make(num_steps=PARITY_STEPS, log_steps=1)
    losses = {name: side.run(batches[:1]) for name, side in sides.items()}
    grads = [{n: p.grad.clone() for n, p in sides[name].clip.named_parameters()} for name in SIDES]
    apart = {n: float((grads[0][n] - grads[1][n]).abs().max()) for n in grads[0]}
    for name, side in sides.items():
        losses[name] += side.run(batches[1:])
    gap = np.abs(np.subtract(*(losses[name] for name in SIDES)))
    return {
        "losses": losses,
        "largest_difference": float(gap.max()),
        "gradient_largest_difference": max(apart.values()),
        "gradient_largest": max(float(grad.abs().max()) for grad in grads[1].values()),
    }


def compare_seconds(
    make: Callable[..., dict[str, Any]], batches: list[Pairs], args: argparse.Namespace
) -> dict:
    """Return the seconds of a step and their ratio, sides in turn, and on a GPU what each adds in memory."""
    sides, memory = make_apart(make, batches, args)
    wall: dict[str, list[float]] = {name: [] for name in SIDES}
    cpu: dict[str, list[float]] = {name: [] for name in SIDES}
    for i in range(args.rounds + 1):  # the first one warms up
        part = [batches[(i * args.steps + j) % len(batches)] for j in range(args.steps)]
        for name in SIDES if i % 2 else SIDES[::-1]:
            with their_flags(name):
                settle(args.device)
                started, busy = time.perf_counter(), time.process_time()
                sides[name].run(part)
                settle(args.device)
                wall[name].append((time.perf_counter() - started) / args.steps)
                cpu[name].append((time.process_time() - busy) / args.steps)
    found: dict[str, Any] = {"memory_mb": memory}
    for kind, seconds in (("seconds", wall), ("cpu_seconds", cpu)):
        kept = {name: np.array(values[1:]) for name, values in seconds.items()}
        ratio = kept["open_clip_train"] / kept["raycomp"]
        found[kind] = {
            **{n: [round(float(f(v)), 5) for f in (np.median, np.min, np.max)] for n, v in kept.items()},
            "ratio_median_least_most": [round(float(f(ratio)), 3) for f in (np.median, np.min, np.max)],
        }
    return found


def make_apart(
    make: Callable[..., dict[str, Any]], batches: list[Pairs], args: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the sides, and each one's peak of GPU memory over two steps: weights, state and activations."""
    sides, memory = {}, {}
    for name in SIDES:
        before = torch.cuda.memory_allocated() if args.device == "cuda" else 0
        sides |= make(num_steps=SCHEDULE, log_steps=100, names=(name,))
        if args.device == "cuda":
            with their_flags(name):
                sides[name].run(batches[:2])
            memory[name] = (torch.cuda.max_memory_allocated() - before) // 1_000_000
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return sides, memory


def compare_devices(args: argparse.Namespace, base: nn.Module, batches: list[Pairs]) -> dict[str, float]:
    """Return how far each side's losses are on the GPU from those on the CPU, fp32, without TF32."""
    found = {}
    for name, side in (("raycomp", Ours), ("open_clip_train", Theirs)):
        losses = []
        for device in ("cpu", "cuda"):
            there = argparse.Namespace(**{**vars(args), "device": device, "autocast": False})
            moved = [move(batch, device) for batch in batches]
            losses.append(side(copy.deepcopy(base).to(device), there, PARITY_STEPS, 1).run(moved))
        found[name] = float(np.abs(np.subtract(*losses)).max())
    return found


def main() -> None:
    """Compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shared", type=Path)
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--loss", default="clip", choices=("clip", "negclip"))
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--autocast", action="store_true", help="bf16; else fp32")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tokens", choices=("cpu",), help="leave them there, for the loops to move")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1, help="of a round")
    parser.add_argument("--parity", action="store_true", help="compare 20 steps' losses, too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    base = open_clip.create_model(args.model, output_dict=True)

    make = partial(make_sides, base, args)
    endless = make_batches(args, base.visual.image_size[0])
    count = PARITY_STEPS if args.parity else args.steps if args.steps > 1 else args.rounds + 1
    on_cpu = [next(endless) for _ in range(count)]
    batches = [move(batch, args.device, args.tokens) for batch in on_cpu]
    report: dict[str, Any] = {**{k: v for k, v in vars(args).items() if k != "shared"}}
    longest = [
        int(torch.cat([b.text] + ([] if b.negative is None else [b.negative])).argmax(1).max()) + 1
        for b in batches
    ]
    report["longest_text"] = [min(longest), int(np.median(longest)), max(longest)]
    if args.parity:
        torch.backends.cudnn.allow_tf32 = False
        report["parity"] = compare_losses(make, batches)
        if args.device == "cuda":
            report["gpu_from_cpu"] = compare_devices(args, base, on_cpu)
        torch.backends.cudnn.allow_tf32 = True
    if args.rounds:
        report["step"] = compare_seconds(make, batches, args)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
