"""Alignment and PAS on a GPU against open_clip's own encoding of the same pairs and texts.

    python -m bench.gpu_scoring prepare ../shared texts.arrow    # where spaCy is: parse, draw nonces
    python -m bench.gpu_scoring run texts.arrow [--precision bf16] [--model ViT-B-16] [--compile]

What a scorer is handed lies in memory: raycomp's uint8 pixels and tokens in Arrow tables as a curation hands
them to a GPU; open_clip's images normalised in pinned memory, as its loader leaves them. raycomp: the
defaults, and sides for the options that are meant for GPUs, those that the device and the precision allow;
with scorer.overlap two threads call the scorer, as Ray does. Repeats: whether a second call gave the same
bits. Stock: open_clip at 77 tokens, in batches of each size of --batches. Cut: texts sorted by length,
batches cut to their longest. PAS: captions of flickr8k_800 with all counterfactuals, each text by itself on
open_clip's side. All end with numbers on the CPU. Ceiling: the products with the weights of both towers'
blocks alone, on the same device. Random pixels and weights; sides in turn; goals as lines; last line one JSON
object.
"""

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raycomp.config import ParserConfig, ScorerConfig
from raycomp.core.alignment import normalise, pair_cosine
from raycomp.curate.align import Align
from raycomp.curate.attribute import Attribute
from raycomp.curate.config import AttributeConfig, NonceConfig
from raycomp.curate.parse import parse
from raycomp.data.arrow import COUNTERFACTUALS, TOKENS, add_columns, to_fixed_lists, to_matrix
from raycomp.models.clip import Clip
from raycomp.models.describe import describe_scorer
from raycomp.models.device import describe_gpu
from raycomp.models.spec import ScorerSpec
from raycomp.words import ALIGNMENT, CAPTION, IMAGE_EMBEDDING, IMAGE_SHA256, OK, PIXELS, STATUS, UID

# As a curation hands rows to a GPU.
PAIRS_PER_CALL, CAPTIONS_PER_CALL = 512, 1024
PLAIN_BATCH = 256
DEFAULT, STOCK = "raycomp", "stock"
WIDTHS = (32, 64, 128, 256)
SIDES: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "overlap": {"overlap": True},
    "pass_256": {"pass_size": 256},
    "pass_256_overlap": {"pass_size": 256, "overlap": True},
    "widths": {"text_widths": WIDTHS},
    "widths_overlap": {"text_widths": WIDTHS, "overlap": True},
}
FAST = {"pass_size": 256, "overlap": True, "text_widths": WIDTHS}


def list_sides(is_gpu: bool, precision: str, compiled: bool) -> dict[str, dict[str, Any]]:
    """Return the options of each side of raycomp; the last ones have all that is meant to be fast."""
    sides = dict(SIDES)
    if is_gpu:
        sides["widths_efficient"] = {"text_widths": WIDTHS, "overlap": True, "attention": "efficient"}
        sides["graph"] = {"pass_size": 256, "overlap": True, "graph": True}
        for name in ("efficient", *(("flash", "cudnn") if precision == "bf16" else ())):
            sides[f"all_{name}"] = FAST | {"graph": True, "attention": name}
    if compiled:
        sides["compile"] = {"pass_size": 256, "overlap": True, "compile": True}
        sides["all_compile"] = FAST | {"graph": is_gpu, "compile": True}
    return sides


def load_sides(
    scorer: ScorerConfig, sides: dict[str, dict[str, Any]], spec: ScorerSpec
) -> tuple[dict[str, Align], dict[str, str]]:
    """Return the scorers of all sides, and the message of each that torch cannot make here."""
    aligns, refused = {}, {}
    for name, more in sides.items():
        try:
            aligns[name] = Align(replace(scorer, **more), spec)
        except ValueError as error:
            refused[name] = str(error)
    return aligns, refused


def prepare(shared: Path, out: Path) -> None:
    """Write the captions that have phrases, parsed."""
    lines = (shared / "data/flickr8k_800/captions.jsonl").read_text("utf-8").splitlines()
    captions = [caption for line in lines for caption in json.loads(line)["captions"]]
    columns = {CAPTION: captions, UID: [str(i) for i in range(len(captions))], STATUS: [OK] * len(captions)}
    configs = ParserConfig(), NonceConfig(), AttributeConfig(), ScorerConfig(weights="random:0")
    table = parse(pa.table(columns), *configs)
    table = table.filter(pa.array([status == OK for status in table[STATUS].to_pylist()]))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(out, table.schema, options=options) as file:
        file.write_table(table)


def cut_context(clip: Clip, token_BN: Tensor) -> Tensor:
    """Return open_clip's embeddings of a batch whose context is cut to its longest text."""
    model, last_B = clip.model, token_BN.argmax(1)
    longest = int(last_B.max()) + 1
    x = model.token_embedding(token_BN[:, :longest]).to(clip.dtype)
    x = x + model.positional_embedding[:longest].to(clip.dtype)
    x = model.transformer(x, attn_mask=model.attn_mask[:longest, :longest].to(clip.dtype))
    return model.ln_final(x)[torch.arange(len(token_BN), device=x.device), last_B] @ model.text_projection


def embed_plain(clip: Clip, token_KN: Tensor, cut: bool, batch: int = PLAIN_BATCH) -> Tensor:
    """Return all texts' embeddings, fp32 on the device."""
    place = clip.device.place
    order = token_KN.argmax(1).argsort() if cut else torch.arange(len(token_KN))
    encode = partial(cut_context, clip) if cut else clip.model.encode_text
    parts = [encode(part.to(place, non_blocking=True)) for part in token_KN[order].split(batch)]
    return normalise(torch.cat(parts).float())[order.argsort().to(place)]


def align_plain(
    clip: Clip, image_KCHW: Tensor, token_KN: Tensor, cut: bool = False, batch: int = PLAIN_BATCH
) -> np.ndarray:
    """Return the alignments of all pairs, encoded by open_clip."""
    sent = (part.to(clip.device.place, clip.dtype, non_blocking=True) for part in image_KCHW.split(batch))
    image_KD = normalise(torch.cat([clip.model.encode_image(part) for part in sent]).float())
    return pair_cosine(image_KD, embed_plain(clip, token_KN, cut, batch)).cpu().numpy()


def in_calls(work: Align | Attribute, table: pa.Table, rows: int) -> pa.Table:
    """Return what ``work`` makes of the table, so many rows at a time, in two threads where calls overlap."""
    parts = [table.slice(start, rows) for start in range(0, len(table), rows)]
    with ThreadPoolExecutor(2 if work.device.overlaps else 1) as pool:
        return pa.concat_tables(pool.map(work, parts))


def compare(ways: dict[str, Callable[[], object]], rows: int, rounds: int) -> dict[str, Any]:
    """Return rows per second, all ways in turn, and the times as fast as the default and as stock's best."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, work in ways.items():
            started = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - started)
    kept = {name: np.array(values[1:]) for name, values in seconds.items()}
    stock = min((name for name in kept if name.startswith(STOCK)), key=lambda name: np.median(kept[name]))
    return {
        "rows_per_s": {n: round(rows / float(np.median(v)), 1) for n, v in kept.items()},
        "over_default": {n: ratio(kept[DEFAULT] / v) for n, v in kept.items()},
        "stock": stock,
        "over_stock": {n: ratio(kept[stock] / v) for n, v in kept.items()},
    }


def ratio(values: np.ndarray) -> list[float]:
    """Return median, least and most."""
    return [round(float(pick(values)), 3) for pick in (np.median, np.min, np.max)]


def time_products(clip: Clip, tower: Any, rows: int, rounds: int = 10) -> float:
    """Return the seconds of the products of so many rows with the weights of all blocks of a tower."""
    first, num = tower.transformer.resblocks[0], len(tower.transformer.resblocks)
    weights = [first.attn.in_proj_weight, first.attn.out_proj.weight]
    weights += [first.mlp.c_fc.weight, first.mlp.c_proj.weight]
    inputs = [torch.randn(rows, w.shape[1], device=w.device, dtype=w.dtype) for w in weights]
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        with clip.device.computing():
            for x, w in list(zip(inputs, weights, strict=True)) * num:
                torch.mm(x, w.T)
        if clip.device.is_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def find_ceiling(clip: Clip, token_KN: Tensor, images: int) -> float:
    """Return pairs per second if those products were all there is to do, each text up to its end."""
    places, positions = clip.model.visual.positional_embedding.shape[0], clip.text.num_positions
    image_s = time_products(clip, clip.model.visual, images * places) / images
    text_s = time_products(clip, clip.text.tower, positions) / positions
    return 1 / (image_s + text_s * (1 + float(token_KN.argmax(1).float().mean())))


def judge(report: dict[str, Any]) -> dict[str, bool]:
    """Print the goals with the fastest side of raycomp; return which are met."""
    align, attribute = report["align"], report["attribute"]
    best = {
        name: max((n for n in side["over_default"] if n in report["sides"]), key=side["rows_per_s"].get)
        for name, side in (("align", align), ("attribute", attribute))
    }
    pairs_per_s = align["rows_per_s"][best["align"]]
    goals = {
        f"alignment ({best['align']}) over open_clip ({align['stock']}), at least 1.0": (
            align["over_stock"][best["align"]][0],
            lambda x: x >= 1.0,
        ),
        f"alignment ({best['align']}) over the ceiling, at least 0.5": (
            pairs_per_s / report["ceiling_pairs_per_s"],
            lambda x: x >= 0.5,
        ),
        f"PAS of a caption ({best['attribute']}) over the time of a pair, at most 0.35": (
            pairs_per_s / attribute["rows_per_s"][best["attribute"]],
            lambda x: x <= 0.35,
        ),
    }
    for goal, (value, is_met) in goals.items():
        print(f"goal: {goal}: {value:.2f} ({'met' if is_met(value) else 'missed'})")
    return {goal: is_met(value) for goal, (value, is_met) in goals.items()}


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Return throughput of alignment and of PAS, and how far the results are apart."""
    scorer = ScorerConfig(model=args.model, weights="random:0", precision=args.precision)
    spec = describe_scorer(scorer)
    sides = list_sides(torch.cuda.is_available(), args.precision, args.compile)
    aligns, refused = load_sides(scorer, sides, spec)
    clip, table = aligns[DEFAULT].clip, pa.ipc.open_file(args.file).read_all().combine_chunks()
    table = table.slice(0, args.captions)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (min(args.pairs, len(table)), spec.image.num_values), dtype=np.uint8)
    num, token_KN = len(pixels), torch.from_numpy(to_matrix(table[TOKENS]).astype(np.int64))
    hashes = pa.array([str(i) for i in range(num)])
    pairs = add_columns(table.slice(0, num), {PIXELS: to_fixed_lists(pixels), IMAGE_SHA256: hashes})
    pairs = pairs.select([UID, CAPTION, STATUS, IMAGE_SHA256, TOKENS, PIXELS])
    shape = (num, spec.image.height, spec.image.width, 3)
    image = torch.from_numpy(pixels.reshape(shape)).permute(0, 3, 1, 2).float().div(255)
    image = image.sub(clip.mean_3.cpu()).div(clip.std_3.cpu()).contiguous()
    image = image.pin_memory() if clip.device.is_gpu else image
    report: dict = {"gpu": describe_gpu(), "torch": torch.__version__, "model": args.model}
    report |= {"precision": args.precision, "pairs": num, "sides": list(aligns), "refused": refused}
    plain = align_plain(clip, image[:64], token_KN[:64], batch=64)
    own, again = (
        {name: align(pairs.slice(0, 64))[ALIGNMENT].to_numpy() for name, align in aligns.items()}
        for _ in range(2)
    )
    report["repeats"] = {name: bool((own[name] == again[name]).all()) for name in own}
    report["alignment_difference"] = {
        name: float(np.abs(x - plain[: len(x)]).max()) for name, x in own.items()
    }
    report["ceiling_pairs_per_s"] = round(find_ceiling(clip, token_KN, args.pairs_per_product), 1)
    ways: dict[str, Callable[[], object]] = {
        name: partial(in_calls, align, pairs, PAIRS_PER_CALL) for name, align in aligns.items()
    }
    for batch in args.batches:
        ways[f"{STOCK}_{batch}"] = partial(align_plain, clip, image, token_KN[:num], batch=batch)
    ways["cut"] = partial(align_plain, clip, image, token_KN[:num], cut=True)
    report["align"] = compare(ways, num, args.rounds)
    others = table[COUNTERFACTUALS].combine_chunks().flatten()
    all_KN = torch.cat([token_KN, torch.from_numpy(to_matrix(others).astype(np.int64))])
    scored = {
        ALIGNMENT: pa.array(np.zeros(len(table), np.float32)),
        IMAGE_EMBEDDING: to_fixed_lists(np.eye(len(table), spec.embedding_dim, dtype=np.float16)),
    }
    pool = add_columns(table, scored)
    report |= {"captions": len(table), "texts": len(all_KN)}
    ways = {
        name: partial(in_calls, Attribute(replace(scorer, **more)), pool, CAPTIONS_PER_CALL)
        for name, more in sides.items()
        if name in aligns and more.keys() <= {"overlap", "text_widths", "attention"}  # others: of images
    }
    ways["cut"] = lambda: embed_plain(clip, all_KN, True).cpu()
    ways[STOCK] = lambda: embed_plain(clip, all_KN, False).cpu()
    report["attribute"] = compare(ways, len(table), args.rounds)
    report["goals"] = judge(report)
    return report


def main() -> None:
    """Prepare, or compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("prepare")
    made.add_argument("shared", type=Path)
    made.add_argument("out", type=Path)
    ran = commands.add_parser("run")
    ran.add_argument("file", type=Path)
    ran.add_argument("--model", default="ViT-B-16")
    ran.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    ran.add_argument("--pairs", type=int, default=2048)
    ran.add_argument("--captions", type=int, default=4000)
    ran.add_argument("--rounds", type=int, default=5)
    ran.add_argument("--batches", type=int, nargs="+", default=[64, 256, 512, 1024], help="of stock")
    ran.add_argument("--pairs-per-product", type=int, default=256, help="of the ceiling")
    ran.add_argument("--compile", action="store_true", help="sides with scorer.compile")
    args = parser.parse_args()
    if args.command == "prepare":
        prepare(args.shared, args.out)
    else:
        print(json.dumps(run(args)))


if __name__ == "__main__":
    main()
