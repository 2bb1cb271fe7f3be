"""From the data read from a source to its samples, each with a status and the primitives of its texts.

N samples, M pictures, D dims.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raycomp.continual.layouts.row import Edit
from raycomp.continual.streams.sources import Member, Source, StreamSample
from raycomp.core.leaks import NO_KEY
from raycomp.core.uids import KEY
from raycomp.data.arrow import to_matrix
from raycomp.data.paths import ShardPath
from raycomp.data.rows import parse_object
from raycomp.evaluation.benchmarks.choice import is_text
from raycomp.evaluation.evaluation import Picture, Pictures, key_pictures
from raycomp.evaluation.retrieval import find_captions
from raycomp.language.concepts import parse_concepts
from raycomp.language.primitives import find_primitives
from raycomp.models.lexicon import load_lexicon
from raycomp.models.parser import Parser
from raycomp.words import (
    BAD_FIELD,
    CAPTION,
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
    rows += [_find_file(sample, pictures) for sample in source.samples]
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
        for one in captions[:1] if is_test or _has_own(fields) else captions:
            sample, is_sound = _read_fields(StreamSample(Member(shard.place, place), one), fields)
            yield sample, status if is_sound or status != OK else BAD_FIELD, image_MD[place], key_M[place]


def _find_file(sample: StreamSample, pictures: Pictures) -> _Row:
    if not isinstance(sample.picture, Picture):
        return sample, NO_IMAGE, np.zeros(pictures.image_MD.shape[1], np.float32), NO_KEY
    place = pictures.place[sample.picture]
    return sample, pictures.status_M[place], pictures.image_MD[place], pictures.key_M[place]


def _has_own(fields: Mapping[str, Any]) -> bool:
    """Return whether a json has fields that can be true of one caption alone."""
    return not {"primitives", "candidates", "edits"}.isdisjoint(fields)


def _read_fields(sample: StreamSample, fields: Mapping[str, Any]) -> tuple[StreamSample, bool]:
    """Return the sample with the fields of its json, and whether all of them are valid."""
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
        return sample, False
    return (
        sample._replace(
            primitives=_tidy(named) or None,
            candidates=_tidy(offered),
            candidate_primitives=None if behind is None else tuple(map(_tidy, behind)),
            kind=kind or "",
            edits=tuple(Edit(**{**one, "primitives": _tidy(one["primitives"])}) for one in edits or ()),
        ),
        True,
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
            own = {text: known[text] for text in _list_texts(sample)}
            behind = tuple(own[text] for text in sample.candidates)
            sample = sample._replace(primitives=own[str(sample.caption)], candidate_primitives=behind)
            status = OK if all(own.values()) else NO_PRIMITIVE
        found.append(sample)
        statuses.append(status)
    return replace(samples, samples=tuple(found), status_N=tuple(statuses))


def _list_texts(sample: StreamSample) -> Iterator[str]:
    assert sample.caption is not None, "a good sample has one"
    yield sample.caption
    yield from sample.candidates


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
