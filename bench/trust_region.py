"""What the trust region costs a step of COMPO-REALIGN, on cached embeddings and with the encoders on.

    python -m bench.trust_region [--dim 512] [--batch 64] [--steps 60] [--model ViT-B-32]

A step of the whole method with ``trust.mode`` off, and spectral by one power iteration (the default) and
exact by autograd, of raw primitives; in turn, blocks of steps after a few that are not timed, with an empty
buffer and with one that 64 texts are drawn from. With the encoders on, a step first embeds its images and
captions by the frozen model (random weights), no gradients. Medians; last line one JSON object. Goals: 25 %
of a step on embeddings, 2 % of one with encoders.
"""

import argparse
import json
import time
from dataclasses import replace

import numpy as np
import torch

from raycomp.config import ModelConfig
from raycomp.continual.config import BufferConfig, ContinualConfig, HeadConfig, TrustConfig
from raycomp.continual.data import Split, Stream, Task
from raycomp.continual.methods.head import HeadLearner
from raycomp.continual.streams.build import make_tokens
from raycomp.data.runs import fetch_model
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip

_PER_TEXT, _NAMES, _UNTIMED = 3, 200, 5


def make_stream(num: int, dim: int) -> Stream:
    """Return two tasks of random embeddings, each text of three of 200 names."""
    rng = np.random.default_rng(0)
    names = tuple(f"a{i} thing{i}" for i in range(_NAMES))

    def draw(count: int) -> np.ndarray:
        value = rng.standard_normal((count, dim)).astype(np.float32)
        return value / np.linalg.norm(value, axis=1, keepdims=True)

    def make_split(tag: str) -> Split:
        sets = [tuple(names[i] for i in rng.choice(_NAMES, _PER_TEXT, replace=False)) for _ in range(num)]
        texts = tuple(f"{tag} {i}" for i in range(num))
        return Split(draw(num), np.arange(num), texts, draw(num), tuple(sets))

    tasks = tuple(Task(tag, make_split(tag), make_split(f"{tag} test")) for tag in "ab")
    none = Split(draw(0), np.zeros(0, np.int64), (), draw(0), ())
    return Stream("made", tasks, (), none, names, draw(_NAMES))


def make_learner(config: ContinualConfig, stream: Stream) -> HeadLearner:
    """Return a learner in its second task, whose buffer holds the first."""
    learner = HeadLearner(config, stream, 0)
    learner.start_task(0, stream.tasks[0].train)
    learner.end()
    learner.start_task(1, stream.tasks[1].train)
    return learner


def time_steps(learner: HeadLearner, num: int, batch: int, first: int, embed: object) -> float:
    """Return the median seconds of a step."""
    taken = []
    for step in range(first, first + num):
        row_B = np.random.default_rng(step).choice(len(learner.train), batch, replace=False)
        started = time.perf_counter()
        if callable(embed):
            embed(batch)
        learner.step(step, row_B)
        taken.append(time.perf_counter() - started)
    return float(np.median(taken[min(_UNTIMED, num - 1) :]))


def compare(stream: Stream, buffer: str, batch: int, steps: int, embed: object = None) -> dict[str, float]:
    """Return milliseconds of a step without and with the trust region, and what each way of it adds."""
    base = ContinualConfig(head=HeadConfig(), buffer=BufferConfig(kind=buffer))
    modes = {
        "off": TrustConfig(mode="off"),
        "power": TrustConfig(power_steps=1),
        "exact": TrustConfig(power_steps=None),
    }
    learners = {name: make_learner(replace(base, trust=trust), stream) for name, trust in modes.items()}
    taken: dict[str, list[float]] = {name: [] for name in modes}
    for round_number in range(4):
        for name, learner in learners.items():
            taken[name].append(time_steps(learner, steps, batch, round_number * steps, embed))
    median = {name: 1000 * float(np.median(times)) for name, times in taken.items()}
    added = {f"{name}_adds": median[name] / median["off"] - 1 for name in ("power", "exact")}
    return {**{f"{name}_ms": value for name, value in median.items()}, **added}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--model", default="ViT-B-32")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stream = make_stream(400, args.dim)
    report = {
        f"head, buffer {buffer}": compare(stream, buffer, args.batch, args.steps)
        for buffer in ("none", "text")
    }
    config = fetch_model(ModelConfig(args.model, "random:0"))
    clip, spec = Clip(config, num_threads=1), describe_scorer(config)
    pixels = np.zeros((args.batch, spec.image.height, spec.image.width, 3), np.uint8)
    tokens = make_tokens([f"a small red circle, {i} of them" for i in range(args.batch)], config)

    def embed(batch: int) -> None:
        clip.embed_pixels(pixels)
        clip.text.embed(tokens)

    report["with the encoders"] = compare(stream, "text", args.batch, 3, embed)
    for name, found in report.items():
        print(name, {key: round(value, 4) for key, value in found.items()}, flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
