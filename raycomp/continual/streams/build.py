"""A stream's sources and the model's embeddings to the arrays that methods train on, and these in a folder.

The folder also has the pixels and tokens of methods that train the model.

N samples, V values of a picture, T texts, L tokens of context. Pixels are memory-mapped.
"""

import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.config import ModelConfig, UserError
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Edits, Pixels, Split, Stream, Task
from raycomp.continual.streams.samples import (
    Repeat,
    StreamSamples,
    drop_shared,
    find_leaks,
    find_repeats,
    find_samples,
    list_texts,
    make_split,
    make_stream,
    number_kinds,
    parse_all,
    warn_conflicts,
    warn_lone_text,
    warn_repeat,
    warn_repeats,
)
from raycomp.continual.streams.sources import TEST, TRAIN, Member, Source, StreamSource, TaskSource
from raycomp.data.files import Folder, new_file, resolve
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import TOKENS, to_matrix
from raycomp.evaluation.choices import Picture, Pictures, Texts
from raycomp.evaluation.embed import TEXT, Files, prepare_pixels, read_pictures, tokenize
from raycomp.models.architecture import ScorerSpec, say_bad
from raycomp.models.parser import load_parser
from raycomp.run.run import Leak, check_bad_rows, check_left, warn_leak
from raycomp.words import DROP, OK, PIXELS, POSITION, STATUS

Halves = Mapping[str, StreamSamples]
"""The samples of a task, by train and test."""


@dataclass(frozen=True)
class FoundStream:
    """A stream's samples."""

    source: StreamSource
    tasks: tuple[Halves, ...]
    zero_shot: tuple[Halves, ...]
    reference_source: Source | None
    reference: StreamSamples | None
    leaks: tuple[Leak, ...] = ()
    repeats: tuple[Repeat, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Lines: see ``warn_conflicts``."""

    @property
    def halves(self) -> list[StreamSamples]:
        """Return the training and test samples."""
        return [samples for halves in (*self.tasks, *self.zero_shot) for samples in halves.values()]


def find_all_samples(
    source: StreamSource, pictures: Pictures, config: ContinualConfig, reference: Source | None = None
) -> FoundStream:
    """Return the samples of every half of every task, with the primitives of their texts.

    With ``overlap=drop`` test samples whose images a task trains on are contaminated. Raises ValueError, or
    TooMuchBadData, if too few samples of a half can be used.
    """
    halves = [find_samples(half, pictures) for half in source.halves]
    said = [
        f"{source.name}, {task.name}, {part}"
        for task in (*source.tasks, *source.zero_shot)
        for part in _name_parts(task)
    ]
    conflicts = warn_conflicts(dict(zip(said, halves, strict=True)), config.primitives)
    named = iter(parse_all(halves, config.primitives, lambda: load_parser(config.parser.name)))
    found = {
        kind: tuple({part: next(named) for part in _name_parts(task)} for task in tasks)
        for kind, tasks in (("tasks", source.tasks), ("zero_shot", source.zero_shot))
    }
    references = None if reference is None else find_samples(reference, pictures)
    everything = FoundStream(
        source, found["tasks"], found["zero_shot"], reference, references, conflicts=tuple(conflicts)
    )
    everything = _compare(everything, config.overlap)
    has_candidates = {bool(one.candidates) for samples in everything.halves for one in samples.good}
    if len(has_candidates) > 1:
        raise UserError(
            f"stream={source.name!r}: some samples have candidates; give candidates to all or to none"
        )
    for samples in [*everything.halves, *([references] if references else [])]:
        counts = Counter(samples.status_N)
        check_bad_rows(samples.said, counts, config.max_bad_fraction, "samples")
    # For a single task's test this is a warning, because the other tasks' texts are candidates, too.
    asked = [one for halves in everything.tasks for one in halves[TEST].good]
    texts = {str(one.caption) for one in asked}
    if len(texts) == 1 and not any(one.candidates for one in asked):
        raise UserError(
            f"stream={source.name!r}: all tests together have one text, {texts.pop()!r}, so every "
            f"method retrieves it; add samples with other texts"
        )
    return everything


def _compare(found: FoundStream, overlap: str) -> FoundStream:
    """Return the samples with what their halves share. Raises UserError if no test image would be left."""
    source = found.source
    sources = [task.name for task in (*source.tasks, *source.zero_shot)]
    trains = {name: halves[TRAIN] for name, halves in zip(sources, found.tasks, strict=False)}
    every = (*found.tasks, *found.zero_shot)
    tests = {name: halves[TEST] for name, halves in zip(sources, every, strict=True)}
    leaks = find_leaks(source.name, trains, tests)
    repeats = (*find_repeats(TRAIN, trains), *find_repeats(TEST, tests))
    for leak in leaks:
        check_left(leak, overlap)
    found = replace(found, leaks=tuple(leaks), repeats=repeats)
    if overlap != DROP:
        return found
    learned = list(trains.values())
    kept = [
        tuple({**halves, TEST: drop_shared(learned, halves[TEST])} for halves in some)
        for some in (found.tasks, found.zero_shot)
    ]
    return replace(found, tasks=kept[0], zero_shot=kept[1])


def _name_parts(task: TaskSource) -> tuple[str, ...]:
    return (TRAIN, TEST) if task.train is not None else (TEST,)


def list_needed(found: FoundStream) -> list[str]:
    """Return all texts to embed, each once."""
    edits = (edit for halves in found.tasks for one in halves[TEST].good for edit in one.edits)
    texts = [text for edit in edits for text in (edit.text, *edit.primitives)]
    return list(dict.fromkeys([*list_texts(found.halves), *texts]))


def check_texts(texts: Texts, model: ModelConfig) -> None:
    """Raise UserError if a text has no embedding: many samples share primitives and candidates."""
    if texts.bad:
        first = next(text for text in texts.place if text in texts.bad)
        what, to_do = (
            f"texts, the first {first!r}",
            "name other weights, or leave these texts out of the stream",
        )
        raise UserError(say_bad(model.said_weights, len(texts.bad), len(texts.place), what, to_do))


class Maker(NamedTuple):
    """Shared context for making splits."""

    found: FoundStream
    texts: Texts
    config: ContinualConfig
    spec: ScorerSpec
    folder: Folder
    with_pixels: bool


def _make_edits(samples: StreamSamples, maker: Maker) -> Edits | None:
    """Return the edits of a test's captions; None if there are none."""
    found = [(row, edit) for row, one in enumerate(samples.good) for edit in one.edits]
    if not found:
        return None
    primitives = {edit.text: edit.primitives for _, edit in found}
    place = {text: i for i, text in enumerate(primitives)}
    text_TD, no_N = maker.texts.take(list(place)), np.zeros(0, np.int64)
    split = Split(text_TD[:0], no_N, tuple(place), text_TD, tuple(primitives.values()))
    if maker.with_pixels:
        split = replace(split, token_TL=make_tokens(split.texts, maker.config.model))
    row_M, text_M = np.array([(row, place[edit.text]) for row, edit in found], np.int64).T
    return Edits(split, row_M, text_M, np.array([edit.category for _, edit in found]))


def make_arrays(maker: Maker) -> dict[str, Any]:
    """Write a stream's arrays, with pixels and tokens where methods need them; return the recorded facts:
    samples by status, what halves share, and warnings."""
    found, texts = maker.found, maker.texts
    kinds = number_kinds(found.halves)
    named = (
        ("tasks", found.source.tasks, found.tasks),
        ("zero_shot", found.source.zero_shot, found.zero_shot),
    )
    made: dict[str, list[Task]] = {"tasks": [], "zero_shot": []}
    counts = {}
    warnings = [line for leak in found.leaks for line in warn_leak(leak, maker.config.overlap)]
    warnings += [warn_repeat(found.source.name, one) for one in found.repeats]
    warnings += found.conflicts
    for kind, sources, tasks in named:
        for number, (source, halves) in enumerate(zip(sources, tasks, strict=True)):
            splits = {}
            for part, samples in halves.items():
                said = f"{found.source.name}, {source.name}, {part}"
                split = make_split(samples, texts, kinds)
                counts[said] = dict(sorted(Counter(samples.status_N).items()))
                if part == TEST:
                    warnings += [*warn_lone_text(split, said), *warn_repeats(split, said)]
                half = source.test if part == TEST else source.train
                splits[part] = _add_pixels(maker, split, samples, half, name_split(kind, number, part))
            test = splits[TEST]
            edits = _make_edits(halves[TEST], maker) if kind == "tasks" else None
            made[kind].append(Task(source.name, splits.get(TRAIN, _empty(test)), test, edits))
    if found.reference is not None:
        counts["reference"] = dict(sorted(Counter(found.reference.status_N).items()))
    stream = make_stream(found.source.name, made["tasks"], made["zero_shot"], texts)
    write_stream(replace(stream, reference=_make_reference(maker)), maker.folder)
    return {
        "samples": counts,
        "overlap": [leak.describe() for leak in found.leaks],
        "repeats": [one.describe() for one in found.repeats],
        "warnings": warnings,
    }


def _add_pixels(
    maker: Maker, split: Split, samples: StreamSamples, source: Source | None, name: str
) -> Split:
    """Write the pixels of a split where methods need them, and return it with them and its tokens."""
    if not maker.with_pixels:
        return split
    assert source is not None, "it has samples"
    path = maker.folder.at(pixels_of(name))
    pixels = load_pixels(samples, source, maker.spec, maker.config.max_pixels, path)
    return replace(split, pixels=pixels, token_TL=make_tokens(split.texts, maker.config.model))


def _make_reference(maker: Maker) -> Split | None:
    """Return zscl's reference: pictures and texts, which need not be pairs."""
    samples, source = maker.found.reference, maker.found.reference_source
    if samples is None or not maker.with_pixels:
        return None
    texts = tuple(dict.fromkeys(str(one.caption) for one in samples.good))
    none_TD = np.zeros((len(texts), maker.spec.embedding_dim), np.float32)
    own_N = np.zeros(len(samples.good), np.int64)
    image_ND = samples.image_ND[samples.is_good_N]
    split = Split(image_ND, own_N, texts, none_TD, ((),) * len(texts))
    return _add_pixels(maker, split, samples, source, REFERENCE)


def _empty(split: Split) -> Split:
    """Return the training half of a zero-shot set: empty."""
    none = Split(split.image_ND[:0], split.own_N[:0], (), split.text_TD[:0], ())
    is_asked = split.candidate_NK is not None
    return replace(none, candidate_NK=split.own_N[:0, None], kind_N=split.own_N[:0]) if is_asked else none


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
