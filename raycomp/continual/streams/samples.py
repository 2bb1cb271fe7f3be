"""A source's samples with status and primitives, as arrays; overlap between the halves of tasks.

N samples of a half, M pictures, T texts, V names of primitives, K candidates, D dims.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raycomp import words
from raycomp.config import UserError
from raycomp.continual.data import Split
from raycomp.continual.layouts import Edit
from raycomp.continual.streams.sources import Member, Source, StreamSample
from raycomp.core import selection
from raycomp.core.selection import KEY, Leak
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet import to_matrix
from raycomp.data.samples import parse_object
from raycomp.evaluation.benchmarks.choice import is_text
from raycomp.evaluation.choices import Picture, Pictures, Texts, key_pictures
from raycomp.evaluation.retrieval import find_captions
from raycomp.language.concepts import find_primitives, parse_concepts
from raycomp.models.parser import Parser, load_lexicon

GOLD, PARSED = "gold", "parsed"
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
        return [one for one, status in zip(self.samples, self.status_N, strict=True) if status == words.OK]

    @property
    def is_good_N(self) -> np.ndarray:
        return np.array([status == words.OK for status in self.status_N], bool)

    @property
    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of the good samples' images and of their captions, (N,) each."""
        return self.key_N[self.is_good_N], selection.key_texts([one.caption for one in self.good])


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
            rows.append((sample, words.NO_IMAGE, blank_D, selection.NO_KEY))
    return StreamSamples(
        source.said,
        tuple(sample for sample, *_ in rows),
        tuple(_judge(sample, status) for sample, status, *_ in rows),
        np.stack([image_D for _, _, image_D, _ in rows]) if rows else pictures.image_MD[:0],
        np.array([key for *_, key in rows], KEY),
    )


def _read_shard(
    shard: ShardPath, pictures: Pictures, is_test: bool
) -> Iterator[tuple[StreamSample, str, np.ndarray, bytes]]:
    """Yield a shard's samples, each with its status, its picture's embedding (D,) and its key."""
    table = pictures.shards[shard.place]
    columns = (table[name].to_pylist() for name in (words.CAPTION, words.JSON, words.STATUS))
    image_MD, key_M = to_matrix(table[words.IMAGE_EMBEDDING]), key_pictures(table)
    for place, (caption, text, status) in enumerate(zip(*columns, strict=True)):
        fields = parse_object(text)[1] or {}
        captions: Sequence[str | None] = find_captions(caption, text, shard.columns) or (caption,)
        is_of_one = is_test or not _OF_ONE_CAPTION.isdisjoint(fields)
        for one in captions[:1] if is_of_one else captions:
            plain = StreamSample(Member(shard.place, place), one)
            sample = _read_fields(plain, fields)
            fault = words.BAD_FIELD if sample is None and status == words.OK else status
            yield sample or plain, fault, image_MD[place], key_M[place]


def _read_fields(sample: StreamSample, fields: Mapping[str, Any]) -> StreamSample | None:
    """Return the sample with the fields of its json; none if one of them is not valid."""

    def are(check: Callable[[Any], bool], value: Any) -> bool:
        return isinstance(value, list) and all(map(check, value))

    def are_texts(value: Any) -> bool:
        return are(is_text, value)

    def is_edit(value: Any) -> bool:
        if not isinstance(value, dict) or set(value) != set(Edit._fields):
            return False
        return is_text(value["text"]) and is_text(value["category"]) and are_texts(value["primitives"])

    def tidy(texts: Sequence[str] | None) -> tuple[str, ...]:
        return tuple(text.strip() for text in texts or ())

    named, offered, behind, kind, edits = (
        fields.get(name) for name in ("primitives", "candidates", "candidate_primitives", "kind", "edits")
    )
    is_sound = (
        (named is None or are_texts(named))
        and (offered is None or are_texts(offered))
        and (behind is None or (are(are_texts, behind) and len(behind) == len(offered or ())))
        and (kind is None or isinstance(kind, str))
        and (edits is None or are(is_edit, edits))
    )
    if not is_sound:
        return None
    return sample._replace(
        primitives=tidy(named) or None,
        candidates=tidy(offered),
        candidate_primitives=None if behind is None else tuple(map(tidy, behind)),
        kind=kind or "",
        edits=tuple(Edit(**{**one, "primitives": tidy(one["primitives"])}) for one in edits or ()),
    )


def _judge(sample: StreamSample, status: str) -> str:
    """Return the first fault of a sample: of its picture, its caption, its candidates."""
    if status != words.OK:
        return status
    if sample.caption is None:
        return words.NO_CAPTION
    if not sample.caption.strip():
        return words.EMPTY_CAPTION
    offered = sample.candidates
    fits = not offered or (sample.caption in offered and 1 < len(offered) == len(set(offered)))
    fits &= all(one.text != sample.caption and one.text.strip() and one.primitives for one in sample.edits)
    return words.OK if fits else words.BAD_FIELD


def name_primitives(
    halves: Sequence[StreamSamples], how: str, load: Callable[[], Parser]
) -> list[StreamSamples]:
    """Return the samples with primitives of all texts, and those without any marked no_primitive.

    ``how``: ``config.primitives``, gold or parsed. If samples of a half name different primitives of one
    text, the first one's are used: a text has one composition. A text without named primitives is parsed,
    once; its primitives are phrases, none if it names no object. The parser is loaded only if a text needs
    it.
    """
    named: list[dict[str, tuple[str, ...]]] = []
    unknown: dict[str, None] = {}
    for samples in halves:
        named.append({})
        for text, primitives in _list_named(samples, how):
            named[-1].setdefault(text, primitives)
        texts = (text for one in samples.good for text in one.texts)
        unknown |= dict.fromkeys(text for text in texts if text not in named[-1])
    parsed = {}
    if unknown:
        parser, lexicon = load(), load_lexicon()
        for text, tokens in zip(unknown, parser.tokens([*unknown]), strict=True):
            parsed[text] = find_primitives(parse_concepts(text, tokens, lexicon, parser.labels))
    made = []
    for samples, own in zip(halves, named, strict=True):
        known, found, statuses = {**parsed, **own}, [], []
        for sample, status in zip(samples.samples, samples.status_N, strict=True):
            if status == words.OK:
                first, *behind = (known[text] for text in sample.texts)
                sample = sample._replace(primitives=first, candidate_primitives=tuple(behind))
                status = words.OK if all((first, *behind)) else words.NO_PRIMITIVE
            found.append(sample)
            statuses.append(status)
        made.append(replace(samples, samples=tuple(found), status_N=tuple(statuses)))
    return made


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
        own = dict[str, None]()
        for text, named in _list_named(samples, how):
            if first.setdefault(text, frozenset(named)) != frozenset(named):
                own[text] = None
        others = [text for text, some in first.items() if before.setdefault(text, (said, some))[1] != some]
        if own:
            lines.append(
                f"{said}: samples name different primitives for {len(own):,} texts, such as "
                f"{next(iter(own))!r}; each text keeps the primitives of its first sample"
            )
        if others:
            lines.append(
                f"{said}: names other primitives for {len(others):,} texts than earlier halves, such as "
                f"{others[0]!r} of {before[others[0]][0]}; joined halves keep those of the earlier half"
            )
    return lines


Named = Mapping[str, StreamSamples]
"""The train or the test halves of tasks, by their names."""


def find_leaks(stream: str, trains: Named, tests: Named) -> list[Leak]:
    """Return, for every test, its overlap with the training halves of all tasks.

    A task's own training half counts like those of others: after all tasks the model has trained on all of
    them.
    """
    known = {
        task: selection.Known(*(selection.merge_keys([keys]) for keys in samples.keys))
        for task, samples in trains.items()
    }
    everything = selection.merge_known(list(known.values()))
    leaks = []
    for task, samples in tests.items():
        image_N, text_N = samples.keys
        counts = {name: int(selection.find_shared(one.image_K, image_N).sum()) for name, one in known.items()}
        own = {name: count for name, count in counts.items() if count}
        shared = [*own] if len(own) == 1 else [f"{name} ({count:,})" for name, count in own.items()]
        train = f"the training images of {', '.join(shared) or 'all tasks'}"
        leaks.append(Leak(f"{stream}, {task}", train, selection.count_shared(everything, image_N, text_N)))
    return leaks


def drop_shared(trains: Iterable[StreamSamples], test: StreamSamples) -> StreamSamples:
    """Return a test whose good samples are contaminated if a training half has their image."""
    known_K = selection.merge_keys(one.key_N[one.is_good_N] for one in trains)
    is_shared_N = selection.find_shared(known_K, test.key_N)
    statuses = np.where(is_shared_N & test.is_good_N, words.CONTAMINATED, np.array(test.status_N, object))
    return replace(test, status_N=tuple(statuses.tolist()))


def find_repeats(half: str, tasks: Named) -> list[dict[str, Any]]:
    """Return, for every task, how many samples of earlier tasks it repeats, as run.json has it: two tasks on
    one data set repeat samples.

    An image with another text is another sample, because tasks may ask different questions of one image.
    """
    before: dict[str, np.ndarray] = {}
    repeats: list[dict[str, Any]] = []
    for name, samples in tasks.items():
        pair_N = selection.join_keys(*samples.keys)
        found = {other: selection.find_shared(known, pair_N) for other, known in before.items()}
        own = [other for other, is_shared_N in found.items() if is_shared_N.any()]
        if own:
            num = int(np.logical_or.reduce([found[other] for other in own]).sum())
            counts = {"num_samples": len(pair_N), "samples": num}
            repeats.append({"task": name, "before": own, "half": half, **counts})
        before[name] = selection.merge_keys([pair_N])
    return repeats


def find_texts(samples: StreamSamples) -> dict[str, tuple[str, ...]]:
    """Return the texts of good samples in order, captions and candidates, each once, with its primitives."""
    texts: dict[str, tuple[str, ...]] = {}
    for one in samples.good:
        assert one.primitives and one.candidate_primitives is not None, "primitives are named first"
        for text, primitives in zip(one.texts, (one.primitives, *one.candidate_primitives), strict=True):
            texts.setdefault(text, primitives)
    return texts


def number_kinds(samples: Iterable[StreamSamples]) -> dict[str, int]:
    """Return an integer for every kind of question of a stream, from 0."""
    return {kind: i for i, kind in enumerate(sorted({one.kind for some in samples for one in some.good}))}


def make_split(samples: StreamSamples, texts: Texts, kinds: Mapping[str, int]) -> Split:
    """Return the good samples as arrays, without pixels and tokens. Raises ValueError if some have candidates
    and others none.

    ``kinds`` are ``number_kinds`` of the whole stream.
    """
    good, found = samples.good, find_texts(samples)
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


def warn_texts(split: Split, said: str) -> list[str]:
    """Return a warning if a gallery has one text, or its texts share sets of primitives, which compositions
    cannot distinguish.

    Questions give none: they have at least two candidates, and candidates that differ only in a relation have
    the same primitives.
    """
    num, num_sets = len(split.texts), len({frozenset(some) for some in split.primitives})
    if split.candidate_NK is not None or (num == num_sets and num != 1):
        return []
    if num == 1:
        why = "so every method is right in 100 % of this test's own gallery; add samples with other texts"
        return [f"{said}: has one text, {split.texts[0]!r}, {why}"]
    least = f"so compositions can retrieve at most {num_sets / num:.0%} of them"
    return [f"{said}: {num:,} texts have {num_sets:,} sets of primitives, {least}"]
