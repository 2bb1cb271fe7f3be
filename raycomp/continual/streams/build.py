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
from raycomp.continual.streams import samples as found_samples
from raycomp.continual.streams.samples import StreamSamples, find_samples, find_texts
from raycomp.continual.streams.sources import TEST, TRAIN, Member, Source, StreamSource
from raycomp.core.selection import Leak, check_left, warn_leak
from raycomp.data.files import Folder, new_file, resolve
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import TOKENS, to_matrix
from raycomp.evaluation.choices import Picture, Pictures, Texts
from raycomp.evaluation.embed import TEXT, Files, prepare_pixels, read_pictures, tokenize
from raycomp.models.architecture import ScorerSpec, say_bad
from raycomp.models.parser import load_parser
from raycomp.run.progress import check_bad_rows
from raycomp.words import DROP, OK, PIXELS, POSITION, STATUS

KINDS = ("tasks", "zero_shot")
_REFERENCE = "reference"


class Half(NamedTuple):
    """The training or the test samples of a task, or zscl's reference."""

    kind: str
    """tasks, zero_shot or reference."""
    number: int
    """Of the task among those of its kind."""
    task: str
    part: str
    """train or test."""
    source: Source
    samples: StreamSamples

    @property
    def file(self) -> str:
        """The name of its files, without extension."""
        return _REFERENCE if self.kind == _REFERENCE else name_split(self.kind, self.number, self.part)


@dataclass(frozen=True)
class FoundStream:
    """A stream's samples."""

    name: str
    halves: tuple[Half, ...]
    """Of all tasks, then of all zero-shot sets."""
    reference: Half | None
    leaks: tuple[Leak, ...]
    repeats: tuple[dict[str, Any], ...]
    conflicts: tuple[str, ...]
    """Lines: see ``warn_conflicts``."""

    def of(self, part: str, kind: str = "") -> dict[str, StreamSamples]:
        """Return the training or the test samples by task, of one kind or of all."""
        return {one.task: one.samples for one in self.halves if one.part == part and kind in ("", one.kind)}

    def say(self, half: Half) -> str:
        """Return a half's name in warnings and facts."""
        return f"{self.name}, {half.task}, {half.part}"

    def list_texts(self) -> list[str]:
        """Return all texts to embed, each once: captions, candidates, edits, and the names of primitives."""
        texts: dict[str, None] = {}
        for half in self.halves:
            for text, primitives in find_texts(half.samples).items():
                texts |= dict.fromkeys((text, *primitives))
        for samples in self.of(TEST, "tasks").values():
            for edit in (edit for one in samples.good for edit in one.edits):
                texts |= dict.fromkeys((edit.text, *edit.primitives))
        return list(texts)


def find_all_samples(
    source: StreamSource, pictures: Pictures, config: ContinualConfig, reference: Source | None = None
) -> FoundStream:
    """Return the samples of every half of every task, with the primitives of their texts.

    With ``overlap=drop`` test samples whose images a task trains on are contaminated. Raises ValueError, or
    TooMuchBadData, if too few samples of a half can be used, or no test image would be left.
    """
    halves = [
        Half(kind, number, task.name, part, half, find_samples(half, pictures))
        for kind, tasks in zip(KINDS, (source.tasks, source.zero_shot), strict=True)
        for number, task in enumerate(tasks)
        for part, half in zip((TRAIN, TEST)[-len(task.halves) :], task.halves, strict=True)
    ]
    kept = None
    if reference is not None:
        kept = Half(_REFERENCE, 0, "", "", reference, find_samples(reference, pictures))
    found = FoundStream(source.name, tuple(halves), kept, (), (), ())
    conflicts = found_samples.warn_conflicts(
        {found.say(half): half.samples for half in halves}, config.primitives
    )
    named = found_samples.name_primitives(
        [half.samples for half in halves], config.primitives, lambda: load_parser(config.parser.name)
    )
    halves = [half._replace(samples=samples) for half, samples in zip(halves, named, strict=True)]
    found = replace(found, halves=tuple(halves), conflicts=tuple(conflicts))
    trains, tests = found.of(TRAIN), found.of(TEST)
    leaks = found_samples.find_leaks(source.name, trains, tests)
    repeats = (*found_samples.find_repeats(TRAIN, trains), *found_samples.find_repeats(TEST, tests))
    for leak in leaks:
        check_left(leak, config.overlap)
    if config.overlap == DROP:
        learned = list(trains.values())
        halves = [
            half._replace(samples=found_samples.drop_shared(learned, half.samples))
            if half.part == TEST
            else half
            for half in halves
        ]
    found = replace(found, halves=tuple(halves), leaks=tuple(leaks), repeats=repeats)
    if len({bool(one.candidates) for half in halves for one in half.samples.good}) > 1:
        raise UserError(
            f"stream={source.name!r}: some samples have candidates; give candidates to all or to none"
        )
    for half in [*halves, *([kept] if kept else [])]:
        check_bad_rows(half.samples.said, Counter(half.samples.status_N), config.max_bad_fraction, "samples")
    # For a single task's test this is a warning, because the other tasks' texts are candidates, too.
    asked = [one for samples in found.of(TEST, "tasks").values() for one in samples.good]
    texts = {str(one.caption) for one in asked}
    if len(texts) == 1 and not any(one.candidates for one in asked):
        raise UserError(
            f"stream={source.name!r}: all tests together have one text, {texts.pop()!r}, so every "
            f"method retrieves it; add samples with other texts"
        )
    return found


def check_texts(texts: Texts, model: ModelConfig) -> None:
    """Raise UserError if a text has no embedding: many samples share primitives and candidates."""
    if texts.bad:
        first = next(text for text in texts.place if text in texts.bad)
        to_do = "name other weights, or leave these texts out of the stream"
        what = f"texts, the first {first!r}"
        raise UserError(say_bad(model.said_weights, len(texts.bad), len(texts.place), what, to_do))


class Maker(NamedTuple):
    """Shared context for making splits."""

    found: FoundStream
    texts: Texts
    config: ContinualConfig
    spec: ScorerSpec
    folder: Folder
    with_pixels: bool

    def make_arrays(self) -> dict[str, Any]:
        """Write a stream's arrays, with pixels and tokens where methods need them; return the recorded facts:
        samples by status, what halves share, and warnings."""
        found, kinds = self.found, found_samples.number_kinds(half.samples for half in self.found.halves)
        warnings = [line for leak in found.leaks for line in warn_leak(leak, self.config.overlap)]
        for one in found.repeats:
            part, num, of = one["half"], one["samples"], one["num_samples"]
            warnings.append(
                f"{found.name}, {one['task']}: {num:,} of {of:,} {part} samples are {part} samples of "
                f"{', '.join(one['before'])}, too ({100 * num / of:.1f} %)"
            )
        warnings += found.conflicts
        counts = {}
        made: dict[str, list[Task]] = {kind: [] for kind in KINDS}
        train: Split | None = None
        for half in found.halves:
            said, split = found.say(half), found_samples.make_split(half.samples, self.texts, kinds)
            counts[said] = dict(sorted(Counter(half.samples.status_N).items()))
            split = self._add_pixels(split, half)
            if half.part == TRAIN:
                train = split
                continue
            warnings += found_samples.warn_texts(split, said)
            if train is None:  # of a zero-shot set it is empty
                train = Split(split.image_ND[:0], split.own_N[:0], (), split.text_TD[:0], ())
                if split.candidate_NK is not None:
                    train = replace(train, candidate_NK=split.own_N[:0, None], kind_N=split.own_N[:0])
            edits = self._make_edits(half.samples) if half.kind == "tasks" else None
            made[half.kind].append(Task(half.task, train, split, edits))
            train = None
        reference = None
        if found.reference is not None:
            counts[_REFERENCE] = dict(sorted(Counter(found.reference.samples.status_N).items()))
            reference = self._make_reference(found.reference) if self.with_pixels else None
        tasks = [*made["tasks"], *made["zero_shot"]]
        splits = [split for task in tasks for split in (task.train, task.test)]
        splits += [task.edits.split for task in tasks if task.edits is not None]
        names = sorted({name for split in splits for some in split.primitives for name in some})
        name_VD = self.texts.take(names)
        kinds_of_task = tuple(made["tasks"]), tuple(made["zero_shot"])
        write_stream(Stream(found.name, *kinds_of_task, tuple(names), name_VD, reference), self.folder)
        return {
            "samples": counts,
            "overlap": [leak.describe() for leak in found.leaks],
            "repeats": list(found.repeats),
            "warnings": warnings,
        }

    def _make_edits(self, samples: StreamSamples) -> Edits | None:
        """Return the edits of a test's captions; None if there are none."""
        found = [(row, edit) for row, one in enumerate(samples.good) for edit in one.edits]
        if not found:
            return None
        primitives = {edit.text: edit.primitives for _, edit in found}
        place = {text: i for i, text in enumerate(primitives)}
        text_TD, no_N = self.texts.take(list(place)), np.zeros(0, np.int64)
        split = Split(text_TD[:0], no_N, tuple(place), text_TD, tuple(primitives.values()))
        if self.with_pixels:
            split = replace(split, token_TL=make_tokens(split.texts, self.config.model))
        row_M, text_M = np.array([(row, place[edit.text]) for row, edit in found], np.int64).T
        return Edits(split, row_M, text_M, np.array([edit.category for _, edit in found]))

    def _add_pixels(self, split: Split, half: Half) -> Split:
        """Write the pixels of a split where methods need them, and return it with them and its tokens."""
        if not self.with_pixels:
            return split
        path = self.folder.at(pixels_of(half.file))
        pixels = load_pixels(half.samples, half.source, self.spec, self.config.max_pixels, path)
        return replace(split, pixels=pixels, token_TL=make_tokens(split.texts, self.config.model))

    def _make_reference(self, half: Half) -> Split:
        """Return zscl's reference: pictures and texts, which need not be pairs."""
        samples = half.samples
        texts = tuple(dict.fromkeys(str(one.caption) for one in samples.good))
        none_TD = np.zeros((len(texts), self.spec.embedding_dim), np.float32)
        own_N = np.zeros(len(samples.good), np.int64)
        image_ND = samples.image_ND[samples.is_good_N]
        return self._add_pixels(Split(image_ND, own_N, texts, none_TD, ((),) * len(texts)), half)


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
    items: list[tuple[Files | ShardPath, Mapping[int, Member | Picture]]] = []
    if files:
        items.append((Files(0, files), dict(enumerate(files))))
    places: dict[str, dict[int, Member | Picture]] = defaultdict(dict)
    for one in wanted:
        if isinstance(one, Member):
            places[one.uri][one.position] = one
    items += [(shard, places.pop(shard.place)) for shard in source.shards if shard.place in places]
    for item, own in items:
        for table in read_pictures(item, _ROWS):
            chosen = [position in own for position in table[POSITION].to_pylist()]
            if any(chosen):
                table = prepare_pixels(table.filter(pa.array(chosen)), spec, max_pixels)
                rows = zip(table[POSITION].to_pylist(), table[STATUS].to_pylist(), strict=True)
                for (position, status), pixel_V in zip(rows, to_matrix(table[PIXELS]), strict=True):
                    if status == OK:
                        yield own[position], pixel_V


def make_tokens(texts: Sequence[str], config: ModelConfig) -> np.ndarray:
    """Return the tokens of texts, as in the pass that embeds texts, int32 (T, L)."""
    return to_matrix(tokenize(pa.table({TEXT: pa.array(texts, pa.string())}), config)[TOKENS])


_STREAM, _NAMES = "stream.json", "names.npy"
_ARRAYS = ("image_ND", "own_N", "text_TD", "candidate_NK", "kind_N", "token_TL")
_PICTURE = "picture_N"
"""The row of each sample in its split's file of pixels."""
_EDITS, _OF_EDITS = "edits", ("row_M", "text_M", "category_M")


def write_stream(stream: Stream, folder: Folder) -> None:
    """Write a stream; where a method needs pixels, they already exist, in the file named by ``pixels_of``."""
    for kind, some in (("tasks", stream.tasks), ("zero_shot", stream.zero_shot)):
        for number, task in enumerate(some):
            for part in (TRAIN, TEST):
                _write_split(getattr(task, part), folder, name_split(kind, number, part))
            if task.edits is not None:
                name = name_split(kind, number, _EDITS)
                _write_split(task.edits.split, folder, name)
                rows = {key: getattr(task.edits, key) for key in _OF_EDITS}
                _write_arrays(folder, f"{name}-rows.npz", rows)
    if stream.reference is not None:
        _write_split(stream.reference, folder, _REFERENCE)
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
            parts = (
                _read_split(folder, name_split(kind, number, part), with_pixels) for part in (TRAIN, TEST)
            )
            train, test = parts
            tasks.append(Task(name, train, test, _read_edits(folder, name_split(kind, number, _EDITS), test)))
    name_VD = np.load(io.BytesIO(folder.read_bytes(_NAMES)), allow_pickle=False)
    has_reference = with_pixels and folder.exists(f"{_REFERENCE}.npz")
    reference = _read_split(folder, _REFERENCE, with_pixels) if has_reference else None
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
