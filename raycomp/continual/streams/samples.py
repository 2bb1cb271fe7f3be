"""A source's samples with status and primitives, as arrays; overlap between the halves of tasks.

N samples of a half, M pictures, T texts, V names of primitives, K candidates, D dims.

The folder of a stream's arrays and its model, and the input of the process that executes a run."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from raycomp.config import ModelConfig, UserError, to_dict
from raycomp.config.change import call_own, is_own
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Choice, Split, Stream, StreamRun, Task, name_stream
from raycomp.continual.layouts.row import Edit
from raycomp.continual.method import MadeStream, find_maker, find_variant
from raycomp.continual.streams.sources import Member, Source, StreamSample
from raycomp.core.near import (
    NO_KEY,
    Known,
    count_shared,
    find_shared,
    join_keys,
    key_texts,
    merge_keys,
    merge_known,
)
from raycomp.core.selection import KEY
from raycomp.data.files import Folder
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import to_matrix
from raycomp.data.runs import TIMES, digest, find_model
from raycomp.data.samples import parse_object
from raycomp.evaluation.benchmarks.choice import is_text
from raycomp.evaluation.choices import Picture, Pictures, Texts, key_pictures
from raycomp.evaluation.retrieval import find_captions
from raycomp.language.concepts import find_primitives, parse_concepts
from raycomp.models.parser import Parser, load_lexicon
from raycomp.run.run import Leak
from raycomp.words import (
    BAD_FIELD,
    CAPTION,
    CONTAMINATED,
    EMPTY_CAPTION,
    IMAGE_EMBEDDING,
    JSON,
    NO_CAPTION,
    NO_IMAGE,
    NO_PRIMITIVE,
    OK,
    STATUS,
)

GOLD, PARSED = "gold", "parsed"
Primitives = Mapping[str, tuple[str, ...]]
"""Primitives found by the parser, by text."""
_Row = tuple[StreamSample, str, np.ndarray, bytes]
"""A sample, its status, its picture's embedding (D,) and its key."""
_OF_ONE_CAPTION = {"primitives", "candidates", "edits"}
"""Fields of a json that can be true of one caption alone."""


@dataclass(frozen=True)
class StreamSamples:
    """All samples of a source, good or bad."""

    said: str
    """The source, as named in errors."""
    samples: tuple[StreamSample, ...]
    status_N: tuple[str, ...]
    """ok, or the reason why a sample is left out; one row for a broken shard."""
    image_ND: np.ndarray
    """fp32, of length 1; 0 if there is no picture."""
    key_N: np.ndarray
    """Keys of the pictures: see ``core.leaks``."""

    @property
    def good(self) -> list[StreamSample]:
        """Return those whose status is ok."""
        return [one for one, status in zip(self.samples, self.status_N, strict=True) if status == OK]

    @property
    def is_good_N(self) -> np.ndarray:
        return np.array([status == OK for status in self.status_N], bool)


def find_samples(source: Source, pictures: Pictures) -> StreamSamples:
    """Return all samples of a source with the embeddings of their pictures.

    A shard's json may have ``primitives``, ``candidates``, ``candidate_primitives``, ``kind`` and ``edits``,
    and more captions than the txt. Primitives are those that a source names: see ``name_primitives``.
    """
    rows = [row for shard in source.shards for row in _read_shard(shard, pictures, source.is_test)]
    blank_D = np.zeros(pictures.image_MD.shape[1], np.float32)
    for sample in source.samples:
        if isinstance(sample.picture, Picture):
            place = pictures.place[sample.picture]
            rows.append((sample, pictures.status_M[place], pictures.image_MD[place], pictures.key_M[place]))
        else:
            rows.append((sample, NO_IMAGE, blank_D, NO_KEY))
    return StreamSamples(
        source.said,
        tuple(sample for sample, *_ in rows),
        tuple(_judge(sample, status) for sample, status, *_ in rows),
        np.stack([image_D for _, _, image_D, _ in rows]) if rows else pictures.image_MD[:0],
        np.array([key for *_, key in rows], KEY),
    )


def _read_shard(shard: ShardPath, pictures: Pictures, is_test: bool) -> Iterator[_Row]:
    table = pictures.shards[shard.place]
    columns = (table[name].to_pylist() for name in (CAPTION, JSON, STATUS))
    image_MD, key_M = to_matrix(table[IMAGE_EMBEDDING]), key_pictures(table)
    for place, (caption, text, status) in enumerate(zip(*columns, strict=True)):
        fields = parse_object(text)[1] or {}
        captions: Sequence[str | None] = find_captions(caption, text, shard.columns) or (caption,)
        is_of_one = is_test or not _OF_ONE_CAPTION.isdisjoint(fields)
        for one in captions[:1] if is_of_one else captions:
            plain = StreamSample(Member(shard.place, place), one)
            sample = _read_fields(plain, fields)
            fault = BAD_FIELD if sample is None and status == OK else status
            yield sample or plain, fault, image_MD[place], key_M[place]


def _read_fields(sample: StreamSample, fields: Mapping[str, Any]) -> StreamSample | None:
    """Return the sample with the fields of its json; none if one of them is not valid."""
    named, offered, behind, kind, edits = (
        fields.get(name) for name in ("primitives", "candidates", "candidate_primitives", "kind", "edits")
    )
    is_sound = (
        (named is None or _are_texts(named))
        and (offered is None or _are_texts(offered))
        and (behind is None or (isinstance(behind, list) and all(map(_are_texts, behind))))
        and (behind is None or len(behind) == len(offered or ()))
        and (kind is None or isinstance(kind, str))
        and (edits is None or (isinstance(edits, list) and all(map(_is_edit, edits))))
    )
    if not is_sound:
        return None
    return sample._replace(
        primitives=_tidy(named) or None,
        candidates=_tidy(offered),
        candidate_primitives=None if behind is None else tuple(map(_tidy, behind)),
        kind=kind or "",
        edits=tuple(Edit(**{**one, "primitives": _tidy(one["primitives"])}) for one in edits or ()),
    )


def _is_edit(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == set(Edit._fields)
        and is_text(value["text"])
        and is_text(value["category"])
        and _are_texts(value["primitives"])
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _tidy(texts: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(text.strip() for text in texts or ())


def _judge(sample: StreamSample, status: str) -> str:
    """Return the first fault of a sample: of its picture, its caption, its candidates."""
    if status != OK:
        return status
    if sample.caption is None:
        return NO_CAPTION
    if not sample.caption.strip():
        return EMPTY_CAPTION
    offered = sample.candidates
    fits = not offered or (sample.caption in offered and 1 < len(offered) == len(set(offered)))
    fits &= all(one.text != sample.caption and one.text.strip() and one.primitives for one in sample.edits)
    return OK if fits else BAD_FIELD


def parse_primitives(texts: Sequence[str], parser: Parser) -> list[tuple[str, ...]]:
    """Return the primitives of every text as phrases, none for a text that names no object."""
    lexicon = load_lexicon()
    parsed = zip(texts, parser.tokens(texts), strict=True)
    return [find_primitives(parse_concepts(text, tokens, lexicon, parser.labels)) for text, tokens in parsed]


def list_unparsed(samples: StreamSamples, how: str) -> list[str]:
    """Return the texts of good samples, each once, whose primitives only the parser can find.

    ``how``: ``config.primitives``, gold or parsed.
    """
    known = _list_known(samples, how)
    texts = (text for one in samples.good for text in _list_texts(one))
    return [text for text in dict.fromkeys(texts) if text not in known]


def name_primitives(samples: StreamSamples, how: str, parsed: Primitives) -> StreamSamples:
    """Return the samples with primitives of all texts, and those without any marked no_primitive.

    ``parsed`` has those of ``list_unparsed``. If samples name different primitives of one text, the first
    one's are used: a text has one composition.
    """
    known = {**parsed, **_list_known(samples, how)}
    found, statuses = [], []
    for sample, status in zip(samples.samples, samples.status_N, strict=True):
        if status == OK:
            first, *behind = (known[text] for text in _list_texts(sample))
            sample = sample._replace(primitives=first, candidate_primitives=tuple(behind))
            status = OK if all((first, *behind)) else NO_PRIMITIVE
        found.append(sample)
        statuses.append(status)
    return replace(samples, samples=tuple(found), status_N=tuple(statuses))


def _list_texts(sample: StreamSample) -> tuple[str, ...]:
    """Return the caption and the candidates of a good sample."""
    return str(sample.caption), *sample.candidates


def _list_known(samples: StreamSamples, how: str) -> dict[str, tuple[str, ...]]:
    """Return the primitives that the samples name, by text, each text once."""
    known: dict[str, tuple[str, ...]] = {}
    for text, named in _list_named(samples, how):
        known.setdefault(text, named)
    return known


def _list_named(samples: StreamSamples, how: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield every text for which a good sample names primitives, with them, each once."""
    for one in samples.good if how == GOLD else ():
        behind = zip(one.candidates, one.candidate_primitives or (), strict=False)
        for text, named in ((str(one.caption), one.primitives), *behind):
            if named:
                yield text, tuple(dict.fromkeys(named))


def warn_conflicts(halves: Mapping[str, StreamSamples], how: str) -> list[str]:
    """Return a warning for each half, by its name, whose samples name different primitives of one text, and
    for each half that differs from an earlier one. The order of primitives does not matter."""
    lines, before = [], dict[str, tuple[str, frozenset[str]]]()
    for said, samples in halves.items():
        first: dict[str, frozenset[str]] = {}
        own, others = dict[str, None](), dict[str, None]()
        for text, named in _list_named(samples, how):
            if first.setdefault(text, frozenset(named)) != frozenset(named):
                own[text] = None
        for text, some in first.items():
            if before.setdefault(text, (said, some))[1] != some:
                others[text] = None
        if own:
            lines.append(
                f"{said}: samples name different primitives for {len(own):,} texts, such as "
                f"{next(iter(own))!r}; each text keeps the primitives of its first sample"
            )
        if others:
            text = next(iter(others))
            lines.append(
                f"{said}: names other primitives for {len(others):,} texts than earlier halves, such as "
                f"{text!r} of {before[text][0]}; joined halves keep those of the earlier half"
            )
    return lines


def parse_all(samples: Sequence[StreamSamples], how: str, load: Callable[[], Parser]) -> list[StreamSamples]:
    """Return samples with the primitives of their texts, each text parsed once; the parser is not loaded if
    no text needs it."""
    texts = list(dict.fromkeys(text for some in samples for text in list_unparsed(some, how)))
    parsed = dict(zip(texts, parse_primitives(texts, load()), strict=True)) if texts else {}
    return [name_primitives(some, how, parsed) for some in samples]


Named = Mapping[str, StreamSamples]
"""The train or the test halves of tasks, by their names."""


class Repeat(NamedTuple):
    """Samples of a half, image and text, that earlier tasks have in the same half."""

    task: str
    before: tuple[str, ...]
    half: str
    num_samples: int
    samples: int

    def describe(self) -> dict[str, Any]:
        """Return the contents for run.json."""
        return {**self._asdict(), "before": list(self.before)}


def find_leaks(stream: str, trains: Named, tests: Named) -> list[Leak]:
    """Return, for every test, its overlap with the training halves of all tasks.

    A task's own training half counts like those of others: after all tasks the model has trained on all of
    them.
    """
    known = {}
    for task, samples in trains.items():
        image_N, text_N = key_samples(samples)
        known[task] = Known(merge_keys([image_N]), merge_keys([text_N]))
    everything = merge_known(list(known.values()))
    leaks = []
    for task, samples in tests.items():
        image_N, text_N = key_samples(samples)
        counts = {name: int(find_shared(one.image_K, image_N).sum()) for name, one in known.items()}
        own = {name: count for name, count in counts.items() if count}
        shared = [*own] if len(own) == 1 else [f"{name} ({count:,})" for name, count in own.items()]
        train = f"the training images of {', '.join(shared) or 'all tasks'}"
        leaks.append(Leak(f"{stream}, {task}", train, count_shared(everything, image_N, text_N)))
    return leaks


def key_samples(samples: StreamSamples) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of the good samples' images and of their captions, (N,) each."""
    return samples.key_N[samples.is_good_N], key_texts([one.caption for one in samples.good])


def drop_shared(trains: Sequence[StreamSamples], test: StreamSamples) -> StreamSamples:
    """Return a test whose good samples are contaminated if a training half has their image."""
    known_K = merge_keys(one.key_N[one.is_good_N] for one in trains)
    is_shared_N = find_shared(known_K, test.key_N)
    statuses = np.where(is_shared_N & test.is_good_N, CONTAMINATED, np.array(test.status_N, object))
    return replace(test, status_N=tuple(statuses.tolist()))


def find_repeats(half: str, tasks: Named) -> list[Repeat]:
    """Return, for every task, how many samples of earlier tasks it repeats: two tasks on one data set repeat
    samples.

    An image with another text is another sample, because tasks may ask different questions of one image.
    """
    pairs = {name: join_keys(*key_samples(samples)) for name, samples in tasks.items()}
    before: dict[str, np.ndarray] = {}
    repeats = []
    for name, pair_N in pairs.items():
        found = {other: find_shared(known, pair_N) for other, known in before.items()}
        own = tuple(other for other, is_shared_N in found.items() if is_shared_N.any())
        if own:
            num = int(np.logical_or.reduce([found[other] for other in own]).sum())
            repeats.append(Repeat(name, own, half, len(pair_N), num))
        before[name] = merge_keys([pair_N])
    return repeats


def warn_repeat(stream: str, repeat: Repeat) -> str:
    """Return a line."""
    share = 100 * repeat.samples / repeat.num_samples
    counts = f"{repeat.samples:,} of {repeat.num_samples:,} {repeat.half} samples"
    others = ", ".join(repeat.before)
    return f"{stream}, {repeat.task}: {counts} are {repeat.half} samples of {others}, too ({share:.1f} %)"


def list_texts(samples: Iterable[StreamSamples]) -> list[str]:
    """Return all texts to embed, each once: captions, candidates and the names of primitives."""
    texts: dict[str, None] = {}
    for some in samples:
        for text, primitives in _find_texts(some).items():
            texts |= dict.fromkeys((text, *primitives))
    return list(texts)


def _find_texts(samples: StreamSamples) -> dict[str, tuple[str, ...]]:
    """Return the texts of good samples in order, each once, with its primitives."""
    texts: dict[str, tuple[str, ...]] = {}
    for one in samples.good:
        assert one.primitives and one.caption is not None, "primitives are named first"
        texts.setdefault(one.caption, one.primitives)
        for text, primitives in zip(one.candidates, one.candidate_primitives or (), strict=True):
            texts.setdefault(text, primitives)
    return texts


def number_kinds(samples: Iterable[StreamSamples]) -> dict[str, int]:
    """Return an integer for every kind of question of a stream, from 0."""
    return {kind: i for i, kind in enumerate(sorted({one.kind for some in samples for one in some.good}))}


def make_split(samples: StreamSamples, texts: Texts, kinds: Mapping[str, int]) -> Split:
    """Return the good samples as arrays. Raises ValueError if some have candidates and others none.

    ``kinds`` are ``number_kinds`` of the whole stream. Pixels and tokens are left out: see ``pixels``.
    """
    good, found = samples.good, _find_texts(samples)
    place = {text: i for i, text in enumerate(found)}
    num_asked = sum(bool(one.candidates) for one in good)
    if num_asked not in (0, len(good)):
        raise UserError(
            f"{samples.said}: {num_asked:,} of {len(good):,} samples have candidates; "
            "give candidates to all or to none"
        )
    asked: dict[str, Any] = {}
    if num_asked:
        candidate_NK = np.full((len(good), max(len(one.candidates) for one in good)), -1, np.int64)
        for i, one in enumerate(good):
            candidate_NK[i, : len(one.candidates)] = [place[text] for text in one.candidates]
        kind_N = np.array([kinds[one.kind] for one in good], np.int64)
        asked = {"candidate_NK": candidate_NK, "kind_N": kind_N}
    return Split(
        image_ND=np.ascontiguousarray(samples.image_ND[samples.is_good_N], np.float32),
        own_N=np.array([place[str(one.caption)] for one in good], np.int64),
        texts=tuple(found),
        text_TD=texts.take(tuple(found)),
        primitives=tuple(found.values()),
        **asked,
    )


def make_stream(name: str, tasks: Sequence[Task], zero_shot: Sequence[Task], texts: Texts) -> Stream:
    """Return the stream of tasks, with all names of primitives of its texts and of their edits."""
    splits = [split for task in (*tasks, *zero_shot) for split in (task.train, task.test)]
    edited = [task.edits.split for task in tasks if task.edits is not None]
    names = sorted({name for split in (*splits, *edited) for some in split.primitives for name in some})
    return Stream(name, tuple(tasks), tuple(zero_shot), tuple(names), texts.take(names))


def warn_repeats(split: Split, said: str) -> list[str]:
    """Return a warning if texts of a gallery share a set of primitives: compositions cannot distinguish them.

    Questions give no warning: candidates that differ only in a relation have the same primitives.
    """
    num = len({frozenset(some) for some in split.primitives})
    if split.candidate_NK is not None or num == len(split.texts):
        return []
    least = f"so compositions can retrieve at most {num / len(split.texts):.0%} of them"
    return [f"{said}: {len(split.texts):,} texts have {num:,} sets of primitives, {least}"]


def warn_lone_text(split: Split, said: str) -> list[str]:
    """Return a warning if a gallery has one text. Questions have at least two candidates."""
    if split.candidate_NK is not None or len(split.texts) != 1:
        return []
    why = "so every method is right in 100 % of this test's own gallery; add samples with other texts"
    return [f"{said}: has one text, {split.texts[0]!r}, {why}"]


_OF_STREAMS = ("overlap", "seed", "primitives", "parser", "max_pixels", "reference")
_FACTS = "facts.json"
# In the record of a made stream, instead of the folder that has it.
_HERE = '"{folder}/'
# Version of the files: increased when they change, so that older files are not used.
_FORMAT = 3


@dataclass(frozen=True)
class MadeVariant:
    """A variant of a stream that the user's code makes."""

    stream: str
    number: int
    folder: str
    """The parent of its own folder and of its record, which is written last."""
    name: str

    @property
    def _quoted(self) -> str:
        """The start of a path below the folder, as json has it."""
        return json.dumps(f"{self.folder}/")[:-1]

    @property
    def is_made(self) -> bool:
        """Whether it is complete."""
        return Folder(self.folder).exists(f"{self.name}.json")

    def make(self, seed: int) -> None:
        """Call the user's code; raises UserError if it fails or returns something else."""
        import torch

        torch.set_num_threads(1)
        own = Folder(Folder(self.folder).at(self.name))
        own.remove()
        if own.is_local:
            os.makedirs(own.uri)
        made = call_own("stream", self.stream, find_maker(self.stream).make, own.uri, self.number, seed)
        if not isinstance(made, MadeStream):
            raise UserError(f"stream={self.stream}: must return MadeStream, returned {made!r:.80}")
        content = {**made._asdict(), "model": to_dict(find_model(made.model))}
        text = json.dumps(content).replace(self._quoted, _HERE)
        Folder(self.folder).write_bytes(text.encode(), f"{self.name}.json")

    def read(self) -> MadeStream:
        """Return the stream on disk, also if its folder was moved."""
        text = Folder(self.folder).read_bytes(f"{self.name}.json").decode()
        content = json.loads(text.replace(_HERE, self._quoted))
        return MadeStream(content["file"], ModelConfig(**content["model"]), content["reference"])


@dataclass(frozen=True)
class EmbeddedStream:
    """A variant of a stream as embedded by its backbone."""

    stream: str
    variant: int
    """0 of a json file."""
    folder: str
    made: MadeVariant | None = None
    """None for a json file: the backbone is then ``config.model``."""

    def has(self, one_run: StreamRun) -> bool:
        """Whether a run uses this place."""
        variant = find_variant(one_run.stream, one_run.seed)
        return (one_run.stream, variant) == (self.stream, self.variant)

    @property
    def files(self) -> Folder:
        return Folder(self.folder)

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]

    @property
    def is_made(self) -> bool:
        """Whether all its files exist."""
        return self.files.exists(_FACTS)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts recorded when it was built: samples by status, what halves share, warnings."""
        return self.files.read_json(_FACTS)

    def finish(self, facts: dict[str, Any]) -> None:
        """Write the recorded facts, which marks the place as built."""
        self.files.write_json(facts, _FACTS)


def find_place(
    one_run: StreamRun,
    config: ContinualConfig,
    folder: Folder,
    fingerprint: Mapping[str, Any],
    with_pixels: bool,
    gpu: Mapping[str, Any] | None = None,
) -> EmbeddedStream:
    """Return the place of a run's stream below ``folder``.

    ``fingerprint``: digests of inputs, models and parsers; ``with_pixels``: whether methods need them;
    ``gpu``: the device that embeds, as ``describe_gpu`` has it, none = a CPU. Embeddings of other GPUs, or of
    another precision, differ in bits: they have a place of their own.
    """
    stream, variant = one_run.stream, find_variant(one_run.stream, one_run.seed)
    name, made = f"{name_stream(stream)}-{variant:02d}", None
    values = to_dict(config)
    own = {name: values[name] for name in _OF_STREAMS}
    depends = [stream, "reference", "parser"]
    if is_own(stream):
        of_maker = digest([fingerprint.get(stream), config.seed])[:12]
        made = MadeVariant(stream, variant, folder.uri, f"made-{name}-{of_maker}")
    else:
        depends.append("model")
    content = {name: fingerprint.get(name) for name in depends}
    if made is None:
        content["precision"] = config.model.precision
    if gpu is not None:
        content["gpu"] = dict(gpu)
    # Another run may have built it from files that were since replaced by others of the same size.
    if times := {name: time for name, time in fingerprint.get(TIMES, {}).items() if name in depends}:
        content[TIMES] = times
    marks = digest([own, content, with_pixels, _FORMAT])[:12]
    return EmbeddedStream(stream, variant, folder.at(f"{name}-{marks}"), made)


class RunJob(NamedTuple):
    """A run, its settings, and the folders of its state and results."""

    one_run: StreamRun
    place: EmbeddedStream
    model: ModelConfig
    """The backbone."""
    config: ContinualConfig
    work: Folder
    out: Folder
    choice: Choice = Choice()
    """Values selected in development."""

    @property
    def state(self) -> Folder:
        """The folder of the state that the run resumes from."""
        return Folder(self.work.at(self.one_run.name))
