"""A stream's arrays in a folder: written once, read by every method, seed and sweep.

Pixels are memory-mapped.
"""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np

from raycomp.continual.data import Edits, Split, Stream, Task
from raycomp.continual.streams.pixels import map_pixels
from raycomp.data.folder import Folder
from raycomp.data.paths import resolve

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
                _write_edits(task.edits, folder, name_split(kind, number, _EDITS))
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
    tasks, zero_shot = (
        tuple(_read_task(folder, kind, number, name, with_pixels) for number, name in enumerate(facts[kind]))
        for kind in ("tasks", "zero_shot")
    )
    name_VD = np.load(io.BytesIO(folder.read_bytes(_NAMES)), allow_pickle=False)
    has_reference = with_pixels and folder.exists(f"{REFERENCE}.npz")
    reference = _read_split(folder, REFERENCE, with_pixels) if has_reference else None
    return Stream(facts["name"], tasks, zero_shot, tuple(facts["names"]), name_VD, reference)


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
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    folder.write_bytes(buffer.getvalue(), f"{name}.npz")
    words = {"texts": list(split.texts), "primitives": [list(names) for names in split.primitives]}
    folder.write_bytes(json.dumps(words).encode(), f"{name}.json")


def _write_edits(edits: Edits, folder: Folder, name: str) -> None:
    _write_split(edits.split, folder, name)
    buffer = io.BytesIO()
    np.savez(buffer, **{key: getattr(edits, key) for key in _OF_EDITS})
    folder.write_bytes(buffer.getvalue(), f"{name}-rows.npz")


def _read_task(folder: Folder, kind: str, number: int, name: str, with_pixels: bool) -> Task:
    train, test = (_read_split(folder, name_split(kind, number, part), with_pixels) for part in _PARTS)
    return Task(name, train, test, _read_edits(folder, name_split(kind, number, _EDITS), test))


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
