"""The way of a training run to its pairs, without a cluster, for tests."""

import io
from collections import Counter

import numpy as np
import pyarrow as pa
from PIL import Image

from raycomp.config import override_all
from raycomp.core.selection import drop_duplicates, parse_uids
from raycomp.training.config import TrainConfig
from raycomp.training.pairs import Pairs, check_pairs, find_pairs, index_shard, tally_pairs
from raycomp.words import DUPLICATE_UID


def make_image(seed: int) -> bytes:
    """Return a JPEG of 30 x 24 random pixels."""
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 30, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def make_config(**options) -> TrainConfig:
    return override_all(TrainConfig(), options)


def index_all(pairs: Pairs) -> tuple[list[pa.Table], Counter]:
    """Return what a run trains on: every shard's index without the duplicates of others, and all reasons."""
    found = [index_shard(pairs, shard.ordinal) for shard in pairs.shards]
    indices, reasons = [table for table, _ in found], sum((counts for _, counts in found), Counter())
    keep = drop_duplicates([parse_uids(table["uid"]) for table in indices])
    dropped = sum(int((~mask).sum()) for mask in keep)
    reasons.update({DUPLICATE_UID: dropped, "ok": -dropped})
    return [table.filter(pa.array(mask)) for table, mask in zip(indices, keep, strict=True)], +reasons


def tally_all(indices: list[pa.Table], pairs: Pairs | None = None) -> Counter:
    pictures = pairs.pictures if pairs else None
    return sum((tally_pairs(table, pictures)[0] for table in indices), Counter())


def check_all(config: TrainConfig) -> tuple[Pairs, list[pa.Table], Counter]:
    """Go the whole way of a run: find, index, check."""
    pairs = find_pairs(config)
    indices, reasons = index_all(pairs)
    uids = [parse_uids(table["uid"]) for table in indices]
    check_pairs(pairs, reasons, tally_all(indices, pairs), uids)
    return pairs, indices, reasons


def list_uids(indices: list[pa.Table]) -> list[str]:
    return [uid for table in indices for uid in table["uid"].to_pylist()]
