"""Which of a caption's valid negatives are kept: the hardest, operations taking turns."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple


class Candidate(NamedTuple):
    """A valid negative before it is chosen."""

    text: str
    op: str
    """Operations in the order applied, joined with "+"."""
    kind: str
    calls: int
    concepts: tuple[str, ...]
    similarity: float | None = None
    """cos(g(caption), g(text)); none where nothing ranked."""


def choose_hardest(candidates: Sequence[Candidate], per_calls: int) -> list[Candidate]:
    """Return at most ``per_calls`` candidates of each number of calls, by calls, in the order chosen.

    Within each (calls, op) the most similar to the caption come first, the earlier proposed where equal or
    not ranked; then the sequences of operations take turns, the hardest first (Algorithm 1 ranks by g*). What
    fewer calls give as well is no negative of more calls.
    """
    seen: set[str] = set()
    chosen = []
    by_calls = sorted(candidates, key=lambda c: c.calls)
    for _, group in groupby(by_calls, key=lambda c: c.calls):
        new = [candidate for candidate in _once(group) if candidate.text not in seen]
        seen.update(candidate.text for candidate in new)
        chosen += _take_turns(new)[:per_calls]
    return chosen


def _once(candidates: Iterable[Candidate]) -> list[Candidate]:
    return list({candidate.text: candidate for candidate in reversed(list(candidates))}.values())[::-1]


def _take_turns(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order candidates so that every op's hardest come before any op's second."""
    hardness = {candidate: -(candidate.similarity or 0.0) for candidate in candidates}
    by_op: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=hardness.get):
        by_op.setdefault(candidate.op, []).append(candidate)
    turns = [
        (turn, hardness[c], i, c) for i, group in enumerate(by_op.values()) for turn, c in enumerate(group)
    ]
    return [candidate for *_, candidate in sorted(turns, key=lambda entry: entry[:3])]
