"""Image bytes to uint8 pixels, exactly as open_clip prepares them for evaluation, without normalisation.

Normalisation is done by the scorer: a fixed-size uint8 picture is a quarter of the bytes to move.

A view is the whole upright picture averaged to 32 x 32 pixels, uint8 [32, 32, 3], RGB: its measures and its
perceptual hash stand at the end.
"""

import io
import math
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from raycomp.core.near import THUMBNAIL, list_boxes
from raycomp.models.resize import resize_picture
from raycomp.words import CORRUPT_IMAGE, IMAGE_TOO_LARGE

# open_clip's modes; its interpolation "random" is for training.
_MODES = {
    "interpolation": ("bicubic", "bilinear", "random"),
    "resize_mode": ("shortest", "longest", "squash"),
}
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
# What Pillow's decoders raise on damaged bytes.
DECODERS_FAIL = (
    *(OSError, SyntaxError, ValueError, EOFError, TypeError, LookupError, OverflowError, RuntimeError),
    *(struct.error, zlib.error),
)
# Pillow checks every size that it is about to allocate: of the picture, a frame, a canvas, a tile.
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError)
# An encoder writes about ten, and each takes the time of a whole picture. The limit is the one of
# libjpeg-turbo's own fuzzing.
_MOST_SCANS = 500
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
# The operation that makes a picture of each EXIF orientation upright; from 5 on it swaps width and height.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_THEIR_SIDE = 5
# Smallest and largest ratio of width to height of a random crop.
_CROP_RATIOS = (3 / 4, 4 / 3)
VIEW_SIDE = 32
_LOW = 8
_LUMA = np.array([0.299, 0.587, 0.114])
# Every fourth row is enough for the variance, at a quarter of the time.
_ROW_STEP = 4


class ImageFault(ValueError):
    """An image that cannot be used; ``status`` is the reason (a status of the schema)."""

    def __init__(self, status: str, why: str):
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class ImageSpec:
    """The image preprocessing of a model: open_clip's config, made hashable."""

    height: int
    width: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0

    def __post_init__(self) -> None:
        for name, known in _MODES.items():
            if (value := getattr(self, name)) not in known:
                said = f"{name}={value!r}: must be one of {', '.join(known)}"
                raise ValueError(f"the model's preprocess_cfg: {said}")
        for name, least in (("mean", -math.inf), ("std", 0)):
            numbers = [one for one in getattr(self, name) if isinstance(one, int | float)]
            if len(numbers) != 3 or not all(least < one < math.inf for one in numbers):
                said = f"{name}={getattr(self, name)}: must be three numbers" + " above 0" * (least == 0)
                raise ValueError(f"the model's preprocess_cfg: {said}")

    @property
    def num_values(self) -> int:
        """Values of one picture, height x width x 3."""
        return self.height * self.width * 3


def decode_image(data: bytes, max_pixels: int) -> Image.Image:
    """Decode to upright RGB; the first frame of an animation, 16-bit grey scaled to 8 bits.

    CMYK, palette, alpha and grey become RGB as in open_clip's loader (``convert("RGB")``: alpha is dropped).
    EXIF orientation is applied; a damaged EXIF block, or an orientation that is not a whole number from 1 to
    8, is ignored. Raises ImageFault: too large (by the declared size, before anything is allocated) or
    corrupt.
    """
    return _decode(data, max_pixels)[0]


def describe_image(data: bytes, max_pixels: int) -> tuple[str, bool]:
    """Return the format ("jpeg", "mpo", "png", ...), and whether decode_image gives open_clip's result.

    open_clip's loader neither applies EXIF orientation nor scales 16-bit grey. ``data`` must decode.
    """
    with _guard(max_pixels):
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        is_alike = not image.mode.startswith("I;16") and _read_orientation(image) == 1
        return str(image.format).lower(), is_alike


def encode_png(image: Image.Image) -> bytes:
    """Return the pixels of an RGB picture, and nothing else of it, as PNG."""
    buffer = io.BytesIO()
    Image.frombytes("RGB", image.size, image.tobytes()).save(buffer, "PNG")
    return buffer.getvalue()


class _Guard:
    """Makes Pillow refuse more than a number of pixels, without warnings, in all threads within.

    Pillow's limit is global to the process: threads with the same number share it, others wait.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside, self.limit = 0, 0
        self.undo = ExitStack()

    @contextmanager
    def __call__(self, max_pixels: int) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: not self.inside or self.limit == max_pixels)
            if not self.inside:
                self.limit, before = max_pixels, Image.MAX_IMAGE_PIXELS
                Image.MAX_IMAGE_PIXELS = max_pixels
                self.undo.callback(setattr, Image, "MAX_IMAGE_PIXELS", before)
                self.undo.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", Image.DecompressionBombWarning)
            self.inside += 1
        try:
            yield
        finally:
            with self.changed:
                self.inside -= 1
                if not self.inside:
                    self.undo.close()
                    self.changed.notify_all()


_guard = _Guard()


def _decode(
    data: bytes, max_pixels: int, least_side: int | None = None
) -> tuple[Image.Image, tuple[int, int]]:
    """Return the picture, and (width, height) of the upright original.

    With ``least_side`` a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if both sides stay at least that.
    """
    try:
        with _guard(max_pixels):
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = image.size
            if image.format in ("JPEG", "MPO"):
                _check_scans(data)
            if least_side is not None:
                image.draft(None, (least_side, least_side))  # has no effect in another format
            image.load()
            orientation = _read_orientation(image)
            size = (height, width) if orientation >= _ON_THEIR_SIDE else (width, height)
            if image.mode.startswith("I;16"):
                # Pillow clips 16-bit grey to 255; its upper byte is the picture.
                upper = np.clip(np.asarray(image) >> 8, 0, 255).astype(np.uint8)
                rgb = Image.fromarray(upper).convert("RGB")
            else:
                rgb = image if image.mode == "RGB" else image.convert("RGB")  # which would copy it
            return rgb.transpose(_TURNS[orientation]) if orientation in _TURNS else rgb, size
    except _TOO_LARGE as error:
        raise ImageFault(IMAGE_TOO_LARGE, f"more than {max_pixels} pixels: {error}") from error
    except (UnidentifiedImageError, *DECODERS_FAIL) as error:
        raise ImageFault(CORRUPT_IMAGE, f"{type(error).__name__}: {error}") from error


def _check_scans(data: bytes) -> None:
    """Raise ValueError where a JPEG has more scans than any encoder writes, found by its markers."""
    if data.count(bytes((0xFF, _START_OF_SCAN))) <= _MOST_SCANS:
        return
    count, place = 0, 0
    while (found := _JPEG_MARKER.search(data, place)) and found[0][1] != _END_OF_IMAGE:
        count += found[0][1] == _START_OF_SCAN
        place = found.end() + int.from_bytes(data[found.end() : found.end() + 2])
    if count > _MOST_SCANS:
        raise ValueError(f"{count} scans: must be at most {_MOST_SCANS}")


def _read_orientation(image: Image.Image) -> int:
    """Return 1 to 8; 1, upright, where there is no readable value."""
    try:
        found = image.getexif().get(0x0112, 1)
    except DECODERS_FAIL:
        return 1
    return found if type(found) is int and found in _TURNS else 1


def draw_crop(
    width: int, height: int, share: tuple[float, ...], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw (left, top, right, bottom) of a crop as torchvision's RandomResizedCrop.get_params does.

    ``share`` is the smallest and largest share of the area; aspect ratios are from 3:4 to 4:3, uniform in the
    logarithm. The first of ten draws that fits is used, else the centre of a picture that is too long.
    """
    low, high = _CROP_RATIOS
    for _ in range(10):
        area = width * height * rng.uniform(share[0], share[1])
        ratio = math.exp(rng.uniform(math.log(low), math.log(high)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(rng.integers(height - h + 1))
            left = int(rng.integers(width - w + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * high)), min(height, round(width / low))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def crop_image(
    data: bytes,
    spec: ImageSpec,
    max_pixels: int,
    share: tuple[float, ...],
    rng: np.random.Generator,
    fast: bool = False,
) -> np.ndarray:
    """Return a random crop of a picture as uint8 pixels [height, width, 3]; see ``draw_crop``.

    For the same crop this equals open_clip's training transform, which is bicubic for every model, to the
    bit. With ``fast`` a large JPEG is decoded at a reduced scale, never below what any crop needs, and pixels
    are approximate. Raises ImageFault.
    """
    least = math.ceil(max(spec.height, spec.width) / math.sqrt(share[0] * _CROP_RATIOS[0]))
    image, (width, height) = _decode(data, max_pixels, least if fast else None)
    left, top, right, bottom = draw_crop(width, height, share, rng)
    across, down = image.width / width, image.height / height
    box = round(left * across), round(top * down), round(right * across), round(bottom * down)
    with _guard(max_pixels):  # Pillow checks the size of crops, too
        cropped, size = image.crop(box), (spec.width, spec.height)
        return resize_picture(cropped, size, Image.Resampling.BICUBIC, (0, 0, *size))


def prepare_image(
    data: bytes,
    spec: ImageSpec,
    max_pixels: int,
    fast: bool = False,
    box: tuple[int, int, int, int] | None = None,
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return (pixels uint8 [height, width, 3], (width, height) of the upright original).

    Normalised as ``(pixels / 255 - mean) / std`` this equals open_clip's evaluation transform of the RGB
    image to the bit; with ``fast`` a large JPEG is decoded at a reduced scale and comes close. With ``box``
    (left, top, width, height) the picture is that part of it, black beyond its border. Raises ImageFault.
    """
    least_side = max(spec.height, spec.width) if fast and box is None else None
    image, size = _decode(data, max_pixels, least_side)
    if box is not None:
        left, top, across, down = box
        right, bottom = left + across, top + down
        if min(right, image.width) <= max(0, left) or min(bottom, image.height) <= max(0, top):
            raise ImageFault(CORRUPT_IMAGE, f"{image.width} x {image.height}: does not overlap the box {box}")
        if across * down > max_pixels:
            raise ImageFault(IMAGE_TOO_LARGE, f"the box {box}: has more than {max_pixels:,} pixels")
        with _guard(max_pixels):
            image = image.crop((left, top, right, bottom))
        size = image.size
    return _fit(image, size, spec, max_pixels), size


def prepare_viewed(
    data: bytes, spec: ImageSpec, max_pixels: int, fast: bool = False
) -> tuple[np.ndarray, tuple[int, int], np.ndarray]:
    """Return the result of ``prepare_image``, and the view of the whole picture (``core.near``)."""
    image, size = _decode(data, max_pixels, max(spec.height, spec.width) if fast else None)
    return _fit(image, size, spec, max_pixels), size, shrink(image)


def shrink(image: Image.Image) -> np.ndarray:
    """Return the view of an RGB picture, uint8 [32, 32, 3]: its average over a grid of equal areas."""
    side = VIEW_SIDE, VIEW_SIDE
    return np.asarray(image.resize(side, Image.Resampling.BOX, reducing_gap=2.0), dtype=np.uint8)


def _fit(rgb: Image.Image, whole: tuple[int, int], spec: ImageSpec, max_pixels: int) -> np.ndarray:
    """Resize and crop to the model's size as open_clip's evaluation transform does, to the bit.

    ``whole`` is (width, height) of the upright original. The margin around a smaller picture has the fill
    colour.
    """
    # A thin picture resized by its shorter side grows by the square of its aspect ratio.
    enlarged = spec.height * spec.width * max(whole) // min(whole)
    if spec.resize_mode == "shortest" and enlarged > max_pixels:
        said = f"{whole[0]} x {whole[1]} would become {enlarged} pixels when resized"
        raise ImageFault(IMAGE_TOO_LARGE, said)
    side = spec.height if spec.height == spec.width else None
    # open_clip's "random" is for training; where a shorter side must fit it always uses bicubic.
    is_bilinear = spec.interpolation == "bilinear" and (spec.resize_mode != "shortest" or side is not None)
    how = Image.Resampling.BILINEAR if is_bilinear else Image.Resampling.BICUBIC
    if spec.resize_mode == "squash":
        return resize_picture(rgb, (spec.width, spec.height), how, (0, 0, spec.width, spec.height))
    if spec.resize_mode == "shortest" and side is not None:
        longer = int(side * max(rgb.size) / min(rgb.size))
        size = (side, longer) if rgb.width <= rgb.height else (longer, side)
    else:
        ratios = rgb.height / spec.height, rgb.width / spec.width
        ratio = max(ratios) if spec.resize_mode == "longest" else min(ratios)
        size = round(rgb.width / ratio), round(rgb.height / ratio)
    if min(size) == 0:
        raise ImageFault(CORRUPT_IMAGE, f"{rgb.width} x {rgb.height}: too thin to be resized")
    across, down = max(0, spec.width - size[0]), max(0, spec.height - size[1])
    left, top = (round((size[0] + across - spec.width) / 2), round((size[1] + down - spec.height) / 2))
    box = left, top, left + spec.width, top + spec.height
    if not (across or down):
        return resize_picture(rgb, size, how, box)
    padded = Image.new("RGB", (size[0] + across, size[1] + down), (spec.fill_color,) * 3)
    padded.paste(rgb.resize(size, how), (across // 2, down // 2))
    return np.asarray(padded.crop(box), np.uint8)


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
    width, height = image.size
    for name, (left, top, right, bottom) in [*list_boxes().items(), ("mirror", (0, 0, 1, 1))]:
        if name == "mirror":
            part = ImageOps.mirror(image)
        elif name == "whole":
            part = image
        else:
            x, y, end_x, end_y = map(round, (left * width, top * height, right * width, bottom * height))
            part = image.crop((x, y, end_x, end_y))
        yield View(name, hash_view(shrink(part)), make_thumbnail(part))


def is_picture(value: Any) -> bool:
    """Whether ``encode_picture`` accepts a value."""
    return isinstance(value, Image.Image | np.ndarray)


def encode_picture(picture: Image.Image | np.ndarray, max_pixels: int) -> bytes:
    """Return a picture as PNG, with every pixel and its EXIF orientation.

    An array is uint8, [height, width] or [height, width, 1, 3 or 4], grey, RGB or RGBA. Raises ValueError for
    another array; ImageFault for a picture of more than ``max_pixels``, of none, or one that Pillow cannot
    load.
    """
    if isinstance(picture, np.ndarray):
        shape, kind = picture.shape, picture.dtype
        if kind != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))):
            said = "must be uint8 [height, width] or [height, width, 1, 3 or 4]"
            raise ValueError(f"{kind} array of shape {shape}: {said}")
        _check_size(shape[1], shape[0], max_pixels)
        picture = Image.fromarray(picture[..., 0] if shape[2:] == (1,) else picture)
    _check_size(picture.width, picture.height, max_pixels)
    buffer = io.BytesIO()
    try:
        picture.load()
        exif = picture.info.get("exif") or b""
        try:
            picture.save(buffer, "PNG", compress_level=1, exif=exif)
        except OSError:  # a mode that PNG does not support
            buffer = io.BytesIO()
            picture.convert("RGB").save(buffer, "PNG", compress_level=1, exif=exif)
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageFault(CORRUPT_IMAGE, f"{type(error).__name__}: {error}") from error
    return buffer.getvalue()


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise ImageFault(IMAGE_TOO_LARGE, f"{width} x {height}: more than {max_pixels} pixels")
    if not width * height:
        raise ImageFault(CORRUPT_IMAGE, f"{width} x {height}: has no pixels")


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
