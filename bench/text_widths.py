"""Static widths of texts (scorer.text_widths) against a width for each: host work, filling, CPU time.

    make gpu-kit    # writes out/gpu_kit/texts.arrow
    python -m bench.text_widths pack out/gpu_kit/texts.arrow bench/results/text_widths.csv
    python -m bench.text_widths embed out/gpu_kit/texts.arrow bench/results/text_widths_cpu.csv

Pack: the host work of 1,024 captions, with their counterfactuals and alone, at a GPU's and a CPU's positions
of a pass; per_pack 64: packed block by block, as the parse stage would have to. Host: CPU milliseconds of the
numpy work up to the passes, median and range; tokens: the part of it before packing. Fill: used positions
over computed ones. Shapes: different shapes of attention rows among the passes. Embed: CPU seconds of the
whole text tower, the sides in turn on the same captions; the ratio to the default with a 95 % interval of the
mean of its logarithm.
"""

import argparse
import csv
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raycomp.config import ScorerConfig
from raycomp.core.batches import PackedPass, cut_segments, pack
from raycomp.core.metrics import student_95
from raycomp.data.parquet import COUNTERFACTUALS, TOKENS, to_matrix
from raycomp.models.clip import Clip

CAPTIONS, BLOCK, ROUNDS = 1024, 64, 9
WIDTHS: tuple[tuple[int, ...], ...] = ((), (32, 64, 96, 160), (32, 64, 128, 256), (32, 96, 192, 384))
Texts = tuple[np.ndarray, np.ndarray, np.ndarray]


def read_texts(table: pa.Table) -> Texts:
    """Return captions, their counterfactuals and how many each has, from what the parse stage wrote."""
    others = table[COUNTERFACTUALS].combine_chunks()
    count_G = others.value_lengths().to_numpy(zero_copy_only=False)
    return to_matrix(table[TOKENS]), to_matrix(others.flatten()), count_G


def read_tokens(texts: Texts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Do what a scorer does with tokens before it packs: lengths, and where each counterfactual changes."""
    caption_GN, other_TN, count_G = texts
    token_KN = np.concatenate([caption_GN, other_TN])
    length_K, owner_T = token_KN.argmax(1) + 1, np.repeat(np.arange(len(caption_GN)), count_G)
    changed_TN, last_T = token_KN[len(caption_GN) :] != token_KN[owner_T], length_K[owner_T] - 1
    first_T = np.where(changed_TN.any(1), np.minimum(changed_TN.argmax(1), last_T), last_T)
    return length_K[: len(caption_GN)], count_G, first_T


def measure_packing(table: pa.Table) -> list[dict[str, Any]]:
    """Return a row for each setting."""
    rows = []
    settings = [(m, w, CAPTIONS, True) for m in (8192, 512) for w in WIDTHS]
    settings += [(8192, w, BLOCK, True) for w in WIDTHS] + [(8192, w, CAPTIONS, False) for w in WIDTHS]
    for num_positions, widths, per_pack, with_others in settings:
        parts = [read_texts(table.slice(start, per_pack)) for start in range(0, CAPTIONS, per_pack)]
        if not with_others:
            parts = [(caption_GN, other_TN[:0], 0 * count_G) for caption_GN, other_TN, count_G in parts]
        seconds, token_s = [], []
        most = (widths or (num_positions,))[-1]
        for _ in range(ROUNDS):
            started = time.process_time()
            read = [read_tokens(part) for part in parts]
            token_s.append(time.process_time() - started)
            passes: list[PackedPass] = []
            for part in read:
                passes += pack(cut_segments(*part, most), num_positions, widths)
            seconds.append(time.process_time() - started)
        used = sum(int(packed.last_S[-1]) + 1 for packed in passes)
        low, middle, high = (round(1000 * float(pick(seconds)), 1) for pick in (min, np.median, max))
        rows.append(
            {
                "positions": num_positions,
                "widths": " ".join(map(str, widths)) or "each its own",
                "per_pack": per_pack,
                "counterfactuals": sum(len(part[1]) for part in parts),
                "host_ms": middle,
                "host_ms_least": low,
                "host_ms_most": high,
                "tokens_ms": round(1000 * float(np.median(token_s)), 1),
                "passes": len(passes),
                "shapes": len({tuple(index_RW.shape for index_RW in one.rows) for one in passes}),
                "fill": round(used / (num_positions * len(passes)), 3),
            }
        )
    return rows


@torch.inference_mode()
def measure_embedding(table: pa.Table, model: str, captions: int, rounds: int) -> list[dict[str, Any]]:
    """Return CPU seconds of each side, their ratio to the default and the embeddings' largest difference."""
    scorer = ScorerConfig(model=model, weights="random:0")
    clips = {widths: Clip(replace(scorer, text_widths=widths), device="cpu") for widths in WIDTHS}
    seconds: dict[tuple[int, ...], list[float]] = {widths: [] for widths in WIDTHS}
    largest = dict.fromkeys(WIDTHS, 0.0)
    for number in range(rounds + 1):
        texts, found = read_texts(table.slice(number * captions, captions)), {}
        for widths in WIDTHS[number % 2 * 2 :] + WIDTHS[: number % 2 * 2]:
            started = time.process_time()
            found[widths] = torch.cat(clips[widths].text.embed(*texts))
            seconds[widths].append(time.process_time() - started)
        for widths in WIDTHS:
            largest[widths] = max(largest[widths], float((found[widths] - found[()]).abs().max()))
    rows = []
    for widths in WIDTHS:
        log_R = np.log(np.array(seconds[widths][1:]) / np.array(seconds[()][1:]))
        half = student_95(rounds - 1) * log_R.std(ddof=1) / np.sqrt(rounds)
        ratio, low, high = np.exp([log_R.mean(), log_R.mean() - half, log_R.mean() + half]).round(3)
        rows.append(
            {
                "model": model,
                "widths": " ".join(map(str, widths)) or "each its own",
                "captions": captions,
                "rounds": rounds,
                "cpu_s": round(float(np.median(seconds[widths][1:])), 2),
                "ratio": ratio,
                "ratio_low": low,
                "ratio_high": high,
                "largest_difference": f"{largest[widths]:.1e}",
            }
        )
    return rows


def main() -> None:
    """Measure, print and write a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("pack", "embed"))
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="ViT-B-16")
    parser.add_argument("--captions", type=int, default=32, help="of a call of embed")
    parser.add_argument("--rounds", type=int, default=8, help="of embed")
    args = parser.parse_args()
    table = pa.ipc.open_file(args.texts).read_all().combine_chunks()
    if args.what == "pack":
        rows = measure_packing(table.slice(0, CAPTIONS))
    else:
        rows = measure_embedding(table, args.model, args.captions, args.rounds)
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(args.out.read_text())


if __name__ == "__main__":
    main()
