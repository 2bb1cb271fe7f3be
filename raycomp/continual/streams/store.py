"""A stream's arrays in a folder, with the pixels and tokens of methods that train the model.

N samples, V values of a picture, T texts, L tokens of context. Pixels are memory-mapped.
"""

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import ModelConfig, UserError
from raycomp.continual.data import Edits, Pixels, Split, Stream, Task
from raycomp.continual.streams.samples import StreamSamples
from raycomp.continual.streams.sources import Member, Source
from raycomp.data.files import Folder, new_file
from raycomp.data.parquet import TOKENS, to_matrix
from raycomp.data.paths import ShardPath, resolve
from raycomp.evaluation.embed_all import TEXT, Files, prepare_pixels, read_pictures, tokenize
from raycomp.evaluation.evaluation import Picture
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


_STREAM, _NAMES, REFERENCE = "stream.json", "names.npy", "reference"
_ARRAYS = ("image_ND", "own_N", "text_TD", "candidate_NK", "kind_N", "token_TL")
_PICTURE = "picture_N"
"""The row of each sample in its split's file of pixels."""
_PARTS = ("train", "test")
_EDITS, _OF_EDITS = "edits", ("row_M", "text_M", "category_M")


def write_stream(stream: Stream, folder: Folder) -> None:
    """Write a stream; where a method needs pixels, they already exist, in the file named by ``pixels_of``."""
    for kind, some in (("tasks", stream.tasks), ("zero_shot", stream.zero_shot)):
        for number, task in enumerate(some):
            for part in _PARTS:
                _write_split(getattr(task, part), folder, name_split(kind, number, part))
            if task.edits is not None:
                name = name_split(kind, number, _EDITS)
                _write_split(task.edits.split, folder, name)
                rows = {key: getattr(task.edits, key) for key in _OF_EDITS}
                _write_arrays(folder, f"{name}-rows.npz", rows)
    if stream.reference is not None:
        _write_split(stream.reference, folder, REFERENCE)
    buffer = io.BytesIO()
    np.save(buffer, stream.name_VD)
    folder.write_bytes(buffer.getvalue(), _NAMES)
    facts = {
        "name": stream.name,
        "tasks": [task.name for task in stream.tasks],
        "zero_shot": [task.name for task in stream.zero_shot],
        "names": list(stream.names),
    }
    folder.write_json(facts, _STREAM)


def read_stream(folder: Folder, with_pixels: bool) -> Stream:
    """Return the stream in a folder."""
    facts = folder.read_json(_STREAM)
    found: dict[str, list[Task]] = {"tasks": [], "zero_shot": []}
    for kind, tasks in found.items():
        for number, name in enumerate(facts[kind]):
            parts = (_read_split(folder, name_split(kind, number, part), with_pixels) for part in _PARTS)
            train, test = parts
            tasks.append(Task(name, train, test, _read_edits(folder, name_split(kind, number, _EDITS), test)))
    name_VD = np.load(io.BytesIO(folder.read_bytes(_NAMES)), allow_pickle=False)
    has_reference = with_pixels and folder.exists(f"{REFERENCE}.npz")
    reference = _read_split(folder, REFERENCE, with_pixels) if has_reference else None
    kinds = tuple(found["tasks"]), tuple(found["zero_shot"])
    return Stream(facts["name"], *kinds, tuple(facts["names"]), name_VD, reference)


def count_tasks(folder: Folder) -> int:
    """Return the number of tasks of the stream in a folder."""
    return len(folder.read_json(_STREAM)["tasks"])


def name_split(kind: str, number: int, part: str) -> str:
    """Return the name of a split; ``kind``: tasks or zero_shot."""
    return f"{kind}-{number}-{part}"


def pixels_of(split: str) -> str:
    """Return the name of the file of a split's pixels."""
    return f"{split}.pixels.npy"


def _write_split(split: Split, folder: Folder, name: str) -> None:
    arrays = {key: getattr(split, key) for key in _ARRAYS if getattr(split, key) is not None}
    if split.pixels is not None:
        arrays[_PICTURE] = split.pixels.row_N
    _write_arrays(folder, f"{name}.npz", arrays)
    words = {"texts": list(split.texts), "primitives": [list(names) for names in split.primitives]}
    folder.write_bytes(json.dumps(words).encode(), f"{name}.json")


def _write_arrays(folder: Folder, file: str, arrays: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    folder.write_bytes(buffer.getvalue(), file)


def _read_edits(folder: Folder, name: str, test: Split) -> Edits | None:
    if not folder.exists(f"{name}-rows.npz"):
        return None
    split = _read_split(folder, name, with_pixels=False)
    if test.pixels is not None:  # of no samples there are none
        split = replace(split, pixels=replace(test.pixels, file_N=split.own_N, row_N=split.own_N))
    with np.load(io.BytesIO(folder.read_bytes(f"{name}-rows.npz")), allow_pickle=False) as found:
        return Edits(split, *(found[key] for key in _OF_EDITS))


def _read_split(folder: Folder, name: str, with_pixels: bool) -> Split:
    words = folder.read_json(f"{name}.json")
    with np.load(io.BytesIO(folder.read_bytes(f"{name}.npz")), allow_pickle=False) as found:
        arrays: dict[str, Any] = {key: found[key] for key in _ARRAYS if key in found}
        picture_N = found.get(_PICTURE)
    if with_pixels and picture_N is not None:
        arrays["pixels"] = map_pixels(resolve(folder.at(pixels_of(name)))[1], picture_N)
    primitives = tuple(tuple(names) for names in words["primitives"])
    return Split(texts=tuple(words["texts"]), primitives=primitives, **arrays)
