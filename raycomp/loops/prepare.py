"""Prepare, on CPUs: image bytes to uint8 pixels of one fixed size, captions to tokens."""

import hashlib
import json
import time
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import ScorerConfig
from raycomp.loops.tables import TOKENS, add_columns, add_seconds, readable, to_fixed_lists
from raycomp.models.clip import ScorerSpec, load_tokenizer
from raycomp.models.images import ImageFault, prepare_image
from raycomp.schema import (
    CAPTION,
    IMAGE,
    IMAGE_SHA256,
    JSON,
    OK,
    ORIGINAL_HEIGHT,
    ORIGINAL_WIDTH,
    PIXELS,
    STATUS,
)

_tokenizer = lru_cache(maxsize=2)(load_tokenizer)


def prepare(
    table: pa.Table,
    scorer: ScorerConfig,
    spec: ScorerSpec,
    max_pixels: int,
    extra_columns: tuple[str, ...] = (),
) -> pa.Table:
    """Add pixels, tokens, image size and hash to rows of SAMPLE_SCHEMA; image bytes and json go no further.

    A row that cannot be used keeps its place, with its status and zero pixels.
    """
    started = time.perf_counter()
    statuses = table[STATUS].to_pylist()
    pixels_NM, hashes, sizes = _prepare_images(table[IMAGE].to_pylist(), statuses, spec, max_pixels)
    fields = [json.loads(text) if text else {} for text in table[JSON].to_pylist()]
    sizes = [_size_before_download(f) or size for f, size in zip(fields, sizes, strict=True)]
    captions = [
        readable(caption) if status == OK else ""
        for caption, status in zip(table[CAPTION].to_pylist(), statuses, strict=True)
    ]
    columns = {
        STATUS: pa.array(statuses, pa.string()),
        IMAGE_SHA256: pa.array(hashes, pa.string()),
        ORIGINAL_WIDTH: pa.array([width for width, _ in sizes], pa.int32()),
        ORIGINAL_HEIGHT: pa.array([height for _, height in sizes], pa.int32()),
        PIXELS: to_fixed_lists(pixels_NM),
        TOKENS: to_fixed_lists(_tokenizer(scorer)(captions).numpy().astype(np.int32)),
        **{name: pa.array([_as_text(f.get(name)) for f in fields], pa.string()) for name in extra_columns},
    }
    table = add_columns(table.drop_columns([IMAGE, JSON]), columns)
    return add_seconds(table, "decode", time.perf_counter() - started)


def _prepare_images(
    images: list[bytes | None], statuses: list[str], spec: ScorerSpec, max_pixels: int
) -> tuple[np.ndarray, list[str | None], list[tuple[int | None, int | None]]]:
    """Return pixels [rows, values], hashes and (width, height) per row; writes faults into ``statuses``."""
    pixels_NM = np.zeros((len(images), spec.image.num_values), np.uint8)
    hashes = [None if data is None else hashlib.sha256(data).hexdigest() for data in images]
    sizes: list[tuple[int | None, int | None]] = [(None, None)] * len(images)
    for i, data in enumerate(images):
        if data is None or statuses[i] != OK:
            continue
        try:
            pixels, sizes[i] = prepare_image(data, spec.image, max_pixels)
            pixels_NM[i] = pixels.reshape(-1)
        except ImageFault as fault:
            statuses[i] = fault.status
    return pixels_NM, hashes, sizes


def _size_before_download(fields: dict[str, Any]) -> tuple[int, int] | None:
    """Return the size that a downloader saw before it resized the image, if the json tells."""
    size = fields.get(ORIGINAL_WIDTH), fields.get(ORIGINAL_HEIGHT)
    return size if all(isinstance(side, int) and 0 < side < 2**31 for side in size) else None


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace").decode("utf-8")  # json may hold half of a surrogate pair
