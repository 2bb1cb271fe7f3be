"""Are all chains of two rule edits false, where two calls could turn a relation and exchange its sides?

Two things of one shape do not tell which is which: swap their colours, turn their relation, and the caption
says again what the scene shows. So every scene here has such a pair, some of them alike in colour as well.
"""

import dataclasses
import itertools

import numpy as np
import pytest
from test_edits import holds

from raycomp.language.changes import Case, State
from raycomp.language.concepts import Edit, Parsed
from raycomp.language.prompts import _steps
from raycomp.models.parser import load_lexicon
from raycomp.words import OPERATIONS
from tests.drawn import SIZES, TEMPLATES, Scene, describe, draw_scene
from tests.language.reading import parse

NUM_SCENES = 12
MANY = 100
PAIRS = ((0, 1), (1, -1), (0, -1))
ALIKE = ("shape", "colour", "both")


def every_pair(parsed: Parsed, ops: tuple[str, str]) -> list[tuple[Edit, Edit]]:
    """Return every chain of two calls: ``apply_calls`` takes one of the second ones by hash."""
    case = Case(parsed, load_lexicon(), 0, "")
    return [
        (first, second)
        for first, state in _steps(case, ops[0], State(), MANY)
        for second, _ in _steps(case, ops[1], state, MANY)
    ]


def make_alike(scene: Scene, turn: int) -> Scene:
    """Give one thing the shape, the colour or both of another of the scene, then the other size."""
    things = list(scene.things)
    first, second = PAIRS[turn % 3]
    if things[first] is things[second]:
        first, second = 0, 1
    one, alike = things[first], ALIKE[turn // 3 % 3]
    same = {name: getattr(one, name) for name in ("shape", "colour") if alike in (name, "both")}
    things[second] = dataclasses.replace(things[second], **same)
    if things[second].shape == one.shape and things[second].colour == one.colour:
        things[second] = dataclasses.replace(things[second], size=SIZES[one.size == SIZES[0]])
    return dataclasses.replace(scene, things=tuple(things))


@pytest.fixture(scope="module")
def world() -> list[tuple[Scene, Parsed]]:
    rng = np.random.default_rng(17)
    scenes = [make_alike(draw_scene(rng), i) for i in range(NUM_SCENES)]
    texts = [describe(scene, i % len(TEMPLATES)) for i, scene in enumerate(scenes)]
    return list(zip(scenes, parse(*texts), strict=True))


def test_no_chain_says_again_what_the_scene_shows(world):
    for ops in itertools.product(OPERATIONS, repeat=2):
        chains = [(scene, parsed, chain) for scene, parsed in world for chain in every_pair(parsed, ops)]
        true = [
            (parsed.text, *(edit.text for edit in chain))
            for scene, parsed, chain in chains
            if holds(chain[-1].text, scene) is not False
        ]
        assert true == []
        assert len(chains) > 4 * NUM_SCENES
