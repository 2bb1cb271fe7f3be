"""What every exam is to the pass that embeds its pictures and texts: each once, whoever asks for them.

M pictures, T texts, D embedding dims.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from raycomp.shards.paths import ShardPath


class Picture(NamedTuple):
    """An image file, or a part of it."""

    uri: str
    box: tuple[int, int, int, int] | None = None
    """Left, top, width, height in pixels; None for all of it."""


@dataclass(frozen=True)
class Pictures:
    """The pictures as the model sees them."""

    place: Mapping[Picture, int]
    """The row of every file."""
    status_M: Sequence[str]
    """ok, or why there is no embedding."""
    image_MD: np.ndarray
    """fp32, of length 1; 0 where the status is not ok."""
    shards: Mapping[str, pa.Table]
    """By a shard's uri its rows, in their order: uid, key, caption, json, status and image_embedding."""


@dataclass(frozen=True)
class Texts:
    """The texts as the model reads them."""

    place: Mapping[str, int]
    """The row of every text."""
    text_TD: np.ndarray
    """fp32, of length 1; 0 for those that are bad."""
    bad: frozenset[str] = frozenset()
    """Texts without an embedding: what needs one of them has the status bad_embedding."""

    def take(self, texts: Sequence[str]) -> np.ndarray:
        """Return the rows of these texts."""
        return self.text_TD[[self.place[text] for text in texts]]


Statuses = Sequence[tuple[str, str]]
"""The name and the status of every image."""


class Needs(Protocol):
    """Pictures and texts that are to be embedded."""

    @property
    def pictures(self) -> Sequence[Picture]:
        """Image files that it needs; may repeat."""

    @property
    def shards(self) -> Sequence[ShardPath]:
        """Shards whose pictures it needs, all of them."""

    def list_texts(self, pictures: Pictures) -> list[str]:
        """Return the texts that it needs; may repeat."""


class Exam(Needs, Protocol):
    """Questions to a model: what they are about, and what its embeddings answer."""

    @property
    def name(self) -> str:
        """What its file of scores is called."""

    def find_statuses(self, pictures: Pictures) -> Mapping[str, Statuses]:
        """Return the statuses of every set of images, by what messages call it."""

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return a row for every example: at least benchmark, split, id and status."""
