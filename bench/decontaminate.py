"""Recall of planted copies of test images, and false matches among photos, by the index of test sets.

    python -m bench.decontaminate FOLDER [--bits 8] [--likeness 0.9]

Every photo below FOLDER is a test image. Of each seven copies are made: JPEG at quality 30, half the size,
mirrored, and with 5, 10 and 15 % of width and height cut off on all sides, and the same 10 % at one corner.
A copy is found if it matches a view of its own photo by hash and thumbnail. A false match is one with another
photo, among all pairs of a photo and another's views. Pictures below 32 pixels, and of one colour, are left
out. The upper end of the false rate is that of no match among as many pairs (rule of three).
"""

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from raycomp.core.near import LEAST_LIKENESS, PLAIN_HASHES, HashIndex, measure_likeness
from raycomp.models.images import decode_image, hash_view, list_views, make_thumbnail, shrink

MOST_PIXELS = 178_956_970
_ENDS = (".jpg", ".jpeg", ".png")


def encode(image: Image.Image, quality: int = 90) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def cut(image: Image.Image, share: float) -> Image.Image:
    x, y = (round(side * share / 2) for side in image.size)
    return image.crop((x, y, image.width - x, image.height - y))


COPIES = {
    "itself": lambda image: encode(image, 95),
    "quality 30": lambda image: encode(image, 30),
    "half size": lambda image: encode(image.resize((image.width // 2, image.height // 2))),
    "mirror": lambda image: encode(ImageOps.mirror(image)),
    "cut 5 %": lambda image: encode(cut(image, 0.05)),
    "cut 10 %": lambda image: encode(cut(image, 0.1)),
    "cut 15 %": lambda image: encode(cut(image, 0.15)),
    "cut 10 %, corner": lambda image: encode(
        image.crop((0, 0, round(image.width * 0.9), round(image.height * 0.9)))
    ),
}


def is_picture(image: Image.Image) -> bool:
    return min(image.size) >= 32 and hash_view(shrink(image)) not in PLAIN_HASHES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--likeness", type=float, default=LEAST_LIKENESS)
    arguments = parser.parse_args()
    files = sorted(path for path in arguments.folder.rglob("*") if path.suffix.lower() in _ENDS)
    read = [(path, decode_image(path.read_bytes(), MOST_PIXELS)) for path in files]
    shown = [(path, image) for path, image in read if is_picture(image)]
    files, images = [path for path, _ in shown], [image for _, image in shown]
    print(f"{len(read) - len(images):,} of {len(read):,} are too small or of one colour")
    owner_V, hash_V, thumbs = [], [], []
    for i, image in enumerate(images):
        for view in list_views(image):
            owner_V.append(i)
            hash_V.append(view.hash)
            thumbs.append(view.thumbnail)
    owners, thumb_VT = np.array(owner_V), np.stack(thumbs)
    index = HashIndex(np.array(hash_V, np.uint64))
    false: set[tuple[int, int]] = set()
    print(
        f"{len(images):,} photos, {len(owners):,} views, {arguments.bits} bits, likeness {arguments.likeness}"
    )
    for how, make in COPIES.items():
        copies = [decode_image(make(image), MOST_PIXELS) for image in images]
        hash_N = np.array([hash_view(shrink(copy)) for copy in copies], np.uint64)
        match_E2 = index.find(hash_N, arguments.bits)
        row_E, view_E = match_E2[:, 0], match_E2[:, 1]
        thumb_NT = np.stack([make_thumbnail(copy) for copy in copies])
        is_like_E = measure_likeness(thumb_NT[row_E], thumb_VT[view_E]) >= arguments.likeness
        is_own_E = owners[view_E] == row_E
        own_E = row_E[is_own_E]
        found, hashed = len({*own_E[is_like_E[is_own_E]].tolist()}), len({*own_E.tolist()})
        others = {*zip(row_E[~is_own_E].tolist(), owners[view_E[~is_own_E]].tolist(), strict=True)}
        confirmed = ~is_own_E & is_like_E
        pairs = {*zip(row_E[confirmed].tolist(), owners[view_E[confirmed]].tolist(), strict=True)}
        false |= {tuple(sorted(pair)) for pair in pairs}
        print(
            f"{how:18} recall {found / len(images):.4f}, by hash alone {hashed / len(images):.4f}; "
            f"other photos: {len(pairs):,} confirmed, {len(others):,} by hash"
        )
    num_pairs = len(images) * (len(images) - 1) // 2
    print(f"pairs of photos {num_pairs:,}; pairs that match, of any copy: {len(false):,}")
    for one, other in sorted(false):
        print(f"  {files[one].name} {files[other].name}")
    if not false:
        print(f"upper end for a pair of photos: {3 / num_pairs:.2e}")


if __name__ == "__main__":
    main()
