"""The drawn world, for tests of the product: scenes, captions and test sets whose answers are known."""

from lab.worlds.benchmark import WORLD, world
from lab.worlds.captions import TEMPLATES, claim_of, describe, phrases, say
from lab.worlds.samples import world_shards
from lab.worlds.scenes import (
    COLOURS,
    OPPOSITE,
    RELATIONS,
    SHAPES,
    SIZES,
    Claim,
    Scene,
    draw_scene,
    is_true,
    place,
    stands,
)
from lab.worlds.test_set import CATEGORIES
from lab.worlds.write_test_set import write_test_set

__all__ = [
    "CATEGORIES",
    "COLOURS",
    "OPPOSITE",
    "RELATIONS",
    "SHAPES",
    "SIZES",
    "TEMPLATES",
    "WORLD",
    "Claim",
    "Scene",
    "claim_of",
    "describe",
    "draw_scene",
    "is_true",
    "phrases",
    "place",
    "say",
    "stands",
    "world",
    "world_shards",
    "write_test_set",
]
