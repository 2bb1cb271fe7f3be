"""Streams read without a model: random embeddings of whatever their sources hold."""

import hashlib
from collections.abc import Collection

import numpy as np
import pyarrow as pa

from raycomp.continual.streams.samples import StreamSamples, list_texts
from raycomp.continual.streams.sources import StreamSource
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import to_fixed_lists
from raycomp.evaluation.choices import Picture, Pictures, Texts
from raycomp.evaluation.embed import Files, read_pictures
from raycomp.words import EMPTY_CAPTION, IMAGE_EMBEDDING, IMAGE_SHA256, NO_CAPTION, OK, STATUS
from tests.evaluation.embedded import draw, key_files

DIM = 8


def see(stream: StreamSource, bad: Collection[str] = ()) -> Pictures:
    """Return the pictures of a stream as the pass leaves them; files that end so are corrupt."""
    rng = np.random.default_rng(0)
    files = list(dict.fromkeys(stream.pictures))
    statuses = ["corrupt_image" if _ends(one, bad) else _read_status(one) for one in files]
    is_ok_M = np.array([status == OK for status in statuses], bool)
    image_MD = np.float32(draw(rng, len(files), DIM) * is_ok_M[:, None])
    shards = {shard.uri: see_shard(shard, rng) for shard in stream.shards}
    keys = key_files(files, statuses)
    return Pictures({one: i for i, one in enumerate(files)}, statuses, image_MD, shards, keys)


def _ends(picture: Picture, names: Collection[str]) -> bool:
    return any(picture.uri.endswith(name) for name in names)


def _read_status(picture: Picture) -> str:
    return pa.concat_tables(read_pictures(Files(0, (picture,)), 1))[STATUS][0].as_py()


def see_shard(shard: ShardPath, rng: np.random.Generator) -> pa.Table:
    """Return a shard's rows; what captions lack does not keep an image from being seen."""
    table = pa.concat_tables(read_pictures(shard, 64))
    images = table["image"].to_pylist()
    hashes = [None if image is None else hashlib.sha256(image).hexdigest() for image in images]
    table = table.drop_columns(["image"]).append_column(IMAGE_SHA256, pa.array(hashes, pa.string()))
    seen = [OK if one in (NO_CAPTION, EMPTY_CAPTION) else one for one in table[STATUS].to_pylist()]
    image_MD = draw(rng, len(table), DIM) * np.array([[status == OK] for status in seen])
    table = table.set_column(table.schema.get_field_index(STATUS), STATUS, pa.array(seen))
    return table.append_column(IMAGE_EMBEDDING, to_fixed_lists(np.float32(image_MD)))


def invent_texts(samples: list[StreamSamples]) -> Texts:
    """Return random embeddings of all texts of a stream."""
    texts = list_texts(samples)
    return Texts({text: i for i, text in enumerate(texts)}, draw(np.random.default_rng(1), len(texts), DIM))
