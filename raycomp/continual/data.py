"""A stream of tasks as arrays: training and test samples.

N samples, T texts, V names of primitives, K candidates, L tokens of context, H x W pixels, D dims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Pixels:
    """The pictures of samples, memory-mapped; a picture that several samples share is stored once.

    Index rows as in an array: by a slice, or by an array of row numbers.
    """

    files: tuple[np.ndarray, ...]
    """uint8 (P, H, W, 3) each, as preprocessed for the model."""
    file_N: np.ndarray
    """Index of the part that has a sample's picture."""
    row_N: np.ndarray
    """Row of the picture in that part."""

    def __len__(self) -> int:
        return len(self.row_N)

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        file_B, row_B = self.file_N[which], self.row_N[which]
        found = np.empty((len(row_B), *self.files[0].shape[1:]), np.uint8)
        for number in np.unique(file_B):
            found[file_B == number] = self.files[number][row_B[file_B == number]]
        return found


def join_pixels(parts: Sequence[Pixels]) -> Pixels:
    """Return the pictures of all parts concatenated, still memory-mapped."""
    starts = np.cumsum([0, *(len(one.files) for one in parts)])
    return Pixels(
        tuple(file for one in parts for file in one.files),
        np.concatenate([one.file_N + start for one, start in zip(parts, starts, strict=False)]),
        np.concatenate([one.row_N for one in parts]),
    )


@dataclass(frozen=True)
class Split:
    """Training or test samples of a task; embeddings are the frozen model's."""

    image_ND: np.ndarray
    """fp32, of length 1."""
    own_N: np.ndarray
    """Index of the right text in ``texts``, int64."""
    texts: tuple[str, ...]
    """Unique texts."""
    text_TD: np.ndarray
    """fp32, of length 1."""
    primitives: tuple[tuple[str, ...], ...]
    """Primitives of every text, at least one."""
    candidate_NK: np.ndarray | None = None
    """Questions: indices in ``texts`` of the candidate answers, the right one included, -1 = padding; none if
    all texts are candidates."""
    kind_N: np.ndarray | None = None
    """Questions: an integer for the kind of question; same kind, same integer."""
    pixels: Pixels | None = None
    """Only for methods that train the model."""
    token_TL: np.ndarray | None = None
    """int32; only for methods that train the model."""

    def __len__(self) -> int:
        return len(self.own_N)


@dataclass(frozen=True)
class Edits:
    """False texts of test samples, each one edit away from the right text."""

    split: Split
    """An empty set of edits."""
    row_M: np.ndarray
    """Index of the sample, int64."""
    text_M: np.ndarray
    """Index of the text in ``split.texts``."""
    category_M: np.ndarray
    """Operation and kind of the edit."""


@dataclass(frozen=True)
class Task:
    """One task of a stream."""

    name: str
    train: Split
    test: Split
    edits: Edits | None = None
    """Only where the rows of the stream have some."""


@dataclass(frozen=True)
class Stream:
    """Tasks in training order."""

    name: str
    tasks: tuple[Task, ...]
    zero_shot: tuple[Task, ...]
    """Tasks that are only evaluated; their ``train`` may be empty."""
    names: tuple[str, ...]
    """All primitives of all tasks, sorted."""
    name_VD: np.ndarray
    """Embeddings of the names by the frozen model, fp32, of length 1."""
    reference: Split | None = None
    """Images and texts like those of the model's training, for methods that preserve its outputs on them; the
    texts have no primitives and no embeddings."""


class Keys(NamedTuple):
    """A split as embedded by a method; all embeddings have length 1."""

    image_ND: np.ndarray
    text_TD: np.ndarray
    composed_ETD: np.ndarray | None = None
    """e^_c of every text by each of E heads; none for methods without compositions."""
    expert_N: np.ndarray | None = None
    """Index of the head whose composition each image is compared with, 0 to E - 1; none if there is one
    head."""


def join_splits(splits: Sequence[Split]) -> Split:
    """Return the samples of all splits with unique texts; ValueError unless all are of one kind."""
    places: dict[str, int] = {}
    first: list[tuple[int, int]] = []  # (split, index of the text in it)
    moved = []
    for number, split in enumerate(splits):
        for place, text in enumerate(split.texts):
            if text not in places:
                places[text] = len(places)
                first.append((number, place))
        moved.append(np.array([places[text] for text in split.texts], np.int64))

    pixels = [split.pixels for split in splits if split.pixels is not None]
    kinds = [split.kind_N for split in splits if split.kind_N is not None]
    tokens = [split.token_TL for split in splits if split.token_TL is not None]
    num = len(splits)
    return Split(
        image_ND=np.concatenate([split.image_ND for split in splits]),
        own_N=np.concatenate([move[split.own_N] for move, split in zip(moved, splits, strict=True)]),
        texts=tuple(places),
        text_TD=np.stack([splits[number].text_TD[place] for number, place in first]),
        primitives=tuple(splits[number].primitives[place] for number, place in first),
        candidate_NK=_join_candidates(splits, moved),
        kind_N=np.concatenate(kinds) if len(kinds) == num else None,
        pixels=join_pixels(pixels) if len(pixels) == num else None,
        token_TL=np.stack([tokens[number][place] for number, place in first]) if len(tokens) == num else None,
    )


def _join_candidates(splits: Sequence[Split], moved: Sequence[np.ndarray]) -> np.ndarray | None:
    some = [split.candidate_NK for split in splits if split.candidate_NK is not None]
    if not some:
        return None
    if len(some) < len(splits):
        raise ValueError("tasks: must all have candidates or none of them")
    width = max(one.shape[1] for one in some)
    parts = []
    for one, move in zip(some, moved, strict=True):
        wide_NK = np.full((len(one), width), -1, np.int64)
        wide_NK[:, : one.shape[1]] = np.where(one >= 0, move[one], -1)
        parts.append(wide_NK)
    return np.concatenate(parts)
