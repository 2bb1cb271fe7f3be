"""Prepare, on CPUs: image bytes to uint8 pixels of one fixed size, captions to tokens."""

import hashlib
import json
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from raycomp.config import ScorerConfig
from raycomp.core.pictures import VIEW_SIDE, hash_view, measure_look
from raycomp.curation.removal import blank_removed, load_removed
from raycomp.data.arrow import TOKENS, add_columns, hash_images, readable, to_fixed_lists, to_matrix
from raycomp.data.rows import to_json_value
from raycomp.models.images import ImageFault, prepare_viewed
from raycomp.models.languages import load_languages, name_language
from raycomp.models.spec import ScorerSpec
from raycomp.models.tokens import load_tokens
from raycomp.schema import CAPTION_SCHEMA, PICTURE_SCHEMA
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

# Of a SHA-256, enough for every corpus.
_HASH_DIGITS = 32
# The values of PICTURE_SCHEMA.
Picture = tuple[float, float, float, int, str]


def prepare(
    table: pa.Table,
    scorer: ScorerConfig,
    spec: ScorerSpec,
    max_pixels: int,
    extra_columns: tuple[str, ...] = (),
    fast_decode: bool = False,
    removed: str | None = None,
) -> pa.Table:
    """Add pixels, tokens, image size and hash to rows of SAMPLE_SCHEMA; drop image bytes.

    An unusable row stays, with its status and zero pixels. Rows with stored embeddings get no pixels; their
    embeddings are scaled to length 1. Rows of the list ``removed`` lose their content.
    """
    table = blank_removed(hash_images(table), load_removed(removed))
    statuses = table[STATUS].to_pylist()
    images = table[IMAGE].to_pylist()
    sizes: list[tuple[int | None, int | None]] = [(None, None)] * len(images)
    looks: list[Picture | None] = [None] * len(images)
    if IMAGE_EMBEDDING in table.column_names:
        seen = {IMAGE_EMBEDDING: _prepare_embeddings(to_matrix(table[IMAGE_EMBEDDING]), statuses)}
    else:
        names = table[IMAGE_SHA256].to_pylist()
        seen = {PIXELS: _prepare_images(images, names, statuses, sizes, looks, spec, max_pixels, fast_decode)}
    fields = [json.loads(text) if text else {} for text in table[JSON].to_pylist()]
    sizes = [_size_before_download(f) or size for f, size in zip(fields, sizes, strict=True)]
    captions = [
        readable(caption) if status == OK else ""
        for caption, status in zip(table[CAPTION].to_pylist(), statuses, strict=True)
    ]
    columns = {
        STATUS: pa.array(statuses, pa.string()),
        ORIGINAL_WIDTH: pa.array([width for width, _ in sizes], pa.int32()),
        ORIGINAL_HEIGHT: pa.array([height for _, height in sizes], pa.int32()),
        **_describe_pictures(looks),
        **_describe_captions(captions),
        **{name: to_fixed_lists(value_NM) for name, value_NM in seen.items()},
        TOKENS: to_fixed_lists(load_tokens(scorer)(captions)),
        **{name: pa.array([_as_text(f.get(name)) for f in fields], pa.string()) for name in extra_columns},
    }
    return add_columns(table.drop_columns([IMAGE]), columns)


def load_measures() -> None:
    """Load what the columns of pictures and captions need, once in a process."""
    load_languages()
    hash_view(np.zeros((VIEW_SIDE, VIEW_SIDE, 3), np.uint8))


def _prepare_images(
    images: list[bytes | None],
    names: list[str | None],
    statuses: list[str],
    sizes: list[tuple[int | None, int | None]],
    looks: list[Picture | None],
    spec: ScorerSpec,
    max_pixels: int,
    fast_decode: bool,
) -> np.ndarray:
    """Return pixels [rows, values]; writes faults into ``statuses``, (width, height) into ``sizes``, and the
    columns of pictures into ``looks``. Images of one name, the hash of their bytes, are decoded once."""
    first: dict[str | None, int] = {}
    pixels_NM = np.zeros((len(images), spec.image.num_values), np.uint8)
    for i, data in enumerate(images):
        if data is None or statuses[i] != OK:
            continue
        same = first.setdefault(names[i], i)
        if same != i:
            pixels_NM[i], statuses[i] = pixels_NM[same], statuses[same]
            sizes[i], looks[i] = sizes[same], looks[same]
            continue
        try:
            pixels, sizes[i], view = prepare_viewed(data, spec.image, max_pixels, fast_decode)
            pixels_NM[i] = pixels.reshape(-1)
            looks[i] = _describe_picture(pixels, view)
        except ImageFault as fault:
            statuses[i] = fault.status
    return pixels_NM


def _describe_picture(pixels: np.ndarray, view: np.ndarray) -> Picture:
    """Return the values of PICTURE_SCHEMA; ``pixels`` are the model's."""
    same = hashlib.sha256(pixels.tobytes()).hexdigest()[:_HASH_DIGITS]
    return *measure_look(view, pixels), hash_view(view), same


def _describe_pictures(looks: list[Picture | None]) -> dict[str, pa.Array]:
    values = zip(*(look or [None] * len(PICTURE_SCHEMA) for look in looks), strict=True)
    return {one.name: pa.array(column, one.type) for one, column in zip(PICTURE_SCHEMA, values, strict=True)}


def _describe_captions(captions: list[str]) -> dict[str, pa.Array]:
    """Return the columns of CAPTION_SCHEMA; null for an empty text, which stands for a bad row."""
    counts = [len(caption.split()) or None for caption in captions]
    values = counts, list(map(name_language, captions))
    return {one.name: pa.array(column, one.type) for one, column in zip(CAPTION_SCHEMA, values, strict=True)}


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
