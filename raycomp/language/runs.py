"""The words of two texts side by side, and what differs between their common ends."""

from collections.abc import Sequence
from typing import NamedTuple


class Word(NamedTuple):
    """A word of a text in its base form, characters [start, end), and its class where one is told."""

    base: str
    start: int
    end: int
    letter: str = ""


def find_bases(words: Sequence[Word]) -> list[str]:
    """Return what words are compared by."""
    return [word.base for word in words]


def measure_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return how many words are common at the beginning, and of the rest how many at the end."""
    most = min(len(old), len(new))
    first = next((i for i in range(most) if old[i] != new[i]), most)
    behind = next((i for i in range(most - first) if old[-1 - i] != new[-1 - i]), most - first)
    return first, behind


def cut_ends(old: Sequence[Word], new: Sequence[Word]) -> tuple[Sequence[Word], Sequence[Word]]:
    """Return what lies between the longest common beginning and, of the rest, the longest common end."""
    first, behind = measure_ends(find_bases(old), find_bases(new))
    return old[first : len(old) - behind], new[first : len(new) - behind]
