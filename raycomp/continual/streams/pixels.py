"""Inputs of methods that train the model: the pictures of a split, in a memory-mapped file, and its tokens.

N samples, V values of a picture, T texts, L tokens of context.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from raycomp.config import ModelConfig, UserError
from raycomp.continual.data import Pixels
from raycomp.continual.streams.samples import StreamSamples
from raycomp.continual.streams.sources import Member, Source
from raycomp.data.arrow import TOKENS, to_matrix
from raycomp.data.files import new_file
from raycomp.data.paths import ShardPath
from raycomp.evaluation.evaluation import Picture
from raycomp.evaluation.read import TEXT, Files, prepare_pixels, read_pictures, tokenize
from raycomp.models.spec import ScorerSpec
from raycomp.words import OK, PIXELS, POSITION, STATUS

# Number of pictures in memory at a time.
_ROWS = 64


def load_pixels(
    samples: StreamSamples, source: Source, spec: ScorerSpec, max_pixels: int, path: str
) -> Pixels:
    """Write the pictures of the good samples to a .npy file, each once, and return them, memory-mapped, in
    the order of ``make_split``.

    They are as preprocessed for the model; the file is written atomically. Raises UserError if a picture has
    changed since it was embedded.
    """
    places: dict[Member | Picture, int] = {}
    for one in samples.good:
        assert one.picture is not None, "it has an embedding"
        places.setdefault(one.picture, len(places))
    header = {"descr": "|u1", "fortran_order": False}
    header |= {"shape": (len(places), spec.image.height, spec.image.width, 3)}
    missing = set(places)
    with new_file(path) as file:
        # Written, not mapped: a full disk then raises an error instead of a signal.
        np.lib.format.write_array_header_1_0(file, header)
        start = file.tell()
        for picture, pixel_V in _read_pixels(list(places), source, spec, max_pixels):
            missing.remove(picture)
            file.seek(start + places[picture] * spec.image.num_values)
            file.write(pixel_V.tobytes())
        if missing:
            first = min(missing, key=lambda one: places[one])
            raise UserError(f"{samples.said}: {first.uri} has changed while it was in use")
    return map_pixels(path, np.array([places[one.picture] for one in samples.good if one.picture], np.int64))


def map_pixels(path: str, row_N: np.ndarray) -> Pixels:
    """Return the pictures of a file written by ``load_pixels``, by the row of each sample."""
    return Pixels((np.load(path, mmap_mode="r", allow_pickle=False),), np.zeros_like(row_N), row_N)


def _read_pixels(
    wanted: Sequence[Member | Picture], source: Source, spec: ScorerSpec, max_pixels: int
) -> Iterator[tuple[Member | Picture, np.ndarray]]:
    """Yield the readable pictures, in the order of reading, with their pixels (V,)."""
    files = tuple(one for one in wanted if isinstance(one, Picture))
    places: dict[str, dict[int, Member | Picture]] = defaultdict(dict)
    for one in wanted:
        if isinstance(one, Member):
            places[one.uri][one.position] = one
    if files:
        yield from _prepare(Files(0, files), dict(enumerate(files)), spec, max_pixels)
    for shard in source.shards:
        if shard.place in places:
            yield from _prepare(shard, places.pop(shard.place), spec, max_pixels)


def _prepare(
    item: Files | ShardPath, wanted: Mapping[int, Member | Picture], spec: ScorerSpec, max_pixels: int
) -> Iterator[tuple[Member | Picture, np.ndarray]]:
    """Yield the wanted positions of one item."""
    for table in read_pictures(item, _ROWS):
        chosen = [position in wanted for position in table[POSITION].to_pylist()]
        if not any(chosen):
            continue
        table = prepare_pixels(table.filter(pa.array(chosen)), spec, max_pixels)
        pixel_MV = to_matrix(table[PIXELS])
        for row, (position, status) in enumerate(
            zip(table[POSITION].to_pylist(), table[STATUS].to_pylist(), strict=True)
        ):
            if status == OK:
                yield wanted[position], pixel_MV[row]


def make_tokens(texts: Sequence[str], config: ModelConfig) -> np.ndarray:
    """Return the tokens of texts, as in the pass that embeds texts, int32 (T, L)."""
    return to_matrix(tokenize(pa.table({TEXT: pa.array(texts, pa.string())}), config)[TOKENS])
