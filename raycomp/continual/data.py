"""A stream of tasks as arrays: what is learned of, and what is asked.

N samples, T texts, V names of primitives, K candidates, L tokens of context, H x W pixels, D dims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Pixels:
    """The pictures of samples, mapped and not read; one that several samples share lies there once.

    Rows are taken as of an array: by a slice, or by an array of places.
    """

    files: tuple[np.ndarray, ...]
    """uint8 (P, H, W, 3) each, as the model's preparation leaves them."""
    file_N: np.ndarray
    """In which of them a sample's picture is."""
    row_N: np.ndarray
    """And where in it."""

    def __len__(self) -> int:
        return len(self.row_N)

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        file_B, row_B = self.file_N[which], self.row_N[which]
        found = np.empty((len(row_B), *self.files[0].shape[1:]), np.uint8)
        for number in np.unique(file_B):
            found[file_B == number] = self.files[number][row_B[file_B == number]]
        return found


def join_pixels(parts: Sequence[Pixels]) -> Pixels:
    """Return the pictures of all parts after one another, as mapped as they were."""
    starts = np.cumsum([0, *(len(one.files) for one in parts)])
    return Pixels(
        tuple(file for one in parts for file in one.files),
        np.concatenate([one.file_N + start for one, start in zip(parts, starts, strict=False)]),
        np.concatenate([one.row_N for one in parts]),
    )


@dataclass(frozen=True)
class Split:
    """Samples of a task, to learn from or to be asked about; embeddings are the frozen model's."""

    image_ND: np.ndarray
    """fp32, of length 1."""
    own_N: np.ndarray
    """The text that is right, its place in ``texts``, int64."""
    texts: tuple[str, ...]
    """Each once."""
    text_TD: np.ndarray
    """fp32, of length 1."""
    primitives: tuple[tuple[str, ...], ...]
    """Those of every text, at least one."""
    candidate_NK: np.ndarray | None = None
    """Questions: places in ``texts`` of the answers there are, the right one among them, -1 = padding;
    none where all texts are asked for."""
    kind_N: np.ndarray | None = None
    """Questions: a whole number for those that are asked alike."""
    pixels: Pixels | None = None
    """For methods that train the model."""
    token_TL: np.ndarray | None = None
    """int32; for methods that train the model."""

    def __len__(self) -> int:
        return len(self.own_N)


@dataclass(frozen=True)
class Edits:
    """Texts that are false of a test's samples, each one edit away from what is right."""

    split: Split
    """Without samples."""
    row_M: np.ndarray
    """Of which sample, int64."""
    text_M: np.ndarray
    """Which text, a place in ``split.texts``."""
    category_M: np.ndarray
    """Operation and kind of the edit."""


@dataclass(frozen=True)
class Task:
    """What is learned at a time."""

    name: str
    train: Split
    test: Split
    edits: Edits | None = None
    """Of the little world's scenes."""


@dataclass(frozen=True)
class Stream:
    """Tasks in the order in which they are met."""

    name: str
    tasks: tuple[Task, ...]
    zero_shot: tuple[Task, ...]
    """Further ones that are only asked about; their ``train`` may be empty."""
    drawn: Split
    """Texts without samples, made of names drawn at random: what a control anchors that has no memory."""
    names: tuple[str, ...]
    """All primitives of all tasks and of ``drawn``, sorted."""
    name_VD: np.ndarray
    """Their embeddings by the frozen model, fp32, of length 1."""
    reference: Split | None = None
    """Images and texts of the kind that the model was trained on, for methods that keep what it makes of
    them; its texts have no primitives, nor embeddings."""


class Keys(NamedTuple):
    """A split as a method sees it; all of length 1."""

    image_ND: np.ndarray
    text_TD: np.ndarray
    composed_ETD: np.ndarray | None = None
    """e^_c of every text by each of E heads; none of methods without."""
    expert_N: np.ndarray | None = None
    """Whose composition each image is held against, 0 to E - 1; none where there is one head."""


def join_splits(splits: Sequence[Split]) -> Split:
    """Return the samples of all of them, every text once; ValueError unless all are of one kind."""
    places: dict[str, int] = {}
    first: list[tuple[int, int]] = []  # of which split, and its text there
    moved = []
    for number, split in enumerate(splits):
        for place, text in enumerate(split.texts):
            if text not in places:
                places[text] = len(places)
                first.append((number, place))
        moved.append(np.array([places[text] for text in split.texts], np.int64))

    def of_texts(name: str) -> np.ndarray | None:
        parts = [getattr(split, name) for split in splits]
        if any(part is None for part in parts):
            return None
        return np.stack([parts[number][place] for number, place in first])

    def of_samples(name: str) -> np.ndarray | None:
        parts = [getattr(split, name) for split in splits]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    pixels = [split.pixels for split in splits if split.pixels is not None]
    primitives = tuple(splits[number].primitives[place] for number, place in first)
    text_TD = of_texts("text_TD")
    assert text_TD is not None
    return Split(
        image_ND=np.concatenate([split.image_ND for split in splits]),
        own_N=np.concatenate([move[split.own_N] for move, split in zip(moved, splits, strict=True)]),
        texts=tuple(places),
        text_TD=text_TD,
        primitives=primitives,
        candidate_NK=_join_candidates(splits, moved),
        kind_N=of_samples("kind_N"),
        pixels=join_pixels(pixels) if len(pixels) == len(splits) else None,
        token_TL=of_texts("token_TL"),
    )


def _join_candidates(splits: Sequence[Split], moved: Sequence[np.ndarray]) -> np.ndarray | None:
    some = [split.candidate_NK for split in splits]
    if all(one is None for one in some):
        return None
    if any(one is None for one in some):
        raise ValueError("tasks: must all have candidates or none of them")
    width = max(one.shape[1] for one in some if one is not None)
    parts = []
    for one, move in zip(some, moved, strict=True):
        assert one is not None
        wide_NK = np.full((len(one), width), -1, np.int64)
        wide_NK[:, : one.shape[1]] = np.where(one >= 0, move[one], -1)
        parts.append(wide_NK)
    return np.concatenate(parts)
