"""The views of a picture that an index of test sets holds: parts of it, and its mirror."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from raycomp.core.copies import THUMBNAIL, list_boxes
from raycomp.core.pictures import hash_view
from raycomp.models.images import shrink

MIRROR = "mirror"


class View(NamedTuple):
    """A part of a picture."""

    name: str
    hash: int
    thumbnail: np.ndarray
    """uint8 [256]."""


def make_thumbnail(image: Image.Image) -> np.ndarray:
    """Return an RGB picture as 16 x 16 grey pixels, uint8 [256]."""
    side = THUMBNAIL, THUMBNAIL
    small = image.resize(side, Image.Resampling.BOX, reducing_gap=2.0).convert("L")
    return np.asarray(small, np.uint8).reshape(-1)


def list_views(image: Image.Image) -> Iterator[View]:
    """Yield the views of an RGB picture: the whole, its parts, and its mirror."""
    for name, (left, top, right, bottom) in list_boxes().items():
        sides = left * image.width, top * image.height, right * image.width, bottom * image.height
        x, y, end_x, end_y = map(round, sides)
        part = image if name == "whole" else image.crop((x, y, end_x, end_y))
        yield _view(name, part)
    yield _view(MIRROR, ImageOps.mirror(image))


def _view(name: str, image: Image.Image) -> View:
    return View(name, hash_view(shrink(image)), make_thumbnail(image))
