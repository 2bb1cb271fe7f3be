"""Multiple-choice questions about scenes; an answer is a text that is true of the scene.

The words of a question are in every answer: "a red star" against "a blue star" asks for a colour.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from lab.worlds.captions import name_thing, say_thing
from lab.worlds.scenes import COLOURS, RELATIONS, SHAPES, SIZES, Pairs, Scene, Thing

COLOUR, SHAPE, RELATION, SIZE, THERE = "colour", "shape", "relation", "size", "there"
ASKED = (COLOUR, SHAPE, RELATION, SIZE, THERE)
"""Of which colour is the only star? Of which shape the only red thing? How does a thing stand to the next
one? Is it small or large? Which of these is in the picture?"""
_NUM_THERE = 4


@dataclass(frozen=True)
class Question:
    """One of the candidates is true of the scene."""

    kind: str
    """The kind and the words of the question, without the answer: "colour star"."""
    candidates: tuple[str, ...]
    """In an order that is independent of the answer."""
    answer: str
    primitives: tuple[tuple[str, ...], ...]
    """The things of every candidate by name; they are equal if a relation is asked for, so that there
    compositions stay at chance."""


def draw_question(scene: Scene, asked: str, pairs: Pairs, rng: np.random.Generator) -> Question | None:
    """Draw a question of ASKED about a scene; None if the scene allows none.

    ``pairs``: the colours and shapes of things that a candidate may name.
    """
    if asked == RELATION:
        return _ask_relation(scene, rng)
    if asked == THERE:
        return _ask_there(scene, pairs, rng)
    if asked == SIZE:
        one = scene.things[rng.integers(len(scene.things))]
        name = name_thing(replace(one, size=None))
        return _choose(f"{SIZE} {name}", [replace(one, size=size) for size in SIZES], one)
    assert asked in (COLOUR, SHAPE), asked
    return _ask_word(scene, asked, rng)


def _ask_word(scene: Scene, asked: str, rng: np.random.Generator) -> Question | None:
    """Ask for the colour of a shape, or the shape of a colour, that only one thing has."""
    reported, words = (SHAPE, COLOURS) if asked == COLOUR else (COLOUR, SHAPES)
    counts = Counter(getattr(thing, reported) for thing in scene.things)
    alone = [replace(thing, size=None) for thing in scene.things if counts[getattr(thing, reported)] == 1]
    if not alone:
        return None
    right = alone[rng.integers(len(alone))]
    things = [replace(right, **{asked: word}) for word in words]
    return _choose(f"{asked} {getattr(right, reported)}", things, right)


def _choose(kind: str, things: list[Thing], right: Thing) -> Question:
    names = tuple((name_thing(thing),) for thing in things)
    return Question(kind, tuple(map(say_thing, things)), say_thing(right), names)


def _ask_relation(scene: Scene, rng: np.random.Generator) -> Question:
    place = int(rng.integers(len(scene.relations)))
    first, second = (replace(thing, size=None) for thing in scene.things[place : place + 2])
    texts = [f"{say_thing(first)} {relation} {say_thing(second)}" for relation in RELATIONS]
    names = (name_thing(first), name_thing(second))
    right = texts[RELATIONS.index(scene.relations[place])]
    return Question(f"{RELATION} {', '.join(names)}", tuple(texts), right, (names,) * len(texts))


def _ask_there(scene: Scene, pairs: Pairs, rng: np.random.Generator) -> Question | None:
    here = {(thing.colour, thing.shape) for thing in scene.things}
    away = sorted(set(pairs) - here)
    if len(away) < _NUM_THERE - 1:
        return None
    right = sorted(here)[rng.integers(len(here))]
    others = [away[i] for i in rng.choice(len(away), _NUM_THERE - 1, replace=False)]
    return _choose(THERE, [Thing(None, *pair) for pair in sorted([right, *others])], Thing(None, *right))
