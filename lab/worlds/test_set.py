"""The little world's own benchmark: a scene, its caption, a paraphrase and one negative of each category."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lab.worlds.captions import TEMPLATES, claim_of, describe, say
from lab.worlds.negatives import Negative, hard_negatives
from lab.worlds.render import encode_jpeg, render
from lab.worlds.samples import SIDE
from lab.worlds.scenes import Pairs, Scene, draw_scene
from raycomp.words import ADD, ATTRIBUTE, OBJECT, RELATION, REPLACE, SWAP

CATEGORIES = (
    (SWAP, OBJECT),
    (SWAP, ATTRIBUTE),
    (REPLACE, OBJECT),
    (REPLACE, ATTRIBUTE),
    (REPLACE, RELATION),
    (ADD, OBJECT),
    (ADD, ATTRIBUTE),
)
"""Operation and kind of the difference between a negative and its caption."""


@dataclass(frozen=True)
class EvaluationScene:
    """A picture with its test captions."""

    scene: Scene
    caption: str
    """True of the scene."""
    paraphrase: str
    """The content of ``caption``, no more and no less, in another template: a hard positive."""
    negatives: tuple[Negative, ...]
    """False of the scene: one of each applicable category of CATEGORIES, in their order, in the caption's
    template. No ADD object with three things, ADD attribute only if the caption names no sizes."""

    @property
    def image(self) -> bytes:
        """The picture as JPEG, as in the world's shards."""
        return encode_jpeg(render(self.scene, SIDE))


def draw_test_set(
    num_scenes: int, seed: int, pairs: Pairs | None = None, some_of: Pairs | None = None
) -> Iterator[EvaluationScene]:
    """Yield scenes of the test set, each drawn only from ``seed`` and its position.

    ``pairs``: the (colour, shape) that things of scenes and of negatives may have; none = any. ``some_of``:
    each scene has at least one thing of these.
    """
    for position in range(num_scenes):
        rng = np.random.default_rng([seed, position])
        scene = draw_scene(rng, pairs)
        while some_of is not None and not any((t.colour, t.shape) in some_of for t in scene.things):
            scene = draw_scene(rng, pairs)
        template = int(rng.integers(len(TEMPLATES)))
        yield EvaluationScene(
            scene=scene,
            caption=describe(scene, template),
            paraphrase=say(claim_of(scene, template), _draw_other(template, rng)),
            negatives=tuple(_draw_negatives(hard_negatives(scene, template, pairs), rng)),
        )


def _draw_other(template: int, rng: np.random.Generator) -> int:
    """Draw another template, of those that express all of a claim and add nothing to it."""
    others = [i for i, one in enumerate(TEMPLATES) if i != template and one.names_sizes]
    return others[rng.integers(len(others))]


def _draw_negatives(negatives: list[Negative], rng: np.random.Generator) -> Iterator[Negative]:
    for category in CATEGORIES:
        some = [negative for negative in negatives if (negative.operation, negative.kind) == category]
        if some:
            yield some[rng.integers(len(some))]
