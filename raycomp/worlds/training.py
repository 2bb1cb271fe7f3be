"""Negatives to train on, of what a caption says: who writes them sees the caption and not the picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from raycomp.words import ADD, ATTRIBUTE
from raycomp.worlds.captions import TEMPLATES, read, say
from raycomp.worlds.exam import CATEGORIES
from raycomp.worlds.faults import TAILS
from raycomp.worlds.negatives import Negative, hard_negatives
from raycomp.worlds.pairs import Pairs
from raycomp.worlds.scenes import Claim, Scene, is_true, show

Category = tuple[str, str]
# A size that a caption does not name cannot be wrong for who has only the caption.
TAUGHT: tuple[Category, ...] = tuple(one for one in CATEGORIES if one != (ADD, ATTRIBUTE))


@dataclass(frozen=True)
class Said:
    """A caption taken apart."""

    claim: Claim
    template: int
    tail: str
    """Words behind the claim that say nothing of a picture."""


@dataclass(frozen=True)
class Lesson:
    """A negative of a caption, by one edit or by one after another."""

    text: str
    """With the caption's tail."""
    edits: tuple[Category, ...]
    """Operation and kind of each edit; of two they differ."""
    scene: Scene
    """One of which it is true."""
    is_shown: bool
    """Whether the caption is false of ``scene``: a picture of it is a negative, too."""


def take_apart(caption: str) -> Said:
    """Return what a caption of the world says, and how. Raises ValueError for any other text."""
    tail = next((tail for tail in TAILS if caption.endswith(tail)), "")
    text = caption.removesuffix(tail)
    claim = read(text)
    if claim is None:
        raise ValueError(f"{caption!r}: is no caption of the little world")
    template = next(i for i in range(len(TEMPLATES)) if say(claim, i) == text)
    return Said(claim, template, tail)


def draw_lessons(
    caption: str, per_category: int, num_twice: int, rng: np.random.Generator, pairs: Pairs | None = None
) -> tuple[list[Lesson], list[Lesson]]:
    """Draw negatives of one edit, up to ``per_category`` of each, and up to ``num_twice`` of two edits.

    All are false of what the caption says, and name ``pairs`` alone. The second edit is of another operation
    or kind than the first, which is one of the former negatives; first edits take turns by category, and all
    categories of second edits are as likely. Raises ValueError as ``take_apart``.
    """
    said = take_apart(caption)
    scene = show(said.claim, rng)
    negatives = _by_category(hard_negatives(scene, said.template, pairs))
    firsts = [_draw(negatives[category], per_category, rng) for category in negatives]
    singles = [first for some in firsts for first in some]
    once = [_teach(said, (_category(first),), first) for first in singles]
    # The first of every category, the second of every category, and so on.
    turns = [some[i] for i in range(per_category) for some in firsts if i < len(some)]
    twice = [lesson for first in turns[:num_twice] for lesson in _edit_again(said, scene, first, rng, pairs)]
    return once, twice


def _by_category(negatives: Sequence[Negative]) -> dict[Category, list[Negative]]:
    found = {category: [one for one in negatives if _category(one) == category] for category in TAUGHT}
    return {category: some for category, some in found.items() if some}


def _category(negative: Negative) -> Category:
    return negative.operation, negative.kind


def _draw(some: Sequence[Negative], most: int, rng: np.random.Generator) -> list[Negative]:
    return [some[i] for i in rng.permutation(len(some))[:most]]


def _edit_again(
    said: Said, scene: Scene, first: Negative, rng: np.random.Generator, pairs: Pairs | None
) -> Iterator[Lesson]:
    """Yield one negative that edits ``first`` once more, if there is any."""
    further = _by_category(hard_negatives(first.scene, said.template, pairs))
    categories = [category for category in further if category != _category(first)]
    for i in rng.permutation(len(categories)):
        for second in _draw(further[categories[i]], len(further[categories[i]]), rng):
            claim = read(second.caption)
            if claim is not None and not is_true(claim, scene):
                yield _teach(said, (_category(first), categories[i]), second)
                return


def _teach(said: Said, edits: tuple[Category, ...], last: Negative) -> Lesson:
    return Lesson(last.caption + said.tail, edits, last.scene, not is_true(said.claim, last.scene))
