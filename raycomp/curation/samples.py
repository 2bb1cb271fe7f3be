"""The few samples and words that the page shows; merging choices made on parts equals choosing on the whole.

N rows of one scores file. Every choice is "the first few by a key". A key is computed from the row, never
drawn, so neither the order of rows nor the split into files changes the choice.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.core.metrics import log_odds
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    KEY,
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
    """One row as the page shows it. ``order`` is its sort key; smaller comes first."""

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
    score: float | None
    phrases: tuple[dict[str, Any], ...]
    """Structs of ``PHRASE_TYPE`` that end within the shown caption."""


@dataclass(frozen=True)
class Picks:
    """The ``limit`` samples of smallest ``order``."""

    limit: int
    samples: tuple[Sample, ...] = ()

    def merge(self, other: "Picks") -> "Picks":
        """Return the choice among the samples of both."""
        both = sorted((*self.samples, *other.samples), key=lambda sample: sample.order)
        return Picks(self.limit, tuple(both[: self.limit]))


@dataclass(frozen=True)
class Chooser:
    """One scores file with each row's selection result and seeded hash."""

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
            score=None if np.isnan(score) else score,
            phrases=tuple(p for p in values[PHRASES] or () if p["end"] <= MOST_CHARACTERS),
        )


def draw(samples: Iterable[Sample], count: int) -> tuple[Sample, ...]:
    """Draw ``count`` of the samples by their seeded hash, then restore their order."""
    drawn = sorted(samples, key=lambda sample: sample.order[1:])[:count]
    return tuple(sorted(drawn, key=lambda sample: sample.order))


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= MOST_WORD:
        return text
    return text[: MOST_WORD - 1] + "\u2026"


@dataclass(frozen=True)
class WordCounts:
    """Counts of the ``limit`` most common words, or other values that can be sorted.

    Exact, and independent of the merge order, while at most ``limit`` different words have occurred.
    Afterwards ``most_lost`` > 0 bounds the error of a count.
    """

    limit: int
    counts: Counter[Any]
    total: int
    """All words counted, pruned ones included."""
    most_lost: int = 0

    @classmethod
    def of(cls, limit: int, words: Iterable[Any]) -> "WordCounts":
        counts = Counter(words)
        return cls(limit, counts, counts.total())._prune()

    def merge(self, other: "WordCounts") -> "WordCounts":
        """Return the counts of both, pruned again."""
        lost = self.most_lost + other.most_lost
        return WordCounts(self.limit, self.counts + other.counts, self.total + other.total, lost)._prune()

    def _prune(self) -> "WordCounts":
        if len(self.counts) <= self.limit:
            return self
        ranked = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        lost = self.most_lost + ranked[self.limit][1]
        return WordCounts(self.limit, Counter(dict(ranked[: self.limit])), self.total, lost)


@dataclass(frozen=True)
class Leaning:
    """A word with its counts on both sides; ``log_odds`` and ``z`` are above 0 if kept rows favour it."""

    word: str
    kept: int
    dropped: int
    log_odds: float
    z: float


def find_leanings(kept: WordCounts, dropped: WordCounts, most: int) -> list[Leaning]:
    """Return up to ``most`` words over-represented in kept and as many in dropped, by falling z.

    Words are ranked by the z score of Monroe et al. 2008, so that a rare word does not rank high by chance.
    """
    words = sorted(kept.counts | dropped.counts)
    if not kept.total or not dropped.total:
        return []
    kept_V = np.array([kept.counts[word] for word in words])
    dropped_V = np.array([dropped.counts[word] for word in words])
    lean_V, z_V = log_odds(kept_V, dropped_V)
    order = np.argsort(-z_V, kind="stable")
    chosen = [v for v in order[:most] if z_V[v] > 0] + [v for v in order[-most:] if z_V[v] < 0]
    return [
        Leaning(words[v], int(kept_V[v]), int(dropped_V[v]), float(lean_V[v]), float(z_V[v])) for v in chosen
    ]
