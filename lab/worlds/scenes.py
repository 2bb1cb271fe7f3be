"""Scenes of two or three coloured shapes, and the claims that are true of them.

Positions are fractions of the picture's side, x to the right and y down.
"""

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SHAPES = ("circle", "square", "triangle", "star", "heart", "moon", "donut", "fish")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown")
SIZES = ("small", "large")
LEFT, RIGHT, ABOVE, BELOW = "to the left of", "to the right of", "above", "below"
# Direction of the first thing as seen from the second.
DIRECTIONS = {LEFT: (-1, 0), RIGHT: (1, 0), ABOVE: (0, -1), BELOW: (0, 1)}
RELATIONS = tuple(DIRECTIONS)
OPPOSITE = {LEFT: RIGHT, RIGHT: LEFT, ABOVE: BELOW, BELOW: ABOVE}
NUM_BACKGROUNDS = 6
Pairs = Collection[tuple[str, str]]
"""Colour and shape of every thing that may occur; None means all."""
ALL_PAIRS = frozenset(itertools.product(COLOURS, SHAPES))
# Two diagonals of the square of colours and shapes, spaced so that no two colours lack the same shapes.
_DIAGONALS = (0, 3)

RADIUS = {"small": 0.140, "large": 0.208}
RADIUS_JITTER = 0.004
DISTANCE = (0.45, 0.47)
ACROSS = 0.012
MARGIN = 0.02
# Position of the picture's content in the free space, 0 to 1 on each axis.
SHIFT = (0.46, 0.54)
# A relation is false only where the offset along its direction is below this.
CLEARLY = 0.2


@dataclass(frozen=True)
class Thing:
    """One shape; ``size`` is None if a caption does not name it (never in a scene)."""

    size: str | None
    colour: str
    shape: str

    def __post_init__(self) -> None:
        _check_word("size", self.size, (None, *SIZES))
        _check_word("colour", self.colour, COLOURS)
        _check_word("shape", self.shape, SHAPES)


@dataclass(frozen=True)
class Claim:
    """The content of a caption: ``things[i]`` is in ``relations[i]`` to ``things[i + 1]``.

    Two or three things. With three, the two relations are on different axes, so that the chain is a corner
    and never folds back on itself.
    """

    things: tuple[Thing, ...]
    relations: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.things) not in (2, 3) or len(self.relations) != len(self.things) - 1:
            raise ValueError(
                f"things and relations: must be 2 and 1 or 3 and 2, are {len(self.things)} "
                f"and {len(self.relations)}"
            )
        for relation in self.relations:
            _check_word("relation", relation, RELATIONS)
        if len(self.relations) == 2 and self.relations[1] not in perpendicular(self.relations[0]):
            raise ValueError(f"relations={self.relations}: the second must be on the other axis")


@dataclass(frozen=True)
class Scene(Claim):
    """A claim with everything that a picture needs."""

    background: int
    """Index of the background, 0 to NUM_BACKGROUNDS - 1."""
    jitter: int
    """Seed of the small differences in place and size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(thing.size is None for thing in self.things):
            raise ValueError("size=None: must be one of small, large in a scene")
        if not 0 <= self.background < NUM_BACKGROUNDS:
            raise ValueError(f"background={self.background}: must be 0 to {NUM_BACKGROUNDS - 1}")


def _check_word(name: str, value: str | None, words: tuple[str | None, ...]) -> None:
    if value not in words:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(str, words))}")


def perpendicular(relation: str) -> tuple[str, str]:
    """Return the two relations on the other axis."""
    return (ABOVE, BELOW) if relation in (LEFT, RIGHT) else (LEFT, RIGHT)


def draw_scene(rng: np.random.Generator, pairs: Pairs | None = None) -> Scene:
    """Draw a scene: two or three things, no two of them alike in both colour and shape.

    All of them are of ``pairs``, at least three of (colour, shape); none = all pairs.
    """
    kinds: list[tuple[str, str]] = []
    for _ in range(rng.integers(2, 4)):
        kind = pick(rng, COLOURS), pick(rng, SHAPES)
        while kind in kinds or not (pairs is None or kind in pairs):
            kind = pick(rng, COLOURS), pick(rng, SHAPES)
        kinds.append(kind)
    relations: tuple[str, ...] = (pick(rng, RELATIONS),)
    if len(kinds) == 3:
        relations += (pick(rng, perpendicular(relations[0])),)
    return show(Claim(tuple(Thing(None, *kind) for kind in kinds), relations), rng)


def show(claim: Claim, rng: np.random.Generator) -> Scene:
    """Draw a scene that shows exactly ``claim``; sizes that it does not name are also drawn."""
    sized = (dataclasses.replace(thing, size=thing.size or pick(rng, SIZES)) for thing in claim.things)
    return Scene(
        things=tuple(sized),
        relations=claim.relations,
        background=int(rng.integers(NUM_BACKGROUNDS)),
        jitter=int(rng.integers(2**31)),
    )


def pick(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Draw one of the words."""
    return words[int(rng.integers(len(words)))]


def place(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Return centres (T, 2) and radii (T,) of the things: inside the picture, none overlapping."""
    rng = np.random.default_rng(scene.jitter)
    # Three of everything are drawn, so that an added thing leaves the others unchanged.
    distances, across = rng.uniform(*DISTANCE, 2), rng.uniform(-ACROSS, ACROSS, 2)
    jitter, shift = rng.uniform(-RADIUS_JITTER, RADIUS_JITTER, 3), rng.uniform(*SHIFT, 2)
    centres = [np.zeros(2)]
    for i, relation in enumerate(scene.relations):
        direction = np.array(DIRECTIONS[relation])
        centres.append(centres[-1] - direction * distances[i] + direction[::-1] * across[i])
    radii = np.array([RADIUS[str(thing.size)] + jitter[i] for i, thing in enumerate(scene.things)])
    low = (np.array(centres) - radii[:, None]).min(axis=0) - MARGIN
    high = (np.array(centres) + radii[:, None]).max(axis=0) + MARGIN
    return np.array(centres) - low + shift * (1 - (high - low)), radii


def stands(first: np.ndarray, relation: str, second: np.ndarray) -> bool:
    """Return whether ``relation`` holds between a thing at ``first`` and one at ``second``.

    The generous reading: of two things on a diagonal both relations are true.
    """
    return bool((first - second) @ np.array(DIRECTIONS[relation]) >= CLEARLY)


def is_true(claim: Claim, scene: Scene) -> bool:
    """Return whether the scene holds different things that match ``claim`` and its relations."""
    choices = itertools.permutations(range(len(scene.things)), len(claim.things))
    return any(_fit(claim, scene, chosen) and _stand(claim, scene, chosen) for chosen in choices)


def _fit(claim: Claim, scene: Scene, chosen: tuple[int, ...]) -> bool:
    return all(_fits(said, scene.things[i]) for said, i in zip(claim.things, chosen, strict=True))


def _stand(claim: Claim, scene: Scene, chosen: tuple[int, ...]) -> bool:
    centres, _ = place(scene)
    links = zip(chosen, claim.relations, chosen[1:], strict=False)
    return all(stands(centres[i], relation, centres[j]) for i, relation, j in links)


def _fits(said: Thing, thing: Thing) -> bool:
    return (said.colour, said.shape) == (thing.colour, thing.shape) and said.size in (None, thing.size)


def scene_to_dict(scene: Scene) -> dict[str, Any]:
    """Return the scene as plain values for json."""
    return dataclasses.asdict(scene)


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
