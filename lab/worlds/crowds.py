"""Crowds: pictures of one to six things whose faults cannot be seen in their captions.

A caption is drawn first. A faulty pair then gets a picture that lacks or changes a part of the caption's
claim. So captions of sound and faulty pairs have one distribution, at every length and template: a score that
finds the fault uses the picture. Scenes of two or three things (``scenes``) change the caption instead.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from lab.words import NOUN, PARTICIPLE
from lab.worlds.captions import say_thing
from lab.worlds.faults import NO_FAULT
from lab.worlds.render import draw_background, draw_icon
from lab.worlds.scenes import COLOURS, DIRECTIONS, NUM_BACKGROUNDS, RELATIONS, SHAPES, Thing, pick

MOST_THINGS = 6
GRID = 3
"""Grid squares per side of the picture; things, logo and stamp have one each."""
SIDE = 96
STAMPS = ("crown", "key", "bell", "leaf")
_LOGOS = {NOUN: ", with a logo", PARTICIPLE: ", branded"}
CURATED_TEMPLATES = ("{}", "a picture of {}", "there is {}")
"""For the pairs that are selected from."""
SCORER_TEMPLATES = ("{} on plain paper", "the drawing shows {}", "a scene with {}", "look at {}")
"""For the pairs that a scorer is trained on."""
JUNK = ("photo", "hd", "new", "sale", "best", "free", "4k", "wallpaper", "stock", "cheap", "2024", "download")
"""Words that a scorer is trained on in captions and in no picture."""

WRONG_OBJECT, PHANTOM_OBJECT, WRONG_ATTRIBUTE, WRONG_RELATION, MISSING_STAMP = KINDS = (
    "wrong_object",
    "phantom_object",
    "wrong_attribute",
    "wrong_relation",
    "missing_stamp",
)
"""Faults of a picture that its caption does not show."""
Cell = tuple[int, int]


@dataclass(frozen=True)
class Crowd:
    """The content of a picture or a caption: things, the relation of the first to the second, marks."""

    things: tuple[Thing, ...]
    """Without sizes; no two are equal. A caption names 1 to 6; a picture may lack one of them."""
    relation: str | None
    """One of RELATIONS; none with fewer than two things."""
    logo: bool = False
    stamp: str | None = None
    """Of STAMPS."""


def draw_crowd(rng: np.random.Generator, least: int = 1, logo: float = 0.0, stamp: float = 0.0) -> Crowd:
    """Draw the content of a caption: every number of things from ``least`` to 6 is equally likely.

    ``logo`` and ``stamp`` are their probabilities.
    """
    kinds: list[tuple[str, str]] = []
    num = int(rng.integers(least, MOST_THINGS + 1))
    while len(kinds) < num:
        kind = pick(rng, COLOURS), pick(rng, SHAPES)
        if kind not in kinds:
            kinds.append(kind)
    relation = pick(rng, RELATIONS)
    return Crowd(
        things=tuple(Thing(None, *kind) for kind in kinds),
        relation=relation if num > 1 else None,
        logo=bool(rng.random() < logo),
        stamp=pick(rng, STAMPS) if rng.random() < stamp else None,
    )


def say_crowd(crowd: Crowd, template: str, logo: str = NOUN) -> str:
    """Return the caption: "there is a red star above a blue donut and a green moon, with a logo".

    ``logo``: NOUN or PARTICIPLE, the wording of a logo.
    """
    said = [say_thing(thing) for thing in crowd.things]
    if crowd.relation:
        said[:2] = [f"{said[0]} {crowd.relation} {said[1]}"]
    listed = " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
    tail = f", with a {crowd.stamp} stamp" if crowd.stamp else ""
    return template.format(listed) + tail + (_LOGOS[logo] if crowd.logo else "")


def least_things(kind: str) -> int:
    """Return the number of things that a caption needs for a fault of this kind."""
    return 2 if kind == WRONG_RELATION else 1


def spoil(crowd: Crowd, kind: str, rng: np.random.Generator) -> Crowd:
    """Return the content of a picture that differs from the caption of ``crowd`` in one point."""
    at = int(rng.integers(len(crowd.things)))
    if kind in (WRONG_OBJECT, WRONG_ATTRIBUTE):
        thing = crowd.things[at]
        changes = [
            dataclasses.replace(thing, **{name: word})
            for name, words in (("shape", SHAPES), ("colour", COLOURS))
            for word in words
            if (name == "shape") == (kind == WRONG_OBJECT)
        ]
        changes = [one for one in changes if one not in crowd.things]
        other = changes[rng.integers(len(changes))]
        return dataclasses.replace(crowd, things=(*crowd.things[:at], other, *crowd.things[at + 1 :]))
    if kind == PHANTOM_OBJECT:
        return dataclasses.replace(crowd, things=(*crowd.things[:at], *crowd.things[at + 1 :]))
    if kind == WRONG_RELATION:
        others = [relation for relation in RELATIONS if relation != crowd.relation]
        return dataclasses.replace(crowd, relation=others[rng.integers(len(others))])
    if kind == MISSING_STAMP:
        return dataclasses.replace(crowd, stamp=None)
    raise ValueError(f"kind={kind!r}: must be one of {', '.join(KINDS)}")


def show_crowd(crowd: Crowd, rng: np.random.Generator) -> np.ndarray:
    """Return a picture of a crowd, uint8 (SIDE, SIDE, 3); everything has a grid square of its own."""
    cells = [(x, y) for y in range(GRID) for x in range(GRID)]
    taken: list[Cell] = []
    if crowd.relation and len(crowd.things) > 1:
        taken = _place_pair(crowd.relation, cells, rng)
    free = [cell for cell in cells if cell not in taken]
    free = [free[i] for i in rng.permutation(len(free))]
    taken += free[: len(crowd.things) - len(taken)]
    free = [cell for cell in free if cell not in taken]
    picture = draw_background(int(rng.integers(NUM_BACKGROUNDS)), SIDE).copy()
    for thing, cell in zip(crowd.things, taken, strict=True):
        icon, shadow, reach = draw_icon(thing.shape, thing.colour, int(rng.integers(11, 14)))
        x, y = (place + int(rng.integers(-1, 2)) - reach for place in _middle(cell))
        picture.paste((52, 58, 92), (x + 1, y + 2), shadow)
        picture.paste(icon, (x, y), icon)
    for mark in filter(None, ("logo" if crowd.logo else None, crowd.stamp)):
        icon = _draw_mark(mark)
        x, y = (place - icon.width // 2 for place in _middle(free.pop()))
        picture.paste(icon, (x, y), icon)
    return np.asarray(picture)


def _place_pair(relation: str, cells: Sequence[Cell], rng: np.random.Generator) -> list[Cell]:
    """Return neighbouring grid squares, the first in the relation to the second."""
    step = DIRECTIONS[relation]
    pairs = [(cell, (cell[0] - step[0], cell[1] - step[1])) for cell in cells]
    pairs = [pair for pair in pairs if pair[1] in cells]
    return list(pairs[rng.integers(len(pairs))])


def _middle(cell: Cell) -> tuple[int, int]:
    return tuple(SIDE * (2 * place + 1) // (2 * GRID) for place in cell)  # type: ignore[return-value]


# In a square of half side 1, y down; all in dark grey, which no thing has.
_MARKS: Mapping[str, tuple[str, ...]] = {
    "logo": ("-1,-1 -.3,-1 .3,.3 .3,-1 1,-1 1,1 .3,1 -.3,-.3 -.3,1 -1,1",),
    "crown": ("-1,.8 -1,-.7 -.5,0 0,-.9 .5,0 1,-.7 1,.8",),
    "key": ("-1,-.6 -.2,-.6 -.2,-.2 1,-.2 1,.7 .6,.7 .6,.2 -.2,.2 -.2,.6 -1,.6",),
    "bell": ("-.2,-1 .2,-1 .7,0 1,.7 -1,.7 -.7,0", "-.2,.8 .2,.8 0,1"),
    "leaf": ("0,-1 .6,-.2 0,.5 -.6,-.2", "-.1,.4 .1,.4 .1,1 -.1,1"),
}


@lru_cache
def _draw_mark(name: str) -> Image.Image:
    radius, scale = 11, 4
    mask = Image.new("L", (2 * radius * scale,) * 2)
    for outline in _MARKS[name]:
        corners = [tuple(map(float, corner.split(","))) for corner in outline.split()]
        points = [((1 + x) * radius * scale, (1 + y) * radius * scale) for x, y in corners]
        ImageDraw.Draw(mask).polygon(points, 255)
    icon = Image.new("RGBA", mask.size, (60, 60, 66, 255))
    icon.putalpha(mask)
    return icon.resize((2 * radius,) * 2, Image.Resampling.BOX)


@dataclass(frozen=True)
class Pair:
    """A caption, and the content of its picture."""

    said: Crowd
    shown: Crowd
    fault: str
    """A kind, or "none"."""
    template: int
    caption: str


def draw_pair(
    rng: np.random.Generator,
    fault: str,
    templates: Sequence[str] = CURATED_TEMPLATES,
    *,
    least: int = 1,
    logo: float = 0.0,
    stamp: float = 0.0,
    name_logo: str = NOUN,
    junk: float = 0.0,
) -> Pair:
    """Draw a pair with a fault, or "none"; its caption does not depend on the fault.

    ``junk`` is the probability that two words of JUNK follow.
    """
    said = draw_crowd(rng, least, logo, stamp)
    template = int(rng.integers(len(templates)))
    words = [pick(rng, JUNK) for _ in range(2)] if rng.random() < junk else []
    caption = " ".join([say_crowd(said, templates[template], name_logo), *words])
    shown = said if fault == NO_FAULT else spoil(said, fault, rng)
    return Pair(said, shown, fault, template, caption)
