"""The few samples that the page shows, chosen so that parts chosen apart and merged equal the whole.

N rows of one scores file. Every choice is "the first few by a key"; a key is never drawn, it is computed
from the row, so neither the order of rows nor the cut into files can change what is shown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    KEY,
    MEAN_PAS,
    PHRASES,
    POSITION,
    SHARD,
    STATUS,
    UID,
    URL,
)

MOST_CHARACTERS = 600
"""A caption longer than this is shown cut, without the phrases that end later."""
MOST_WORD = 200
"""Keys, shards and addresses longer than this are shown cut."""


@dataclass(frozen=True)
class Sample:
    """One row as the page shows it. ``order`` is its place among its likes; smaller comes first."""

    order: tuple[float, int, str]
    uid: str
    key: str | None
    shard: str
    position: int | None
    url: str | None
    caption: str | None
    cut: int
    """Characters of the caption left out."""
    status: str
    reason: str
    alignment: float | None
    mean_pas: float | None
    score: float | None
    phrases: tuple[dict[str, Any], ...]
    """Structs of ``PHRASE_TYPE`` that end within the shown caption."""


@dataclass(frozen=True)
class Picks:
    """The ``limit`` samples of smallest ``order``."""

    limit: int
    samples: tuple[Sample, ...] = ()

    def merge(self, other: "Picks") -> "Picks":
        """Pick again among both."""
        both = sorted((*self.samples, *other.samples), key=lambda sample: sample.order)
        return Picks(self.limit, tuple(both[: self.limit]))


@dataclass(frozen=True)
class Chooser:
    """One scores file with what selection and the seed say of its rows."""

    table: pa.Table
    reason_N: np.ndarray
    score_N: np.ndarray
    hash_N: np.ndarray

    def first(self, limit: int, among_N: np.ndarray, by_N: np.ndarray | None = None) -> Picks:
        """Pick the rows of ``among_N`` with the smallest ``by_N``, ties (and no ``by_N``) by hash."""
        rows = np.flatnonzero(among_N)
        by = np.zeros(len(rows)) if by_N is None else by_N[rows]
        chosen = rows[np.lexsort((self.hash_N[rows], by))[:limit]]
        keys = np.zeros(len(self.hash_N)) if by_N is None else by_N
        return Picks(limit, tuple(self._sample(int(row), float(keys[row])) for row in chosen))

    def _sample(self, row: int, by: float) -> Sample:
        values = self.table.slice(row, 1).to_pylist()[0]
        caption = values[CAPTION]
        shown = caption if caption is None else caption[:MOST_CHARACTERS]
        score = float(self.score_N[row])
        return Sample(
            order=(by, int(self.hash_N[row]), values[UID]),
            uid=values[UID],
            key=_short(values[KEY]),
            shard=str(_short(values[SHARD])),
            position=values[POSITION],
            url=_short(values[URL]),
            caption=shown,
            cut=len(caption or "") - len(shown or ""),
            status=values[STATUS],
            reason=str(self.reason_N[row]),
            alignment=values[ALIGNMENT],
            mean_pas=values[MEAN_PAS],
            score=None if np.isnan(score) else score,
            phrases=tuple(p for p in values[PHRASES] or () if p["end"] <= MOST_CHARACTERS),
        )


def draw(samples: Iterable[Sample], count: int) -> tuple[Sample, ...]:
    """Draw ``count`` of the samples by their seeded hash, then put them in their order again."""
    drawn = sorted(samples, key=lambda sample: sample.order[1:])[:count]
    return tuple(sorted(drawn, key=lambda sample: sample.order))


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= MOST_WORD:
        return text
    return text[: MOST_WORD - 1] + "\u2026"
