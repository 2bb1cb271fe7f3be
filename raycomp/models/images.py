"""Image bytes to uint8 pixels, exactly as open_clip prepares them for evaluation, without normalisation.

Normalisation stays with the scorer: a fixed-size uint8 picture is a quarter of the bytes to move.
"""

import io
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from raycomp.schema import CORRUPT_IMAGE, IMAGE_TOO_LARGE

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
# What Pillow's decoders raise on broken bytes.
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    TypeError,
    LookupError,
    OverflowError,
    struct.error,
    zlib.error,
)
# EXIF orientations whose upright picture is as wide as the stored one is high.
_ON_THEIR_SIDE = (5, 6, 7, 8)


class ImageFault(ValueError):
    """An image that cannot be used; ``status`` says why (a status of the schema)."""

    def __init__(self, status: str, why: str):
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class ImageSpec:
    """How a model wants its pictures: open_clip's preprocessing config, made hashable."""

    height: int
    width: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0

    @property
    def num_values(self) -> int:
        """Values of one picture, height x width x 3."""
        return self.height * self.width * 3


def decode_image(data: bytes, max_pixels: int) -> Image.Image:
    """Decode to upright RGB; the first frame of an animation, 16-bit grey scaled to 8 bits.

    CMYK, palette, alpha and grey become RGB as open_clip's loader does it (``convert("RGB")``: alpha is
    dropped). EXIF orientation is applied, a broken EXIF block ignored. Raises ImageFault: too large (by the
    declared size, before any pixel is decoded) or corrupt.
    """
    return _decode(data, max_pixels)[0]


def _decode(
    data: bytes, max_pixels: int, least_side: int | None = None
) -> tuple[Image.Image, tuple[int, int]]:
    """Return the picture, and (width, height) of the upright original.

    With ``least_side`` a JPEG comes out at 1/2, 1/4 or 1/8 of its size where both sides stay at least that.
    """
    # Pillow's own limit warns before ours applies; ours is checked on the declared size just below.
    Image.MAX_IMAGE_PIXELS = None
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > max_pixels:
            raise ImageFault(IMAGE_TOO_LARGE, f"{width} x {height} pixels, more than {max_pixels}")
        if least_side is not None:
            image.draft(None, (least_side, least_side))  # nothing happens in another format
        image.load()
        orientation = _read_orientation(image)
        size = (height, width) if orientation in _ON_THEIR_SIDE else (width, height)
        return _turn_upright(_to_rgb(image), orientation), size
    except ImageFault:
        raise
    except (UnidentifiedImageError, *_BROKEN) as error:
        raise ImageFault(CORRUPT_IMAGE, f"{type(error).__name__}: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow clips wide grey to 255; its upper byte is the picture.
        wide = np.asarray(image).astype(np.int64)
        return Image.fromarray(np.clip(wide >> 8, 0, 255).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def _read_orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(0x0112, 1)
    except _BROKEN:
        return 1


def _turn_upright(rgb: Image.Image, orientation: int) -> Image.Image:
    if orientation in (None, 1):
        return rgb
    exif = Image.Exif()
    exif[0x0112] = orientation
    rgb.info = {"exif": exif.tobytes()}
    return ImageOps.exif_transpose(rgb)


@lru_cache(maxsize=4)
def _resizer(spec: ImageSpec) -> Any:
    import open_clip
    from torchvision.transforms import Compose

    transform = open_clip.image_transform(
        (spec.height, spec.width),
        is_train=False,
        mean=spec.mean,
        std=spec.std,
        resize_mode=spec.resize_mode,
        interpolation=spec.interpolation,
        fill_color=spec.fill_color,
    )
    return Compose(transform.transforms[:-2])  # without MaybeToTensor and Normalize


def prepare_image(
    data: bytes, spec: ImageSpec, max_pixels: int, fast: bool = False
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return (pixels uint8 [height, width, 3], (width, height) of the upright original).

    Normalised as ``(pixels / 255 - mean) / std`` this equals open_clip's evaluation transform of the RGB
    image to the bit; with ``fast`` a large JPEG is decoded at a reduced scale and comes close. Raises
    ImageFault.
    """
    image, (width, height) = _decode(data, max_pixels, max(spec.height, spec.width) if fast else None)
    # A thin picture resized by its shorter side grows by the square of its shape.
    enlarged = spec.height * spec.width * max(width, height) // min(width, height)
    if spec.resize_mode == "shortest" and enlarged > max_pixels:
        raise ImageFault(IMAGE_TOO_LARGE, f"{width} x {height} would become {enlarged} pixels on the way")
    return np.asarray(_resizer(spec)(image), dtype=np.uint8), (width, height)
