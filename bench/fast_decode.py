"""Reduced-scale JPEG decoding (prepare.fast_decode) against the exact one: time, and what scores feel of it.

    python -m bench.fast_decode ../shared [--count 200] [--mosaics 20] [--model ViT-B-32]

Takes the first photos whose shorter side is at least twice the model's (no other is decoded differently), and
mosaics: real photos side by side, not enlarged, on 4000 x 3000 and 2048 x 1536 pixels, for lack of larger
photos. Each keeps a caption. Random weights; one decoding thread, rounds in turn. Last line one JSON object.
"""

import argparse
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from raycomp.config import ScorerConfig
from raycomp.core.alignment import pair_cosine
from raycomp.core.metrics import pearson, spearman
from raycomp.curation.config import PrepareConfig
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.images import ImageSpec, decode_image, prepare_image

SETS = ("cc_web_400", "flickr8k_800", "coco_val_40")
CANVASES = {"12 megapixels": (4000, 3000), "3 megapixels": (2048, 1536)}
ROUNDS = 3
MAX_PIXELS = PrepareConfig().max_pixels

Photo = tuple[bytes, str]


def read_photos(shared: Path, name: str) -> list[Photo]:
    """Return (bytes, first caption) of a set's photos."""
    folder = shared / "data" / name
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text("utf-8").splitlines()]
    return [((folder / "images" / row["image"]).read_bytes(), row["captions"][0]) for row in rows]


def is_large(data: bytes, spec: ImageSpec) -> bool:
    """Return whether a photo is large enough to be decoded at half its size."""
    return min(Image.open(io.BytesIO(data)).size) >= 2 * max(spec.height, spec.width)


def make_mosaics(photos: list[Photo], count: int, size: tuple[int, int]) -> Iterator[Photo]:
    """Yield JPEGs of a size covered with photos at their own size, each with its first's caption."""
    at = 0
    for _ in range(count):
        canvas, caption, top = Image.new("RGB", size), photos[at][1], 0
        while top < size[1]:
            left, lowest = 0, size[1]
            while left < size[0]:
                picture = decode_image(photos[at % len(photos)][0], MAX_PIXELS)
                canvas.paste(picture, (left, top))
                left, lowest, at = left + picture.width, min(lowest, top + picture.height), at + 1
            top = lowest
        at %= len(photos)
        buffer = io.BytesIO()
        canvas.save(buffer, "JPEG", quality=90)
        yield buffer.getvalue(), caption


def prepare_all(photos: list[Photo], spec: ImageSpec, fast: bool) -> tuple[np.ndarray, float]:
    """Return the pixels and the seconds that decoding and resizing take."""
    started = time.perf_counter()
    pixels = [prepare_image(data, spec, MAX_PIXELS, fast)[0] for data, _ in photos]
    return np.stack(pixels), time.perf_counter() - started


def compare(photos: list[Photo], spec: ImageSpec, clip: Clip, tokenize: Any) -> dict[str, float]:
    """Return speeds, and how near fast embeddings and alignments come to the exact ones."""
    exact, fast = [], []
    for _ in range(ROUNDS):
        exact_BHWC, seconds = prepare_all(photos, spec, False)
        exact.append(seconds)
        fast_BHWC, seconds = prepare_all(photos, spec, True)
        fast.append(seconds)
    tokens = tokenize([caption for _, caption in photos]).numpy()
    text_BD, _ = clip.text.embed(tokens)
    exact_BD, fast_BD = clip.embed_pixels(exact_BHWC), clip.embed_pixels(fast_BHWC)
    cosine_B = pair_cosine(fast_BD, exact_BD).numpy()
    before_B, after_B = (pair_cosine(image_BD, text_BD).numpy() for image_BD in (exact_BD, fast_BD))
    return {
        "photos": len(photos),
        "exact_per_s": len(photos) / float(np.median(exact)),
        "fast_per_s": len(photos) / float(np.median(fast)),
        "speedup": float(np.median([a / b for a, b in zip(exact, fast, strict=True)])),
        "cosine_mean": float(cosine_B.mean()),
        "cosine_min": float(cosine_B.min()),
        "cosine_to_next_photo": float(pair_cosine(exact_BD, exact_BD.roll(1, 0)).mean()),
        "alignment_pearson": pearson(before_B, after_B),
        "alignment_spearman": spearman(before_B, after_B),
        "alignment_most_moved": float(np.abs(before_B - after_B).max()),
        "alignment_spread": float(before_B.std()),
    }


def main() -> None:
    """Choose the photos, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--count", type=int, default=200, help="photos at most")
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--mosaics", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(2)
    scorer = ScorerConfig(model=args.model, weights="random:0")
    spec, clip, tokenize = describe_scorer(scorer).image, Clip(scorer), load_tokenizer(scorer)
    photos = {name: read_photos(args.shared, name) for name in SETS}
    large = {name: [photo for photo in found if is_large(photo[0], spec)] for name, found in photos.items()}
    chosen = [photo for found in large.values() for photo in found][: args.count]
    report = {
        "model": args.model,
        "large_of_all": {name: [len(large[name]), len(photos[name])] for name in SETS},
        "photos": compare(chosen, spec, clip, tokenize),
    }
    for name, size in CANVASES.items():
        mosaics = list(make_mosaics(photos["cc_web_400"], args.mosaics, size))
        report[f"mosaics of {name}"] = compare(mosaics, spec, clip, tokenize)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
