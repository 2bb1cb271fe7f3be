"""From samples to arrays: unique texts with their primitives.

N samples, T texts, V names of primitives, K candidates, D dims.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.config import UserError
from raycomp.continual.data import Split, Stream, Task
from raycomp.continual.streams.samples import StreamSamples
from raycomp.evaluation.evaluation import Texts


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
