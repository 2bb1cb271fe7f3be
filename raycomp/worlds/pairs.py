"""Which colours go with which shapes: a part of the world may hold some pairs back."""

from collections.abc import Collection
from itertools import product

from raycomp.worlds.scenes import COLOURS, SHAPES, Claim

Pairs = Collection[tuple[str, str]]
"""Colour and shape of every thing that may be there; None stands for all."""
ALL_PAIRS = frozenset(product(COLOURS, SHAPES))
# Two diagonals of the square of colours and shapes, so far apart that no two colours lack the same shapes.
_DIAGONALS = (0, 3)


def diagonal(step: int) -> frozenset[tuple[str, str]]:
    """Return 8 of the 64 pairs, one of every colour and one of every shape; 8 steps in turn give all 64."""
    num = len(SHAPES)
    return frozenset((colour, SHAPES[(i + step) % num]) for i, colour in enumerate(COLOURS))


def hold_out(turn: int = 0) -> frozenset[tuple[str, str]]:
    """Return 16 of the 64 pairs to hold back: two of every colour and two of every shape, others by turn."""
    return frozenset().union(*(diagonal(turn + step) for step in _DIAGONALS))


def is_within(claim: Claim, pairs: Pairs | None) -> bool:
    """Return whether all things of the claim, or scene, are of these pairs."""
    return pairs is None or all((thing.colour, thing.shape) in pairs for thing in claim.things)
