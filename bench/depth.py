"""Are negatives of several calls harder? Similarity, text-only judges and a model with the image, by depth.

    python -m bench.depth OUT.csv [--scenes 3000] [--steps 500] [--tested 400]

``photos``: rules on the first captions of flickr8k_800 (RAYCOMP_SHARED), ``negatives.calls=3``, all that
``per_caption=3`` keeps without a scorer. ``world``: the same rules on captions of scenes that a tiny CLIP has
not seen. By depth: pairs,
the mean cosine of caption and negative, the share of pairs in which a bigram model of other images' captions,
a judge that is trained on the pairs of this depth (five folds by image), and the tiny CLIP with the image
prefer the caption, with 95 % intervals over images. Depth 2 is that of arXiv:2510.26302, more is ours.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import raycomp
from bench.refinement import NUM_FOLDS, write_captions
from bench.sight import make_world, to_pixels, train
from lab.pair_judge import judge_pairs, list_text_features
from lab.worlds.captions import TEMPLATES, describe
from lab.worlds.render import encode_jpeg, render
from lab.worlds.samples import SIDE
from lab.worlds.scenes import draw_scene
from lab.worlds.tiny_clip import _normalise
from raycomp.config import ClusterConfig
from raycomp.core.alignment import normalise
from raycomp.core.intervals import compute_share
from raycomp.negatives.config import NegativesConfig, WritingConfig

DEPTHS = (1, 2, 3)
SEED = 43_000_000
FIELDS = (
    "captions", "depth", "pairs", "similarity", "bigram", "bigram_low", "bigram_high", "trained",
    "trained_low", "trained_high", "with_image", "with_image_low", "with_image_high",
)  # fmt: skip


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--scenes", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tested", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        folder = Path(name)
        write_captions(folder / "photos.parquet")
        rows = write_negatives(folder / "photos.parquet", folder / "photos")
        writer.writerows(report("photos", [row for row in rows if row["is_flickr"]]))
        file.flush()
        trained = train(make_world(0, options.scenes, strength=0.0), {}, "clip", 0, options.steps)
        writer.writerows(report("world", judge_world(folder, options.tested, *trained)))


def write_negatives(captions: Path, out: Path) -> list[dict]:
    """Return the captions with their negatives of up to three calls."""
    writing = WritingConfig(calls=3, rank=False, judge=("ngrams",))
    config = NegativesConfig(input=str(captions), negatives=writing, cluster=ClusterConfig(executor="local"))
    raycomp.negatives(config, str(out))
    images = {row["uid"]: row["image_sha256"] for row in pq.read_table(captions).to_pylist()}
    rows = [row for path in sorted((out / "negatives").iterdir()) for row in pq.read_table(path).to_pylist()]
    return [row | {"is_flickr": images[row["uid"]].startswith("flickr")} for row in rows]


def judge_world(folder: Path, num: int, model: Any, tokenize: Any, spec: Any) -> list[dict]:
    """Return captions of scenes with their negatives, and what a trained model makes of each."""
    rng = np.random.default_rng(SEED)
    scenes = [draw_scene(rng) for _ in range(num)]
    captions = [describe(scene, place % len(TEMPLATES)) for place, scene in enumerate(scenes)]
    uids = [f"{place:032x}" for place in range(num)]
    table = {"uid": uids, "caption": captions, "image_sha256": uids}
    pq.write_table(pa.table(table), folder / "world.parquet")
    rows = write_negatives(folder / "world.parquet", folder / "world")
    pixels = to_pixels([encode_jpeg(render(scene, SIDE)) for scene in scenes], spec)
    with torch.inference_mode():
        image_SD = normalise(model.encode_image(_normalise(pixels, spec)))
        for row in rows:
            texts = [row["caption"], *(one["text"] for one in row["negatives"])]
            text_KD = normalise(model.encode_text(tokenize(texts)))
            scores = (text_KD @ image_SD[int(row["uid"], 16)]).tolist()
            for one, close, score in zip(
                row["negatives"], (text_KD[1:] @ text_KD[0]).tolist(), scores[1:], strict=True
            ):
                one |= {"similarity": close, "with_image": scores[0] - score}
    return rows


def report(name: str, rows: list[dict]) -> list[dict]:
    """Return a row for each depth."""
    found = []
    for depth in DEPTHS:
        every = ((i, row, one) for i, row in enumerate(rows) for one in row["negatives"])
        pairs = [one for one in every if one[2]["calls"] == depth]
        place_P = np.array([i for i, *_ in pairs])
        judged = judge_pairs(
            list_text_features([(row["caption"], one["text"]) for _, row, one in pairs]), place_P % NUM_FOLDS
        )
        gaps: dict[str, Any] = {"bigram": [one["bigram"] for *_, one in pairs], "trained": judged}
        row = {"captions": name, "depth": depth, "pairs": len(pairs)}
        if name == "world":
            gaps["with_image"] = [one["with_image"] for *_, one in pairs]
            row["similarity"] = round(float(np.mean([one["similarity"] for *_, one in pairs])), 4)
        for judge, values in gaps.items():
            share = compute_share((np.sign(values) + 1) / 2, place_P)
            row |= {judge: round(share.value, 3), f"{judge}_low": round(share.low, 3)}
            row[f"{judge}_high"] = round(share.high, 3)
        found.append(row)
    return found


if __name__ == "__main__":
    main()
