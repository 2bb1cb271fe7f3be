"""Pictures in memory, a Pillow image or an array, as the bytes of a file that ``images`` decodes."""

import io
from typing import Any

import numpy as np
from PIL import Image

from raycomp.models.images import ImageFault
from raycomp.words import CORRUPT_IMAGE, IMAGE_TOO_LARGE

_CHANNELS = (1, 3, 4)


def is_picture(value: Any) -> bool:
    """Whether ``encode_picture`` accepts a value."""
    return isinstance(value, Image.Image | np.ndarray)


def encode_picture(picture: Image.Image | np.ndarray, max_pixels: int) -> bytes:
    """Return a picture as PNG, with every pixel and its EXIF orientation.

    An array is uint8, [height, width] or [height, width, 1, 3 or 4], grey, RGB or RGBA. Raises ValueError for
    another array; ImageFault for a picture of more than ``max_pixels``, of none, or one that Pillow cannot
    load.
    """
    image = _from_array(picture, max_pixels) if isinstance(picture, np.ndarray) else picture
    _check_size(image.width, image.height, max_pixels)
    try:
        image.load()
        return _write_png(image)
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageFault(CORRUPT_IMAGE, f"{type(error).__name__}: {error}") from error


def _from_array(array: np.ndarray, max_pixels: int) -> Image.Image:
    is_colour = array.ndim == 3 and array.shape[2] in _CHANNELS
    if array.dtype != np.uint8 or not (array.ndim == 2 or is_colour):
        raise ValueError(
            f"{array.dtype} array of shape {array.shape}: must be uint8 [height, width] or "
            f"[height, width, 1, 3 or 4]"
        )
    _check_size(array.shape[1], array.shape[0], max_pixels)
    return Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise ImageFault(IMAGE_TOO_LARGE, f"{width} x {height}: more than {max_pixels} pixels")
    if not width * height:
        raise ImageFault(CORRUPT_IMAGE, f"{width} x {height}: has no pixels")


def _write_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    exif = image.info.get("exif") or b""
    try:
        image.save(buffer, "PNG", compress_level=1, exif=exif)
    except OSError:  # a mode that PNG does not support
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "PNG", compress_level=1, exif=exif)
    return buffer.getvalue()
