"""Pillow's resize of RGB pictures, to the bit, compiled by numba: some three times as fast for a web photo.

Pillow's own arithmetic: weights of 22 bits, integer sums, each pass rounded to 8 bits. Here 32 rows
are turned into columns at a time, so that one instruction takes many of them; only what the crop keeps is
computed. Numba compiles in some 2 s once for a kind of CPU and keeps the result next to this file or in the
user's cache; loading it takes half a second, so Pillow serves the first pictures of a process. It also
serves where numba is missing or any of twenty checked pictures has other bits, and tall pictures beyond
16 MB, the size up to which Pillow keeps a picture in one piece; others of that size are taken in bands.
"""

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

Size = tuple[int, int]
Box = tuple[int, int, int, int]
PILLOW, DIFFERS = "Pillow", "Pillow: the compiled resize has other bits on this CPU"
# Pillow takes half a second longer for these.
_PILLOWS_PIXELS = 80_000_000
_ROWS, _BITS = 32, 22
_BAND_PIXELS = 1 << 20
_CUBIC, _LINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR


def resize_pillow(image: Image.Image, size: Size, how: Image.Resampling, box: Box) -> np.ndarray:
    """Return ``box`` (left, top, right, bottom) of the picture resized to ``size``, uint8 [H, W, 3]."""
    return np.asarray(image.resize(size, how).crop(box), np.uint8)


class Resizer(NamedTuple):
    """What resizes pictures, and its name for run.json."""

    name: str
    resize: Callable[[Image.Image, Size, Image.Resampling, Box], np.ndarray] = resize_pillow


class _Chosen:
    """The resizer of this process: Pillow's for the first pictures, the compiled one for the others."""

    def __init__(self) -> None:
        self.pixels, self.is_final, self.lock = 0, False, threading.Lock()
        self.resizer = Resizer(PILLOW)

    def __call__(self, image: Image.Image, size: Size, how: Image.Resampling, box: Box) -> np.ndarray:
        """As ``resize_pillow``."""
        if not self.is_final and self.pixels > _PILLOWS_PIXELS:
            with self.lock:
                if not self.is_final:
                    self.resizer, self.is_final = load_resizer(), True
        self.pixels += image.width * image.height
        return self.resizer.resize(image, size, how, box)


resize_picture = _Chosen()


def load_resizer() -> Resizer:
    """Compile, or load what was compiled, and check it."""
    try:
        import numba
        from numba import types
        from numba.extending import register_jitable
    except ImportError:
        return Resizer("Pillow: numba is not installed")
    table, whole = types.Array(types.int32, 2, "C"), types.int64
    pixels, out = types.Array(types.uint32, 2, "C", readonly=True), types.Array(types.uint32, 2, "C")
    lanes = types.Array(types.uint8, 2, "C")
    forms = {
        _weigh: types.void(whole, whole, whole, types.boolean, table, table),
        _across: types.void(pixels, out, table, table),
        _down: types.void(pixels, out, table, table),
        _pack: types.void(lanes, lanes),
    }
    register_jitable(_add)

    def build(cache: bool) -> list[Any]:
        return [numba.njit(form, nogil=True, cache=cache)(work) for work, form in forms.items()]

    try:
        weigh, across, down, pack = build(cache=True)
    except (RuntimeError, OSError):  # nowhere to write
        weigh, across, down, pack = build(cache=False)

    def resize_compiled(image: Image.Image, size: Size, how: Image.Resampling, box: Box) -> np.ndarray:
        (width, height), (left, top, right, bottom) = size, box
        # Pillow starts with the columns where they lose more than twice as many pixels as the rows.
        is_down_first = height < image.height and image.height - height > 2 * (image.width - width)
        whole_HW = _view(image)
        if how not in (_CUBIC, _LINEAR) or (whole_HW is None and is_down_first):
            return resize_pillow(image, size, how, box)

        def make_table(old: int, new: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
            taps = math.ceil((2 if how == _CUBIC else 1) * max(old / new, 1.0)) * 2 + 1
            bound_N2, weight_NK = (
                np.empty((end - first, 2), np.int32),
                np.zeros((end - first, taps), np.int32),
            )
            weigh(old, new, first, how == _CUBIC, bound_N2, weight_NK)
            return bound_N2, weight_NK

        across_tables = make_table(image.width, width, left, right)
        down_N2, down_NK = make_table(image.height, height, top, bottom)
        first, end = down_N2[0, 0], down_N2[-1].sum()
        down_N2 = down_N2 - np.array([first, 0], np.int32)
        out_HW = np.empty((bottom - top, right - left), np.uint32)
        if whole_HW is not None and is_down_first:
            middle_HW = np.empty((bottom - top, image.width), np.uint32)
            down(whole_HW[first:end], middle_HW, down_N2, down_NK)
            across(middle_HW, out_HW, *across_tables)
        else:
            middle_HW = np.empty((end - first, right - left), np.uint32)
            bands = [(first, whole_HW[first:end])] if whole_HW is not None else _list_bands(image, first, end)
            for start, pixel_HW in bands:
                across(pixel_HW, middle_HW[start - first :][: len(pixel_HW)], *across_tables)
            down(middle_HW, out_HW, down_N2, down_NK)
        out_HC = np.empty((bottom - top, (right - left) * 3), np.uint8)
        pack(out_HW.view(np.uint8), out_HC)
        return out_HC.reshape(bottom - top, right - left, 3)

    made = Resizer(f"numba {numba.__version__}", resize_compiled)
    return made if check_resize(resize_compiled) else Resizer(DIFFERS)


def check_resize(
    resize: Callable[[Image.Image, Size, Image.Resampling, Box], np.ndarray], num: int = 20
) -> bool:
    """Whether drawn pictures of ``num`` sizes, resized and cropped, are Pillow's to the bit."""
    rng = np.random.default_rng(0)
    for i in range(num):
        old, new = rng.integers(1, 200, 2), rng.integers(1, 120, 2)
        image = Image.fromarray(rng.integers(0, 256, (old[1], old[0], 3), np.uint8) // 128 * 255)
        first = rng.integers(0, new)
        size, box = tuple(new.tolist()), (*first.tolist(), *(rng.integers(first, new) + 1).tolist())
        task = size, (_CUBIC, _LINEAR)[i % 2], box
        if not np.array_equal(resize(image, *task), resize_pillow(image, *task)):
            return False
    return True


def _list_bands(image: Image.Image, first: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows from ``first`` to ``end`` and where they start: copies, each in one piece."""
    rows = max(_BAND_PIXELS // image.width, 1)
    for start in range(first, end, rows):
        band_HW = _view(image.crop((0, start, image.width, min(start + rows, end))))
        assert band_HW is not None
        yield start, band_HW


def _view(image: Image.Image) -> np.ndarray | None:
    """Return the picture's own memory, a number per pixel; None where it is not in one piece."""
    import pyarrow as pa

    try:
        buffer = pa.array(image).buffers()[-1]
    except (ValueError, pa.ArrowInvalid):
        return None
    return np.frombuffer(buffer, np.uint32, image.width * image.height).reshape(image.height, image.width)


def _weigh(old: int, new: int, first: int, cubic: bool, bound_N2: np.ndarray, weight_NK: np.ndarray) -> None:
    """Write where the inputs of each output from ``first`` on start, how many they are, and their weights.

    Pillow's ``precompute_coeffs``, operation by operation.
    """
    scale = old / new
    wide = max(scale, 1.0)
    support = (2.0 if cubic else 1.0) * wide
    exact_K = np.empty(weight_NK.shape[1])
    for i in range(len(bound_N2)):
        centre = (first + i + 0.5) * scale
        start = max(int(centre - support + 0.5), 0)
        num = min(int(centre + support + 0.5), old) - start
        total = 0.0
        for k in range(num):
            x = abs((k + start - centre + 0.5) * (1.0 / wide))
            if not cubic:
                exact_K[k] = 1.0 - x if x < 1.0 else 0.0
            elif x < 1.0:
                exact_K[k] = ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1
            else:
                exact_K[k] = (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2.0 else 0.0
            total += exact_K[k]
        bound_N2[i, 0], bound_N2[i, 1] = start, num
        for k in range(num):
            weight = (exact_K[k] / total if total != 0.0 else exact_K[k]) * (1 << _BITS)
            weight_NK[i, k] = int(weight - 0.5) if weight < 0 else int(weight + 0.5)


def _across(pixel_HW: np.ndarray, out_HW: np.ndarray, bound_N2: np.ndarray, weight_NK: np.ndarray) -> None:
    """Resize the rows of pixels of four bytes."""
    height, width = out_HW.shape
    left, right = bound_N2[0, 0], bound_N2[-1, 0] + bound_N2[-1, 1]
    turned_WR, resized_WR = np.empty((right - left, _ROWS), np.uint32), np.empty((width, _ROWS), np.uint32)
    turned_lanes, resized_lanes = turned_WR.view(np.uint8), resized_WR.view(np.uint8)
    sum_L = np.empty(_ROWS * 4, np.int32)
    for start in range(0, height, _ROWS):
        first = max(min(start, height - _ROWS), 0)
        rows_RW, out_RW = pixel_HW[first:, left:right], out_HW[first:]
        if height >= _ROWS:  # a constant number of steps, which takes a quarter of the time
            for x in range(right - left):
                for row in range(_ROWS):
                    turned_WR[x, row] = rows_RW[row, x]
        else:
            for x in range(right - left):
                for row in range(height):
                    turned_WR[x, row] = rows_RW[row, x]
        for x in range(width):
            _add(turned_lanes, bound_N2[x, 0] - left, bound_N2[x, 1], weight_NK[x], sum_L, resized_lanes[x])
        for row in range(min(_ROWS, height)):
            for x in range(width):
                out_RW[row, x] = resized_WR[x, row]


def _down(pixel_HW: np.ndarray, out_HW: np.ndarray, bound_N2: np.ndarray, weight_NK: np.ndarray) -> None:
    """Resize the columns of pixels of four bytes."""
    lanes_HL, out_HL = pixel_HW.view(np.uint8), out_HW.view(np.uint8)
    sum_L = np.empty(out_HL.shape[1], np.int32)
    for y in range(len(out_HL)):
        _add(lanes_HL, bound_N2[y, 0], bound_N2[y, 1], weight_NK[y], sum_L, out_HL[y])


def _add(
    lanes_NL: np.ndarray, first: int, num: int, weight_K: np.ndarray, sum_L: np.ndarray, out_L: np.ndarray
) -> None:
    """Write the weighted sum of ``num`` rows from ``first`` on, three at a time."""
    weight = weight_K[0]
    for i in range(len(sum_L)):
        sum_L[i] = (1 << (_BITS - 1)) + np.int32(lanes_NL[first, i]) * weight
    k = 1
    while k + 3 <= num:
        a, b, c, row = weight_K[k], weight_K[k + 1], weight_K[k + 2], first + k
        for i in range(len(sum_L)):
            sum_L[i] += (
                np.int32(lanes_NL[row, i]) * a
                + np.int32(lanes_NL[row + 1, i]) * b
                + np.int32(lanes_NL[row + 2, i]) * c
            )
        k += 3
    while k < num:
        weight = weight_K[k]
        for i in range(len(sum_L)):
            sum_L[i] += np.int32(lanes_NL[first + k, i]) * weight
        k += 1
    for i in range(len(sum_L)):
        out_L[i] = min(max(sum_L[i] >> _BITS, 0), 255)


def _pack(lanes_HL: np.ndarray, out_HC: np.ndarray) -> None:
    """Leave out the fourth byte of each pixel."""
    for y in range(len(out_HC)):
        pixel_L, out_C = lanes_HL[y], out_HC[y]
        for x in range(len(out_C) // 3):
            for channel in range(3):
                out_C[3 * x + channel] = pixel_L[4 * x + channel]
