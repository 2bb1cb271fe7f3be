"""What a picture is like, from a small view of it: brightness, colour, sharpness, and a perceptual hash.

A view is the whole upright picture averaged to 32 x 32 pixels, uint8 [32, 32, 3], RGB.
"""

from typing import NamedTuple

import numpy as np

VIEW_SIDE = 32
HASH_BITS = 64
_LOW = 8
_LUMA = np.array([0.299, 0.587, 0.114])
# Every fourth row is enough for the variance, at a quarter of the time.
_ROW_STEP = 4


class Look(NamedTuple):
    """Measures of a picture; a perceptual hash is not a measure, so it stands apart."""

    brightness: float
    """Mean luma, 0 (black) to 1 (white)."""
    colourfulness: float
    """M^(3) of Hasler and Suesstrunk 2003, from 0 (grey); about 60 and more is vivid."""
    sharpness: float
    """Variance of the Laplacian of the green channel of the model's pixels, over every fourth row. A blurred
    picture has a small one."""


def measure_look(view: np.ndarray, pixels: np.ndarray) -> Look:
    """Return the measures of a picture from its view and its prepared pixels, uint8 [H, W, 3]."""
    red, green, blue = np.moveaxis(view.astype(np.float64), 2, 0)
    red_green, yellow_blue = red - green, (red + green) / 2 - blue
    spread = np.hypot(red_green.std(), yellow_blue.std())
    colour = spread + 0.3 * np.hypot(red_green.mean(), yellow_blue.mean())
    brightness = float((view @ _LUMA).mean() / 255)
    return Look(brightness, float(colour), measure_sharpness(pixels))


def measure_sharpness(pixels: np.ndarray) -> float:
    """Return the variance of the 4-neighbour Laplacian of green, uint8 [H, W, 3]; 0 below 3 x 3 pixels."""
    green = pixels[:, :, 1].astype(np.int16)
    above, row, below = (green[at : at + len(green) - 2 : _ROW_STEP] for at in (0, 1, 2))
    laplacian = row[:, :-2] + row[:, 2:] + above[:, 1:-1] + below[:, 1:-1] - 4 * row[:, 1:-1]
    return float(laplacian.var()) if laplacian.size else 0.0


def hash_view(view: np.ndarray) -> int:
    """Return the 64-bit perceptual hash of a view: which of its 8 x 8 lowest frequencies exceed their median.

    pHash as in the package imagehash (cosine transform of a 32 x 32 grey picture, row by row from the most
    significant bit), of an area average. Similar pictures differ in few bits; a picture of one colour has the
    hash of all others of one colour.
    """
    from scipy.fft import dctn  # commands that decode nothing do not need it

    low = dctn(np.rint(view @ _LUMA))[:_LOW, :_LOW].round(6)
    return int.from_bytes(np.packbits(low > np.median(low)).tobytes())
