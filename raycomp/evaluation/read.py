"""Pictures and texts to a scorer's input: the steps of an evaluation's pass that need no model.

M pictures, T texts, H x W pixels, V values of a picture, N tokens of context.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from raycomp.config import ModelConfig
from raycomp.data.arrow import TOKENS, add_columns, hash_images, readable, to_fixed_lists
from raycomp.data.model import fetch_model
from raycomp.data.paths import ShardPath, resolve
from raycomp.data.reader import read_shard
from raycomp.evaluation.evaluation import Picture
from raycomp.models.images import ImageFault, prepare_image
from raycomp.models.spec import ScorerSpec
from raycomp.models.tokens import load_tokens
from raycomp.words import (
    CAPTION,
    EMPTY_CAPTION,
    IMAGE,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    IS_LAST,
    JSON,
    KEY,
    NO_CAPTION,
    NO_IMAGE,
    OK,
    PIXELS,
    POSITION,
    SHARD_ORDINAL,
    STATUS,
    UID,
)

_fetch = lru_cache(maxsize=2)(fetch_model)
TEXT, TEXT_EMBEDDING, BOX = "text", "text_embedding", "box"
_BOX_TYPE = pa.list_(pa.int32())
_OF_SAMPLES = (UID, KEY, CAPTION, JSON)
# Captions without text do not exclude their image.
_WITH_IMAGE = (OK, NO_CAPTION, EMPTY_CAPTION)


@dataclass(frozen=True)
class Files:
    """Image files that are read together, as a shard is."""

    ordinal: int
    pictures: tuple[Picture, ...]


def read_pictures(item: Files | ShardPath, block_rows: int) -> Iterator[pa.Table]:
    """Yield the samples of a shard, or image files as samples, with their boxes.

    A missing file gives a sample without an image. Raises OSError where the storage fails.
    """
    if isinstance(item, ShardPath):
        yield from read_shard(item, block_rows)
        return
    for start in range(0, len(item.pictures), block_rows):
        some = item.pictures[start : start + block_rows]
        images = [_read_file(picture.uri) for picture in some]
        positions = range(start, start + len(some))
        yield pa.table(
            {
                SHARD_ORDINAL: pa.array([item.ordinal] * len(some), pa.int32()),
                POSITION: pa.array(positions, pa.int32()),
                IMAGE: pa.array(images, pa.large_binary()),
                BOX: pa.array([picture.box for picture in some], _BOX_TYPE),
                **{name: pa.nulls(len(some), pa.string()) for name in _OF_SAMPLES},
                STATUS: [NO_IMAGE if image is None else OK for image in images],
                IS_LAST: [position == len(item.pictures) - 1 for position in positions],
            }
        )


def _read_file(uri: str) -> bytes | None:
    filesystem, path = resolve(uri)
    try:
        with filesystem.open_input_stream(path) as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def prepare_pixels(table: pa.Table, spec: ScorerSpec, max_pixels: int) -> pa.Table:
    """Decode image bytes to uint8 pixels and compute their SHA-256; an image's fault becomes its status.

    The SHA-256 is of the whole file, for any box.
    """
    statuses = [OK if status in _WITH_IMAGE else status for status in table[STATUS].to_pylist()]
    boxes = table[BOX].to_pylist() if BOX in table.column_names else [None] * len(table)
    pixels_MV = np.zeros((len(table), spec.image.num_values), np.uint8)
    for row, (data, box) in enumerate(zip(table[IMAGE].to_pylist(), boxes, strict=True)):
        if statuses[row] != OK:
            continue
        try:
            found = prepare_image(data, spec.image, max_pixels, box=tuple(box) if box else None)
            pixels_MV[row] = found[0].reshape(-1)
        except ImageFault as fault:
            statuses[row] = fault.status
    columns = {STATUS: pa.array(statuses, pa.string()), PIXELS: to_fixed_lists(pixels_MV)}
    return add_columns(hash_images(table).drop_columns([IMAGE]), columns)


def read_texts(item: tuple[int, Sequence[str]], block_rows: int) -> Iterator[pa.Table]:
    """Yield texts as rows, in their order."""
    ordinal, texts = item
    for start in range(0, len(texts), block_rows):
        some = texts[start : start + block_rows]
        positions = range(start, start + len(some))
        yield pa.table(
            {
                SHARD_ORDINAL: pa.array([ordinal] * len(some), pa.int32()),
                POSITION: pa.array(positions, pa.int32()),
                TEXT: pa.array(some, pa.string()),
                STATUS: [OK] * len(some),
                IS_LAST: [position == len(texts) - 1 for position in positions],
            }
        )


def tokenize(table: pa.Table, config: ModelConfig) -> pa.Table:
    """Turn texts into token ids."""
    texts = [readable(text) for text in table[TEXT].to_pylist()]
    tokens_TN = load_tokens(_fetch(config))(texts)
    return add_columns(table.drop_columns([TEXT]), {TOKENS: to_fixed_lists(tokens_TN)})


def pictures_schema(spec: ScorerSpec) -> pa.Schema:
    """Return the columns of embedded pictures: those of samples, null for image files."""
    embedding = (IMAGE_EMBEDDING, pa.list_(pa.float32(), spec.embedding_dim))
    texts = [(name, pa.string()) for name in (*_OF_SAMPLES, STATUS, IMAGE_SHA256)]
    return pa.schema([(POSITION, pa.int32()), *texts, embedding])


def texts_schema(spec: ScorerSpec) -> pa.Schema:
    """Return the columns of embedded texts."""
    return pa.schema(
        [
            (POSITION, pa.int32()),
            (STATUS, pa.string()),
            (TEXT_EMBEDDING, pa.list_(pa.float32(), spec.embedding_dim)),
        ]
    )
