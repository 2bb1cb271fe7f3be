"""Word counts that never grow past a bound, and the words that lean most to one of two sides."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from raycomp.core.metrics import log_odds


@dataclass(frozen=True)
class WordCounts:
    """Counts of the ``limit`` most common words.

    Exact, and the same in any order of merging, while no more than ``limit`` different words were met;
    after that ``most_lost`` > 0 says how much a count may lack at most.
    """

    limit: int
    counts: Counter[str]
    total: int
    """All words met, forgotten ones too."""
    most_lost: int = 0

    @classmethod
    def of(cls, limit: int, words: Iterable[str]) -> "WordCounts":
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
    """A word with its counts on both sides; ``log_odds`` and ``z`` are above 0 where it leans to kept."""

    word: str
    kept: int
    dropped: int
    log_odds: float
    z: float


def find_leanings(kept: WordCounts, dropped: WordCounts, most: int) -> list[Leaning]:
    """Return up to ``most`` words that lean to kept and as many that lean to dropped, by falling z.

    Words are ranked by the z score of Monroe et al. 2008, which keeps a rare word from winning by chance.
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
