"""A stream's sources and the model's embeddings to the arrays that methods train on."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from raycomp.config import ModelConfig, UserError
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Edits, Split, Task
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
from raycomp.continual.streams.sources import TEST, TRAIN, Source, StreamSource, TaskSource
from raycomp.continual.streams.store import (
    REFERENCE,
    load_pixels,
    make_tokens,
    name_split,
    pixels_of,
    write_stream,
)
from raycomp.data.files import Folder
from raycomp.evaluation.evaluation import Pictures, Texts
from raycomp.models.architecture import say_bad
from raycomp.models.parser import load_parser
from raycomp.models.spec import ScorerSpec
from raycomp.run.bad_data import Leak, check_bad_rows, check_left, warn_leak
from raycomp.words import DROP

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
