"""Choice of a caption's valid negatives: the hardest, operations in turn; fair comparisons."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from raycomp.table import group_by
from raycomp.words import ADD, RELATION

LOW_SIMILARITY = "low_similarity"
"""Reason of rejection: an ADD left the neighbourhood of its input."""


class Candidate(NamedTuple):
    """A valid negative that may be chosen."""

    text: str
    op: str
    """Operations in the order applied, joined with "+"."""
    kind: str
    calls: int
    concepts: tuple[str, ...]
    similarity: float | None = None
    """cos(g(caption), g(text)); none without ranking."""
    image_drop: float | None = None
    """s(I, caption) - s(I, text); none if the image's embedding is not available."""
    unigram: float | None = None
    bigram: float | None = None
    language_model: float | None = None
    """log p(caption) - log p(text) of text-only judges, in nats; none if not judged."""
    phrase_rank: float | None = None
    phrase_rate: float | None = None
    suspect: bool | None = None
    """The share of photos that its new phrase fits better, the share of captions that mention the phrase, and
    whether it may be true of the photo; none if not screened."""
    inputs: tuple[str, ...] = ()
    """The input of each call: first the caption, or of an ADD matched in length a true part of it; then the
    output of the call before."""


def list_additions(candidate: Candidate) -> list[tuple[str, str]]:
    """Return each ADD's own input and output: base and augmented text of the ADD condition.

    With several calls an ADD is compared with its own input, not with the caption
    (arXiv:2510.26302, Theorem 9 and Eq. 83: base and augmented text share a z_inv).
    """
    outputs = (*candidate.inputs[1:], candidate.text)
    calls = zip(candidate.op.split("+"), candidate.inputs, outputs, strict=True)
    return [(before, after) for op, before, after in calls if op == ADD]


def choose_hardest(candidates: Sequence[Candidate], per_calls: int) -> list[Candidate]:
    """Return at most ``per_calls`` candidates of each number of calls, by calls, in the order chosen.

    Within each (calls, op) the candidates most similar to the caption come first; equal or unranked ones stay
    in order of proposal. Then the sequences of operations take turns, the hardest first (Algorithm 1 ranks by
    g*). A text that fewer calls also give is not a negative of more calls.
    """
    seen: set[str] = set()
    chosen = []
    by_calls = sorted(candidates, key=lambda candidate: candidate.calls)
    for _, group in groupby(by_calls, key=lambda candidate: candidate.calls):
        new: dict[str, Candidate] = {}
        for candidate in group:
            if candidate.text not in seen:
                new.setdefault(candidate.text, candidate)
        seen.update(new)
        chosen += _take_turns(list(new.values()))[:per_calls]
    return chosen


def _take_turns(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order candidates so that every op's hardest come before any op's second."""
    by_op = group_by(sorted(candidates, key=_by_hardness), lambda candidate: candidate.op)
    turns = [(turn, _by_hardness(c), c) for group in by_op.values() for turn, c in enumerate(group)]
    return [candidate for *_, candidate in sorted(turns, key=lambda entry: entry[:2])]


class Comparison(NamedTuple):
    """Three ways to spend the same two operations on one caption, each with two texts: see
    ``schema.COMPARISON_TYPE``."""

    op: str
    one_call: tuple[str, str]
    two_calls: tuple[str, str]
    independent: tuple[str, str]


def compare_calls(candidates: Sequence[Candidate]) -> Comparison | None:
    """Return the comparison of the hardest two-call candidate that allows one, None if none does.

    It needs both of that candidate's edits as valid candidates of one call, two texts of one call of the same
    two operations, and a second text of two calls of these operations, in any order.
    """
    singles = [candidate for candidate in candidates if candidate.calls == 1]
    alone = {(single.op, single.concepts): single.text for single in reversed(singles)}
    ranked = sorted(singles, key=_by_hardness)
    doubles = sorted((candidate for candidate in candidates if candidate.calls == 2), key=_by_hardness)
    for double in doubles:
        first, second = double.op.split("+")
        alike = (one.text for one in doubles if sorted(one.op.split("+")) == sorted((first, second)))
        other = next((text for text in alike if text != double.text), None)
        # An added object or attribute is one concept; all other edits name two.
        cut = 1 if first == ADD and not double.kind.startswith(RELATION) else 2
        parts = (first, double.concepts[:cut]), (second, double.concepts[cut:])
        if not all(part in alone for part in parts):
            continue
        hardest = [next((c.text for c in ranked if c.op == first), "")]
        hardest += [c.text for c in ranked if c.op == second and c.text != hardest[0]][:1]
        if len(hardest) == 2 and other is not None:
            independent = alone[parts[0]], alone[parts[1]]
            return Comparison(double.op, (hardest[0], hardest[1]), (double.text, other), independent)
    return None


def _by_hardness(candidate: Candidate) -> float:
    return -(candidate.similarity or 0.0)
