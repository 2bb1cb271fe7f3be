"""Alignment and PAS together against stock alignment alone: what attribution adds to the price.

    python -m bench.whole_pass ../shared [--precision bf16] [--rows 192]

Stock: a DataLoader of two workers with open_clip's own preprocessing and tokenizer, batches of 64, images and
captions at 77 tokens encoded by open_clip, cosines. Cut: the same with the context cut to the longest caption
of a batch. raycomp: the stages of a curation in one process, alignment of all pairs, parsing and attribution
of the best 70 %, a thread per pass where stock splits each batch over the threads. Decode apart: pixels and
tokens lie ready in memory before the clock starts; included: from files and tars. Models are loaded before
the clock. In turn; real photos, ViT-B/16, random weights; last line one JSON object.

    PYTHONPATH=CHECKOUT python bench/whole_pass.py ../shared --stages [--rows 1200]

CPU time per pair of the stages on CPUs, in one process: of another version by the path of its checkout.
Medians over rounds; the first round, in which vocabularies and the compiled resize are loaded, is left out.

    python -m bench.whole_pass ../shared --curate CHECKOUT

Seconds and CPU seconds of a checkout's ``raycomp curate`` on 1,200 web photos (400, three times) without Ray,
by a small CLIP with stored weights.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import open_clip
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bench.pipeline import attribute_best, read_prepared
from bench.text_scoring import cut_context
from jobs.real_photos import write_shards
from raycomp.config import ParserConfig, ScorerConfig
from raycomp.core.alignment import normalise, pair_cosine
from raycomp.curation.config import AttributeConfig, CurateConfig, NonceConfig, PrepareConfig
from raycomp.curation.score.stages import Align, Attribute, parse, prepare
from raycomp.data.inputs import expand_input
from raycomp.data.reader import read_shard
from raycomp.models.architecture import ScorerSpec, describe_scorer
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.words import ALIGNMENT, IMAGE

PAIRS_PER_BATCH = 64
WORKERS = 2


class Photos(Dataset):
    """Photos with their first captions, prepared by open_clip's own transform and tokenizer."""

    def __init__(self, shared: Path, limit: int, scorer: ScorerConfig, spec: ScorerSpec):
        folder = shared / "data/flickr8k_800"
        lines = (folder / "captions.jsonl").read_text("utf-8").splitlines()[:limit]
        self.rows = [json.loads(line) for line in lines]
        self.images = folder / "images"
        self.transform = open_clip.image_transform(
            spec.image.height, is_train=False, mean=spec.image.mean, std=spec.image.std
        )
        self.tokenize = load_tokenizer(scorer)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = self.rows[index]
        image = self.transform(Image.open(self.images / row["image"]))
        return image, self.tokenize([row["captions"][0]])[0]


def align_plain(clip: Clip, batches: Iterable[tuple[Tensor, Tensor]], cut: bool) -> np.ndarray:
    """Return the alignments of all pairs, encoded by open_clip."""
    parts = []
    for image_BCHW, token_BN in batches:
        image_BD = clip.model.encode_image(image_BCHW.to(clip.dtype))
        text_BD = cut_context(clip, token_BN) if cut else clip.model.encode_text(token_BN)
        parts.append(pair_cosine(normalise(image_BD.float()), normalise(text_BD.float())))
    return torch.cat(parts).numpy()


def run_raycomp(
    config: CurateConfig, blocks: Iterable[pa.Table], align: Align, attribute: Attribute
) -> np.ndarray:
    """Return the alignments of all pairs; the best share is attributed as well."""
    aligned = pa.concat_tables([align(block) for block in blocks])
    attribute_best(config, aligned, attribute)
    return aligned[ALIGNMENT].to_numpy()


def compare(ways: dict[str, Callable[[], np.ndarray]], rounds: int) -> dict:
    """Return the time of raycomp over that of the others, and how far alignments are from stock's."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found, order = {}, list(ways.items())
    for i in range(rounds):
        for name, work in order[i % len(order) :] + order[: i % len(order)]:
            with torch.inference_mode():
                started = time.perf_counter()
                found[name] = work()
                seconds[name].append(time.perf_counter() - started)
    own = np.array(seconds["raycomp"])
    return {
        "rows_per_s": {n: round(len(found[n]) / float(np.median(s)), 2) for n, s in seconds.items()},
        "time_over_stock": float(np.median(own / seconds["stock"])),
        "time_over_cut": float(np.median(own / seconds["cut"])),
        "max_abs_error": float(np.abs(found["raycomp"] - found["stock"]).max()),
    }


READINGS = {
    "parse": AttributeConfig(),
    "parse content, 2 nonces": AttributeConfig(targets="content", nonces=2),
}


def measure_stages(shared: Path, scorer: ScorerConfig, rows: int, rounds: int) -> dict[str, float]:
    """Return CPU milliseconds per pair: prepare of photos and their resize, parse of captions.

    ``prepare 640 x 480`` is of the same photos at that size, JPEG of quality 90.
    """
    spec, rounds_ms = describe_scorer(scorer), []
    with tempfile.TemporaryDirectory() as folder:
        write_shards(shared, Path(folder), limit=rows)
        shards = expand_input(f"{folder}/flickr8k_800")
        table = pa.concat_tables([block for shard in shards for block in read_shard(shard, PAIRS_PER_BATCH)])
    photos = pa.array([resize_web(data) for data in table[IMAGE].to_pylist()])
    web = table.set_column(table.schema.get_field_index(IMAGE), IMAGE, photos)
    work: dict[str, Callable[[pa.Table], pa.Table]] = {
        name: partial(parse, parser=ParserConfig(), nonce=NonceConfig(), attribute=reading, scorer=scorer)
        for name, reading in READINGS.items()
    }
    for name in ("prepare", "prepare 640 x 480"):
        work[name] = partial(prepare, scorer=scorer, spec=spec, max_pixels=PrepareConfig().max_pixels)
    for _ in range(rounds + 1):
        took = {}
        for name, stage in work.items():
            rows_of = web if name.endswith("480") else table
            started = time.process_time()
            for start in range(0, len(table), PAIRS_PER_BATCH):
                stage(rows_of.slice(start, PAIRS_PER_BATCH))
            took[name] = (time.process_time() - started) / len(table) * 1000
        rounds_ms.append(took)
    return {name: round(float(np.median([took[name] for took in rounds_ms[1:]])), 3) for name in work}


SMALL = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": 224, "layers": 4, "width": 128, "patch_size": 32, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 4},
}


def time_curation(shared: Path, checkout: Path) -> dict[str, float]:
    """Return what the command took."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, name) for name in "abc"]
        for copy in copies:
            write_shards(shared, copy)
        model, weights = Path(folder, "small.json"), f"{folder}/small.pt"
        model.write_text(json.dumps(SMALL))
        open_clip.add_model_config(model)
        torch.save(open_clip.create_model(model.stem).state_dict(), weights)
        options = {
            "input": "::".join(f"{copy}/cc_web_400/*.tar" for copy in copies),
            "out": f"{folder}/out",
            "scorer.model": str(model),
            "scorer.weights": weights,
            "cluster.executor": "local",
        }
        typed = [word for name, value in options.items() for word in (f"--{name}", value)]
        started = time.perf_counter()
        command = [sys.executable, "-m", "raycomp", "curate", *typed]
        own = {**os.environ, "PYTHONPATH": str(checkout)}  # which the working folder precedes
        subprocess.run(command, env=own, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
        took = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": round(took, 1), "cpu_seconds": round(used.ru_utime + used.ru_stime, 1)}


def resize_web(data: bytes) -> bytes:
    """Return a photo at 640 x 480, JPEG."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").resize((640, 480)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def main() -> None:
    """Time the three sides in turn, decode apart and included, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--model", default="ViT-B-16")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rows", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--stages", action="store_true", help="CPU time of the stages on CPUs alone")
    parser.add_argument("--curate", type=Path, metavar="CHECKOUT", help="a curation of web photos alone")
    args = parser.parse_args()
    if args.curate:
        print(json.dumps(time_curation(args.shared, args.curate)))
        return
    scorer = ScorerConfig(model=args.model, weights="random:0", precision=args.precision)
    if args.stages:
        print(json.dumps(measure_stages(args.shared, scorer, args.rows, args.rounds)))
        return
    spec = describe_scorer(scorer)
    photos = Photos(args.shared, args.rows, scorer, spec)
    load = partial(DataLoader, photos, batch_size=PAIRS_PER_BATCH, num_workers=WORKERS)
    align, attribute = Align(scorer, spec), Attribute(scorer)
    plain = partial(align_plain, align.clip)
    with tempfile.TemporaryDirectory() as folder:
        write_shards(args.shared, Path(folder), limit=args.rows)
        config = CurateConfig(input=f"{folder}/flickr8k_800", scorer=scorer)
        batches, blocks = list(load()), list(read_prepared(config, spec))
        run_raycomp(config, blocks[:1], align, attribute)  # all sides are warm when the clock starts
        with torch.inference_mode():
            plain(batches[:1], cut=False)
            plain(batches[:1], cut=True)
        apart = {
            "stock": lambda: plain(batches, cut=False),
            "cut": lambda: plain(batches, cut=True),
            "raycomp": lambda: run_raycomp(config, blocks, align, attribute),
        }
        included = {
            "stock": lambda: plain(load(), cut=False),
            "cut": lambda: plain(load(), cut=True),
            "raycomp": lambda: run_raycomp(config, read_prepared(config, spec), align, attribute),
        }
        report = {"model": args.model, "precision": args.precision, "rows": args.rows}
        report["decode_apart"] = compare(apart, args.rounds)
        report["decode_included"] = compare(included, args.rounds)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
