"""Training negatives of the claim in a caption: they are written from the caption, without the picture."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lab.worlds.captions import TEMPLATES, read, say
from lab.worlds.faults import TAILS
from lab.worlds.negatives import hard_negatives
from lab.worlds.scenes import Claim, show
from lab.worlds.test_set import CATEGORIES
from raycomp.words import ADD, ATTRIBUTE

# A size that a caption does not name cannot be wrong for a writer who has only the caption.
TAUGHT = tuple(one for one in CATEGORIES if one != (ADD, ATTRIBUTE))


@dataclass(frozen=True)
class Said:
    """A parsed caption."""

    claim: Claim
    template: int
    tail: str
    """Words after the claim that do not describe a picture."""


class Lesson(NamedTuple):
    """A negative of a caption, by one edit."""

    text: str
    """With the caption's tail."""
    operation: str
    kind: str


def take_apart(caption: str) -> Said:
    """Return the claim of a caption of the world, and its wording. Raises ValueError for any other text."""
    tail = next((tail for tail in TAILS if caption.endswith(tail)), "")
    text = caption.removesuffix(tail)
    claim = read(text)
    if claim is None:
        raise ValueError(f"{caption!r}: not a caption of the little world")
    template = next(i for i in range(len(TEMPLATES)) if say(claim, i) == text)
    return Said(claim, template, tail)


def draw_lessons(caption: str, rng: np.random.Generator) -> list[Lesson]:
    """Draw one negative of each category that a caption has, all false given its claim.

    Raises ValueError as ``take_apart``.
    """
    said, lessons = take_apart(caption), []
    negatives = hard_negatives(show(said.claim, rng), said.template)
    for operation, kind in TAUGHT:
        some = [one.caption for one in negatives if (one.operation, one.kind) == (operation, kind)]
        if some:
            drawn = some[rng.permutation(len(some))[0]]
            lessons.append(Lesson(drawn + said.tail, operation, kind))
    return lessons
