"""Prepare, on CPUs: image bytes to uint8 pixels of one fixed size, captions to tokens."""

import json
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from raycomp.config import ScorerConfig
from raycomp.data.arrow import TOKENS, add_columns, hash_images, readable, to_fixed_lists, to_matrix
from raycomp.data.rows import to_json_value
from raycomp.models.images import ImageFault, prepare_image
from raycomp.models.spec import ScorerSpec
from raycomp.models.tokens import load_tokens
from raycomp.words import (
    BAD_EMBEDDING,
    CAPTION,
    IMAGE,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    JSON,
    OK,
    ORIGINAL_HEIGHT,
    ORIGINAL_WIDTH,
    PIXELS,
    STATUS,
)


def prepare(
    table: pa.Table,
    scorer: ScorerConfig,
    spec: ScorerSpec,
    max_pixels: int,
    extra_columns: tuple[str, ...] = (),
    fast_decode: bool = False,
) -> pa.Table:
    """Add pixels, tokens, image size and hash to rows of SAMPLE_SCHEMA; drop image bytes and json.

    An unusable row stays, with its status and zero pixels. Rows with stored embeddings get no pixels; their
    embeddings are scaled to length 1.
    """
    statuses = table[STATUS].to_pylist()
    images = table[IMAGE].to_pylist()
    sizes: list[tuple[int | None, int | None]] = [(None, None)] * len(images)
    if IMAGE_EMBEDDING in table.column_names:
        seen = {IMAGE_EMBEDDING: _prepare_embeddings(to_matrix(table[IMAGE_EMBEDDING]), statuses)}
    else:
        seen = {PIXELS: _prepare_images(images, statuses, sizes, spec, max_pixels, fast_decode)}
    fields = [json.loads(text) if text else {} for text in table[JSON].to_pylist()]
    sizes = [_size_before_download(f) or size for f, size in zip(fields, sizes, strict=True)]
    captions = [
        readable(caption) if status == OK else ""
        for caption, status in zip(table[CAPTION].to_pylist(), statuses, strict=True)
    ]
    columns = {
        STATUS: pa.array(statuses, pa.string()),
        IMAGE_SHA256: hash_images(table)[IMAGE_SHA256],
        ORIGINAL_WIDTH: pa.array([width for width, _ in sizes], pa.int32()),
        ORIGINAL_HEIGHT: pa.array([height for _, height in sizes], pa.int32()),
        **{name: to_fixed_lists(value_NM) for name, value_NM in seen.items()},
        TOKENS: to_fixed_lists(load_tokens(scorer)(captions)),
        **{name: pa.array([_as_text(f.get(name)) for f in fields], pa.string()) for name in extra_columns},
    }
    return add_columns(table.drop_columns([IMAGE, JSON]), columns)


def _prepare_images(
    images: list[bytes | None],
    statuses: list[str],
    sizes: list[tuple[int | None, int | None]],
    spec: ScorerSpec,
    max_pixels: int,
    fast_decode: bool,
) -> np.ndarray:
    """Return pixels [rows, values]; writes faults into ``statuses``, (width, height) into ``sizes``."""
    pixels_NM = np.zeros((len(images), spec.image.num_values), np.uint8)
    for i, data in enumerate(images):
        if data is None or statuses[i] != OK:
            continue
        try:
            pixels, sizes[i] = prepare_image(data, spec.image, max_pixels, fast_decode)
            pixels_NM[i] = pixels.reshape(-1)
        except ImageFault as fault:
            statuses[i] = fault.status
    return pixels_NM


def _prepare_embeddings(embedding_ND: np.ndarray, statuses: list[str]) -> np.ndarray:
    """Return fp32 rows of length 1; writes into ``statuses`` if a row has length 0."""
    import torch  # a process that decodes images does not need it

    from raycomp.core.alignment import has_unit_length, normalise

    unit_ND = normalise(torch.from_numpy(embedding_ND.copy()))
    for i in np.flatnonzero(~has_unit_length(unit_ND).numpy()):
        if statuses[i] == OK:
            statuses[i] = BAD_EMBEDDING
    return unit_ND.numpy()


def _size_before_download(fields: dict[str, Any]) -> tuple[int, int] | None:
    """Return the image size before a downloader resized it, if the json holds it."""
    width, height = fields.get(ORIGINAL_WIDTH), fields.get(ORIGINAL_HEIGHT)
    return (width, height) if _is_size(width) and _is_size(height) else None


def _is_size(side: Any) -> TypeGuard[int]:
    return type(side) is int and 0 < side < 2**31


def _as_text(value: Any) -> str | None:
    value = to_json_value(value)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace").decode()  # json may hold half of a surrogate pair
