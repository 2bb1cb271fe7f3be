"""A little world with habits: usual colours of a shape, and usual places of one shape to another.

Captions of such a world have a language: the text alone shows which of a caption and a negative breaks
a habit. The test set has no habits (``test_set``), so that knowing them does not help there.
"""

import numpy as np

from lab.worlds.scenes import (
    ABOVE,
    BELOW,
    COLOURS,
    LEFT,
    RELATIONS,
    RIGHT,
    SHAPES,
    Claim,
    Scene,
    Thing,
    perpendicular,
    pick,
    show,
)

USUAL_COLOURS = 2
"""Usual colours of each shape; every colour is usual for as many shapes."""


def draw_usual_scene(rng: np.random.Generator, strength: float) -> Scene:
    """Draw a scene as ``draw_scene`` does, in which each colour and relation is a usual one with probability
    ``strength``, 0 to 1, else any.

    Usual colours of the i-th shape are the i-th and the next. Usually a shape is to the left of, or above,
    those that come later in ``SHAPES``.
    """
    kinds: list[tuple[str, str]] = []
    for _ in range(rng.integers(2, 4)):
        kind = _draw_kind(rng, strength)
        while kind in kinds:
            kind = _draw_kind(rng, strength)
        kinds.append(kind)
    relations: tuple[str, ...] = (_draw_relation(rng, strength, kinds[0][1], kinds[1][1], RELATIONS),)
    if len(kinds) == 3:
        others = perpendicular(relations[0])
        relations += (_draw_relation(rng, strength, kinds[1][1], kinds[2][1], others),)
    return show(Claim(tuple(Thing(None, *kind) for kind in kinds), relations), rng)


def _draw_kind(rng: np.random.Generator, strength: float) -> tuple[str, str]:
    shape = int(rng.integers(len(SHAPES)))
    if rng.random() < strength:
        return COLOURS[(shape + int(rng.integers(USUAL_COLOURS))) % len(COLOURS)], SHAPES[shape]
    return pick(rng, COLOURS), SHAPES[shape]


def _draw_relation(
    rng: np.random.Generator, strength: float, first: str, second: str, allowed: tuple[str, ...]
) -> str:
    usual = (LEFT, ABOVE) if SHAPES.index(first) < SHAPES.index(second) else (RIGHT, BELOW)
    if first != second and rng.random() < strength:
        return pick(rng, [one for one in allowed if one in usual])
    return pick(rng, allowed)
