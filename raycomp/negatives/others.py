"""The other captions of an image in other files, so that a negative does not repeat one of them.

Only images that are in more than one file are gathered: first by keys of 8 bytes, some at a time, then with
their captions.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from raycomp.data.arrow import from_rows
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_schema, write_table
from raycomp.negatives.captions import (
    MOST_OTHERS,
    OTHERS_SCHEMA,
    CaptionFile,
    name_file,
    part_encodings,
    read_texts,
)
from raycomp.run.tasks import map_files
from raycomp.words import CAPTION, IMAGE_SHA256

_KEYS_AT_ONCE = 100_000_000
"""Images whose keys are compared at a time: 0.8 GB."""
MOST_SHARED = 5_000_000
"""Images whose captions in other files are known; of more, some are drawn by their keys."""


def share_captions(sources: list[CaptionFile], num_rows: int, work: Folder) -> list[CaptionFile]:
    """Return the files with the name of a table of captions that they share images with."""
    if len(sources) < 2:
        return sources
    parts = -(-num_rows // _KEYS_AT_ONCE)
    repeated_K = np.concatenate([_find_repeated(sources, part, parts) for part in range(max(1, parts))])
    if not len(repeated_K):
        return sources
    repeated_K = np.sort(repeated_K)[:MOST_SHARED]
    uri = work.at("others.parquet")
    write_table(_gather(sources, repeated_K), uri, OTHERS_SCHEMA)
    return [replace(source, others=uri) for source in sources]


def _find_repeated(sources: Sequence[CaptionFile], part: int, parts: int) -> np.ndarray:
    """Return the keys of a part that several files have."""
    found = [keys for keys in map_files(_list_keys, sources, part, parts, label="find images") if len(keys)]
    key_K, count_K = np.unique(np.concatenate(found or [np.zeros(0, np.uint64)]), return_counts=True)
    return key_K[count_K > 1]


def _list_keys(source: CaptionFile, part: int, parts: int) -> np.ndarray:
    """Return the keys of a file's images, each once."""
    if IMAGE_SHA256 not in read_schema(source.uri).names:
        return np.zeros(0, np.uint64)
    table, _ = part_encodings(read_texts(source.uri, [IMAGE_SHA256]))
    images = table[IMAGE_SHA256].unique().drop_null()
    key_K = np.array([_to_key(image) for image in images.to_pylist()], np.uint64)
    return key_K[key_K % np.uint64(parts) == part]


def _to_key(image: str) -> int:
    return int.from_bytes(blake2b(image.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def _gather(sources: Sequence[CaptionFile], repeated_K: np.ndarray) -> pa.Table:
    """Return for each file and image the captions of the image in other files, in the order of these."""
    by_image: dict[str, list[tuple[int, list[str]]]] = defaultdict(list)
    for source, captions in zip(
        sources, map_files(_list_captions, sources, repeated_K, label="gather captions"), strict=True
    ):
        for image, texts in captions.items():
            by_image[image].append((source.ordinal, texts))
    rows = []
    for image, several in by_image.items():
        for ordinal, _ in several:
            others = [text for other, texts in several if other != ordinal for text in texts]
            if others:
                rows.append((name_file(ordinal), image, list(dict.fromkeys(others))[:MOST_OTHERS]))
    return from_rows(sorted(rows), OTHERS_SCHEMA)


def _list_captions(source: CaptionFile, repeated_K: np.ndarray) -> dict[str, list[str]]:
    """Return the captions of a file by image, of images whose keys are in ``repeated_K``, sorted."""
    if IMAGE_SHA256 not in read_schema(source.uri).names:
        return {}
    table, _ = part_encodings(read_texts(source.uri, [IMAGE_SHA256, CAPTION]))
    found: dict[str, list[str]] = defaultdict(list)
    for image, caption in zip(table[IMAGE_SHA256].to_pylist(), table[CAPTION].to_pylist(), strict=True):
        if image is None or not caption:
            continue
        key = np.uint64(_to_key(image))
        place = int(np.searchsorted(repeated_K, key))
        if place < len(repeated_K) and repeated_K[place] == key and len(found[image]) < MOST_OTHERS:
            found[image].append(caption)
    return {image: texts for image, texts in found.items() if texts}
