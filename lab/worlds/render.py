"""Scenes as pictures: flat icons with a soft shadow on a pale background."""

import functools
import io
import math

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from lab.worlds.scenes import Scene, place

RGB = {
    "red": (222, 52, 56),
    "orange": (246, 138, 30),
    "yellow": (250, 208, 48),
    "green": (44, 160, 84),
    "blue": (46, 112, 222),
    "purple": (132, 72, 196),
    "pink": (248, 136, 186),
    "brown": (126, 80, 50),
}
# Top and bottom of each background.
BACKGROUNDS = (
    ((250, 247, 240), (238, 231, 218)),
    ((240, 247, 252), (219, 232, 243)),
    ((243, 250, 243), (222, 237, 224)),
    ((252, 244, 246), (242, 226, 231)),
    ((247, 245, 252), (230, 226, 242)),
    ((249, 250, 251), (228, 232, 237)),
)
SUPERSAMPLE = 4
SHADOW = (52, 58, 92)
SHADOW_OPACITY = 0.30


def render(scene: Scene, side: int = 64) -> np.ndarray:
    """Return the picture, uint8 of shape (side, side, 3); ``side`` is 16 to 1024."""
    if not 16 <= side <= 1024:
        raise ValueError(f"side={side}: must be between 16 and 1024")
    picture = draw_background(scene.background, side).copy()
    for thing, (x, y), radius in zip(scene.things, *place(scene), strict=True):
        icon, shadow, reach = draw_icon(thing.shape, thing.colour, max(2, round(radius * side)))
        corner = round(x * side) - reach, round(y * side) - reach
        drop = max(1, round(side / 48))
        picture.paste(SHADOW, (corner[0] + drop // 2, corner[1] + drop), shadow)
        picture.paste(icon, corner, icon)
    return np.asarray(picture)


def encode_jpeg(pixels: np.ndarray, quality: int = 92) -> bytes:
    """Return the picture as JPEG bytes, colours at full resolution."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=quality, subsampling=0)
    return stream.getvalue()


@functools.lru_cache(maxsize=64)
def draw_background(index: int, side: int) -> Image.Image:
    top, bottom = (np.array(colour, dtype=np.float64) for colour in BACKGROUNDS[index])
    share = np.linspace(0, 1, side)[:, None, None]
    pixels = np.broadcast_to(top * (1 - share) + bottom * share, (side, side, 3))
    return Image.fromarray(np.round(pixels).astype(np.uint8))


@functools.lru_cache(maxsize=4096)
def draw_icon(shape: str, colour: str, radius: int) -> tuple[Image.Image, Image.Image, int]:
    """Return the icon (RGBA), its shadow (L) and the distance from their middle to their edges."""
    reach = radius + max(2, radius // 3)
    size = 2 * reach * SUPERSAMPLE
    mask = _mask(shape, size, radius * SUPERSAMPLE)
    # The rim is the part that erosion removes: the inside of a blurred mask that is still nearly full.
    rim = max(1.0, radius * SUPERSAMPLE / 16)
    inside = mask.filter(ImageFilter.GaussianBlur(rim)).point(lambda value: 255 if value > 235 else 0)
    edge = tuple(round(value * 0.72) for value in RGB[colour])
    pixels = Image.new("RGB", (size, size), edge)
    pixels.paste(_shaded(RGB[colour], size), (0, 0), inside)
    icon = Image.merge("RGBA", (*pixels.split(), mask)).resize((2 * reach, 2 * reach), Image.Resampling.BOX)
    alpha = icon.getchannel("A")
    shadow = alpha.filter(ImageFilter.GaussianBlur(max(1.0, radius / 9)))
    return icon, shadow.point(lambda value: round(value * SHADOW_OPACITY)), reach


def _shaded(colour: tuple[int, int, int], size: int) -> Image.Image:
    share = np.linspace(1.10, 0.94, size)[:, None, None]
    pixels = np.broadcast_to(np.array(colour) * share, (size, size, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _mask(shape: str, size: int, radius: int) -> Image.Image:
    mask = Image.new("L", (size, size))
    for outline, value in OUTLINES[shape]:
        points = [(size / 2 + x * radius, size / 2 + y * radius) for x, y in outline]
        layer = Image.new("L", (size, size), 0)
        ImageDraw.Draw(layer).polygon(points, fill=255)
        mask = ImageChops.lighter(mask, layer) if value else ImageChops.subtract(mask, layer)
    return mask


Outline = list[tuple[float, float]]


def _ellipse(x: float, y: float, width: float, height: float, num_points: int = 72) -> Outline:
    angles = [2 * math.pi * i / num_points for i in range(num_points)]
    return [(x + width * math.cos(angle), y + height * math.sin(angle)) for angle in angles]


def _star() -> Outline:
    radii = (1.08, 0.46)
    angles = [math.pi * (i / 5 - 0.5) for i in range(10)]
    return [(radii[i % 2] * math.cos(a), 0.06 + radii[i % 2] * math.sin(a)) for i, a in enumerate(angles)]


def _heart() -> Outline:
    angles = [2 * math.pi * i / 96 for i in range(96)]
    return [
        (
            math.sin(a) ** 3 * 1.0,
            -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)) / 15.5 - 0.06,
        )
        for a in angles
    ]


# Every shape as outlines in a square of half side 1, y down, painted (True) or cut out (False) in turn.
OUTLINES: dict[str, list[tuple[Outline, bool]]] = {
    "circle": [(_ellipse(0, 0, 0.95, 0.95), True)],
    "square": [([(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)], True)],
    "triangle": [([(0, -0.95), (1.02, 0.82), (-1.02, 0.82)], True)],
    "star": [(_star(), True)],
    "heart": [(_heart(), True)],
    "moon": [(_ellipse(0.05, 0, 1.0, 1.0), True), (_ellipse(0.52, -0.12, 0.80, 0.80), False)],
    "donut": [(_ellipse(0, 0, 1.0, 1.0), True), (_ellipse(0, 0, 0.52, 0.52), False)],
    "fish": [
        (_ellipse(-0.22, 0, 0.80, 0.56), True),
        ([(0.34, 0), (1.02, -0.62), (1.02, 0.62)], True),
        (_ellipse(-0.60, -0.14, 0.11, 0.11), False),
    ],
}
