"""A world's pairs in memory, as every training takes them: pixels, tokens, negatives, scores; and its exams.

N pairs, J slots for negatives of a caption (first those of one edit, then those of two), L tokens of context,
S scenes, R negatives of an exam, H x W x 3 pixels.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import ScorerConfig
from raycomp.data.folder import Folder
from raycomp.models.describe import describe_scorer
from raycomp.models.images import ImageSpec, prepare_image
from raycomp.models.tokens import load_tokens
from raycomp.words import CAPTION
from raycomp.worlds.exam import CATEGORIES, ExamScene
from raycomp.worlds.pairs import Pairs
from raycomp.worlds.training import TAUGHT, Lesson, draw_lessons

PER_CATEGORY = 4
NUM_ONCE = PER_CATEGORY * len(TAUGHT)
NUM_TWICE = 8
MAX_PIXELS = 1_000_000


@dataclass(frozen=True)
class Pool:
    """Pairs and negatives of their captions."""

    pixel_NHWC: np.ndarray
    token_NL: np.ndarray
    negative_NJL: np.ndarray
    """Token ids; zeros where a caption has no negative in a slot."""
    text_NJ: np.ndarray
    """The same as bytes."""
    kind_NJ: np.ndarray
    """The number of a negative's edits in ``kinds``; -1 where there is none."""
    shown_NJ: np.ndarray
    """Whether a picture of the negative is a negative, too."""
    kinds: np.ndarray
    """"SWAP object", "SWAP+ADD": of one edit operation and kind, of two both operations."""


@dataclass(frozen=True)
class Exam:
    """Scenes and what is asked of them."""

    pixel_SHWC: np.ndarray
    caption_SL: np.ndarray
    paraphrase_SL: np.ndarray
    negative_RL: np.ndarray
    scene_R: np.ndarray
    category_R: np.ndarray
    """Number in CATEGORIES."""


def make_pool(part: str, scores: pa.Table, scorer: ScorerConfig, seed: int, pairs: Pairs) -> Pool:
    """Return a part of a world, its pairs in the order of the scores, with negatives drawn by seed."""
    spec = describe_scorer(scorer)
    from raycomp.train.tiny_clip import load_pairs

    pixel_NHWC, token_NL = load_pairs(part, scorer, spec)
    captions = scores[CAPTION].to_pylist()
    tokenize = load_tokens(scorer)
    assert (tokenize(captions) == token_NL.numpy()).all(), "scores are of other rows"
    lessons = [
        _to_slots(*draw_lessons(caption, PER_CATEGORY, NUM_TWICE, np.random.default_rng([seed, row]), pairs))
        for row, caption in enumerate(captions)
    ]
    names = [[name_kind(lesson) if lesson else "" for lesson in slots] for slots in lessons]
    kinds = np.array(sorted({name for some in names for name in some if name}))
    number = {name: i for i, name in enumerate(kinds.tolist())} | {"": -1}
    negative_NJL = np.zeros((*np.shape(names), spec.context_length), np.int32)
    for row, slots in enumerate(lessons):
        at = [j for j, lesson in enumerate(slots) if lesson]
        negative_NJL[row, at] = tokenize([slots[j].text for j in at])
    return Pool(
        pixel_NHWC.numpy(),
        token_NL.numpy().astype(np.int32),
        negative_NJL,
        np.array([[lesson.text.encode() if lesson else b"" for lesson in slots] for slots in lessons]),
        np.array([[number[name] for name in some] for some in names], np.int16),
        np.array([[bool(lesson and lesson.is_shown) for lesson in slots] for slots in lessons]),
        kinds,
    )


def _to_slots(once: list[Lesson], twice: list[Lesson]) -> list[Any]:
    """Return negatives in their slots, None in those that stay empty."""
    empty = [None] * NUM_ONCE
    return [*(once + empty)[:NUM_ONCE], *(twice + empty)[:NUM_TWICE]]


def name_kind(lesson: Lesson) -> str:
    """Return what CE-CLIP keeps a margin of."""
    if len(lesson.edits) == 1:
        return " ".join(lesson.edits[0])
    return "+".join(operation for operation, _ in lesson.edits)


def make_exam(scenes: Iterator[ExamScene], scorer: ScorerConfig) -> Exam:
    """Return an exam as a model takes it."""
    spec, tokenize = describe_scorer(scorer), load_tokens(scorer)
    rows = list(scenes)
    asked = [(s, negative) for s, row in enumerate(rows) for negative in row.negatives]
    numbers = [CATEGORIES.index((negative.operation, negative.kind)) for _, negative in asked]
    return Exam(
        np.stack([prepare(row.image, spec.image) for row in rows]),
        tokenize([row.caption for row in rows]),
        tokenize([row.paraphrase for row in rows]),
        tokenize([negative.caption for _, negative in asked]),
        np.array([s for s, _ in asked], np.int32),
        np.array(numbers, np.int8),
    )


def prepare(image: bytes, spec: ImageSpec) -> np.ndarray:
    """Return pixels as scoring and training see them."""
    return prepare_image(image, spec, MAX_PIXELS)[0]


def save_arrays(arrays: Any, out: Folder, name: str) -> None:
    """Write a dataclass of arrays, whole or not at all."""
    stream = io.BytesIO()
    np.savez(stream, **{field.name: getattr(arrays, field.name) for field in fields(arrays)})
    out.write_bytes(stream.getvalue(), name)


def load_arrays(kind: Any, out: Folder, name: str) -> Any:
    """Return what ``save_arrays`` wrote of the dataclass ``kind``."""
    with np.load(io.BytesIO(out.read_bytes(name)), allow_pickle=False) as found:
        return kind(**{field.name: found[field.name] for field in fields(kind)})
