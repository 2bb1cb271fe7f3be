"""Captions and counterfactuals through the shared-prefix encoder against open_clip's own encoding of each.

    python -m bench.text_scoring ../shared [--precision bf16]

Naive: open_clip's ``encode_text`` of every caption and counterfactual at 77 tokens. Cut: the same blocks with
texts sorted by length and the context cut to the longest of a batch; side by side: its batches on a thread
each, as the shared-prefix encoder's passes are, so that prefixes alone make the difference. Free: the
shared-prefix encoder without fixed shapes, each thread's share of a call's positions in one pass: what batch
invariance costs. All in turn on the same captions of flickr8k_800, ViT-B/16, random weights; last line one
JSON object.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raycomp.config import ParserConfig, ScorerConfig
from raycomp.core.alignment import normalise
from raycomp.core.batches import cut_segments
from raycomp.curation.config import AttributeConfig, NonceConfig
from raycomp.curation.score.stages import parse
from raycomp.data.parquet import COUNTERFACTUALS, TOKENS, to_matrix
from raycomp.models.clip import Clip
from raycomp.words import CAPTION, OK, STATUS, UID

TEXTS_PER_BATCH = 64


class Texts(NamedTuple):
    """G captions with their T counterfactuals, one caption's after the other's."""

    caption_GN: np.ndarray
    other_TN: np.ndarray
    count_G: np.ndarray

    @property
    def all_KN(self) -> Tensor:
        """Captions, then counterfactuals."""
        return torch.from_numpy(np.concatenate([self.caption_GN, self.other_TN]).astype(np.int64))


def read_texts(shared: Path, scorer: ScorerConfig, captions: list[str]) -> Texts:
    """Parse captions and draw their nonces as a curation does."""
    columns = {CAPTION: captions, UID: [str(i) for i in range(len(captions))], STATUS: [OK] * len(captions)}
    table = parse(pa.table(columns), ParserConfig(), NonceConfig(), AttributeConfig(), scorer)
    others = table[COUNTERFACTUALS].combine_chunks()
    return Texts(to_matrix(table[TOKENS]), to_matrix(others.flatten()), others.value_lengths().to_numpy())


def encode_naive(clip: Clip, texts: Texts) -> Tensor:
    """Every text by itself at full context."""
    parts = texts.all_KN.split(TEXTS_PER_BATCH)
    return torch.cat([normalise(clip.model.encode_text(part).float()) for part in parts])


def encode_cut(clip: Clip, texts: Texts, side_by_side: bool = False) -> Tensor:
    """Every text by itself, batches sorted by length and cut to their longest."""
    token_KN = texts.all_KN
    order = token_KN.argmax(1).argsort()
    run = clip.device.map if side_by_side else map
    parts = list(run(partial(cut_context, clip), token_KN[order].split(TEXTS_PER_BATCH)))
    return normalise(torch.cat(parts).float())[order.argsort()]


def cut_context(clip: Clip, token_BN: Tensor) -> Tensor:
    """Return open_clip's embeddings of a batch whose context is cut to its longest text."""
    model, last_B = clip.model, token_BN.argmax(1)
    longest = int(last_B.max()) + 1
    x = model.token_embedding(token_BN[:, :longest]).to(clip.dtype)
    x = x + model.positional_embedding[:longest].to(clip.dtype)
    x = model.transformer(x, attn_mask=model.attn_mask[:longest, :longest].to(clip.dtype))
    return model.ln_final(x)[torch.arange(len(token_BN)), last_B] @ model.text_projection


def encode_shared(clip: Clip, texts: Texts) -> Tensor:
    """What a curation runs."""
    return torch.cat(clip.text.embed(*texts))


def encode_free(clip: Clip, texts: Texts) -> Tensor:
    """The same encoder with a pass per thread, of just as many positions as the call needs."""
    share = -(-count_positions(texts) // torch.get_num_threads()) + 8  # some room for whole parts
    fixed, clip.text.num_positions = clip.text.num_positions, share
    try:
        return encode_shared(clip, texts)
    finally:
        clip.text.num_positions = fixed


def count_positions(texts: Texts) -> int:
    """Return the positions that the shared-prefix encoder computes, padding apart."""
    length_G = texts.caption_GN.argmax(1) + 1
    owner_T = np.repeat(np.arange(len(length_G)), texts.count_G)
    first_T = (texts.other_TN != texts.caption_GN[owner_T]).argmax(1)
    return int(cut_segments(length_G, texts.count_G, first_T, 1 << 30).size_S.sum())


def find_drops(text_KD: Tensor, texts: Texts, seed: int) -> np.ndarray:
    """Return s(I, T) - s(I, T~) of random unit images, float64."""
    num_captions = len(texts.caption_GN)
    rng = np.random.default_rng(seed)
    image_GD = rng.normal(size=(num_captions, text_KD.shape[1]))
    image_GD /= np.linalg.norm(image_GD, axis=1, keepdims=True)
    owner_T = np.repeat(np.arange(num_captions), texts.count_G)
    text_KD = text_KD.double().numpy()
    change_TD = text_KD[:num_captions][owner_T] - text_KD[num_captions:]
    return (image_GD[owner_T] * change_TD).sum(1)


def main() -> None:
    """Time all in turn on one batch of captions after the other, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--model", default="ViT-B-16")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--captions", type=int, default=256, help="captions of a call, as a curation has")
    args = parser.parse_args()
    scorer = ScorerConfig(model=args.model, weights="random:0", precision=args.precision)
    lines = (args.shared / "data/flickr8k_800/captions.jsonl").read_text("utf-8").splitlines()
    captions = [caption for line in lines for caption in json.loads(line)["captions"]]
    captions = [captions[i] for i in np.random.default_rng(0).permutation(len(captions))]
    texts = read_texts(args.shared, scorer, captions[: args.captions * args.rounds])
    ways: dict[str, Callable[[Clip, Texts], Tensor]] = {
        "naive": encode_naive,
        "cut": encode_cut,
        "cut_side_by_side": partial(encode_cut, side_by_side=True),
        "free": encode_free,
        "shared": encode_shared,
    }
    clip, end_G = Clip(scorer), np.cumsum(texts.count_G)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    error, drop_error, num_texts, num_positions = 0.0, 0.0, 0, 0
    for start in range(0, len(end_G), args.captions):
        own_G = slice(start, start + args.captions)
        own_T = slice(end_G[start] - texts.count_G[start], end_G[own_G][-1])
        part = Texts(texts.caption_GN[own_G], texts.other_TN[own_T], texts.count_G[own_G])
        found = {}
        for name, encode in ways.items():
            with torch.inference_mode():
                started = time.perf_counter()
                found[name] = encode(clip, part)
                seconds[name].append(time.perf_counter() - started)
        error = max(error, float((found["shared"] - found["naive"]).abs().max()))
        drops = [find_drops(found[name], part, start) for name in ("shared", "naive")]
        drop_error = max(drop_error, float(np.abs(drops[0] - drops[1]).max()))
        num_texts += len(part.all_KN)
        num_positions += count_positions(part)
    ratio = {name: float(np.median(np.array(seconds[name]) / seconds["shared"])) for name in ways}
    report = {
        "model": args.model,
        "precision": args.precision,
        "texts": num_texts,
        "positions_naive": num_texts * texts.caption_GN.shape[1],
        "positions_shared": num_positions,
        "seconds": {name: round(sum(values), 2) for name, values in seconds.items()},
        "speedup_vs_naive": ratio["naive"],
        "speedup_vs_cut": ratio["cut"],
        "speedup_vs_cut_side_by_side": ratio["cut_side_by_side"],
        "time_vs_free_shapes": 1 / ratio["free"],
        "max_abs_error": error,
        "max_abs_drop_error": drop_error,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
