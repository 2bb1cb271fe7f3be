"""Alignment and PAS on a GPU against open_clip's own encoding of the same pairs and texts.

    python -m bench.gpu_scoring prepare ../shared texts.arrow    # where spaCy is: parse, draw nonces
    python -m bench.gpu_scoring run texts.arrow [--precision bf16] [--model ViT-B-16]

What a scorer is handed lies in memory: raycomp's uint8 pixels and tokens in Arrow tables as a curation hands
them to a GPU; open_clip's images normalised in pinned memory, as its loader leaves them. Stock: batches of
256, captions at 77 tokens. Cut: texts sorted by length, batches cut to their longest. PAS: captions of
flickr8k_800 with all counterfactuals, each text by itself on open_clip's side. Both end with numbers on the
CPU. Random pixels and weights; sides in turn; last line one JSON object.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
from raycomp.words import ALIGNMENT, CAPTION, IMAGE_EMBEDDING, IMAGE_SHA256, OK, PIXELS, STATUS, UID

# As a curation hands rows to a GPU.
PAIRS_PER_CALL, CAPTIONS_PER_CALL = 512, 1024
PLAIN_BATCH = 256


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


def embed_plain(clip: Clip, token_KN: Tensor, cut: bool) -> Tensor:
    """Return all texts' embeddings, fp32 on the device."""
    place = clip.device.place
    order = token_KN.argmax(1).argsort() if cut else torch.arange(len(token_KN))
    encode = partial(cut_context, clip) if cut else clip.model.encode_text
    parts = [encode(part.to(place, non_blocking=True)) for part in token_KN[order].split(PLAIN_BATCH)]
    return normalise(torch.cat(parts).float())[order.argsort().to(place)]


def align_plain(clip: Clip, image_BCHW: list[Tensor], token_KN: Tensor, cut: bool) -> np.ndarray:
    """Return the alignments of all pairs, encoded by open_clip."""
    place = clip.device.place
    parts = [clip.model.encode_image(part.to(place, clip.dtype, non_blocking=True)) for part in image_BCHW]
    image_KD = normalise(torch.cat(parts).float())
    return pair_cosine(image_KD, embed_plain(clip, token_KN, cut)).cpu().numpy()


def in_calls(work: Callable[[pa.Table], pa.Table], table: pa.Table, rows: int) -> pa.Table:
    """Return what ``work`` makes of the table, so many rows at a time."""
    return pa.concat_tables([work(table.slice(start, rows)) for start in range(0, len(table), rows)])


def compare(ways: dict[str, Callable[[], object]], rows: int, rounds: int) -> dict[str, dict]:
    """Return rows per second, all ways in turn, and how many times as fast raycomp is."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, work in ways.items():
            started = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - started)
    kept = {name: np.array(values[1:]) for name, values in seconds.items()}
    return {
        "rows_per_s": {n: round(rows / float(np.median(v)), 1) for n, v in kept.items()},
        "raycomp_times_as_fast": {
            n: [round(float(f(v / kept["raycomp"])), 3) for f in (np.median, np.min, np.max)]
            for n, v in kept.items()
            if n != "raycomp"
        },
    }


@torch.inference_mode()
def run(args: argparse.Namespace) -> dict:
    """Return throughput of alignment and of PAS, and how far the results are apart."""
    scorer = ScorerConfig(model=args.model, weights="random:0", precision=args.precision)
    spec = describe_scorer(scorer)
    align, attribute = Align(scorer, spec), Attribute(scorer)
    clip, table = align.clip, pa.ipc.open_file(args.file).read_all().combine_chunks().slice(0, args.captions)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (min(args.pairs, len(table)), spec.image.num_values), dtype=np.uint8)
    num, token_KN = len(pixels), torch.from_numpy(to_matrix(table[TOKENS]).astype(np.int64))
    hashes = pa.array([str(i) for i in range(num)])
    pairs = add_columns(table.slice(0, num), {PIXELS: to_fixed_lists(pixels), IMAGE_SHA256: hashes})
    pairs = pairs.select([UID, CAPTION, STATUS, IMAGE_SHA256, TOKENS, PIXELS])
    shape = (num, spec.image.height, spec.image.width, 3)
    image = torch.from_numpy(pixels.reshape(shape)).permute(0, 3, 1, 2).float().div(255)
    image = image.sub(clip.mean_3.cpu()).div(clip.std_3.cpu()).contiguous()
    images = [part.pin_memory() if clip.device.is_gpu else part for part in image.split(PLAIN_BATCH)]
    own = align(pairs.slice(0, 64))
    plain = align_plain(clip, [images[0][:64]], token_KN[:64], False)
    report: dict = {"model": args.model, "precision": args.precision, "pairs": num}
    report["alignment_difference"] = float(np.abs(own[ALIGNMENT].to_numpy() - plain).max())
    report["align"] = compare(
        {
            "raycomp": lambda: in_calls(align, pairs, PAIRS_PER_CALL),
            "stock": lambda: align_plain(clip, images, token_KN[:num], False),
            "cut": lambda: align_plain(clip, images, token_KN[:num], True),
        },
        num,
        args.rounds,
    )
    others = table[COUNTERFACTUALS].combine_chunks().flatten()
    all_KN = torch.cat([token_KN, torch.from_numpy(to_matrix(others).astype(np.int64))])
    scored = {
        ALIGNMENT: pa.array(np.zeros(len(table), np.float32)),
        IMAGE_EMBEDDING: to_fixed_lists(np.eye(len(table), spec.embedding_dim, dtype=np.float16)),
    }
    pool = add_columns(table, scored)
    report |= {"captions": len(table), "texts": len(all_KN)}
    ways: dict[str, Callable[[], object]] = {
        "raycomp": lambda: in_calls(attribute, pool, CAPTIONS_PER_CALL),
        "cut": lambda: embed_plain(clip, all_KN, True).cpu(),
        "stock": lambda: embed_plain(clip, all_KN, False).cpu(),
    }
    report["attribute"] = compare(ways, len(table), args.rounds)
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
    args = parser.parse_args()
    if args.command == "prepare":
        prepare(args.shared, args.out)
    else:
        print(json.dumps(run(args)))


if __name__ == "__main__":
    main()
