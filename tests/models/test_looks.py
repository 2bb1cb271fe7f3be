"""Measures of a picture and its perceptual hash, against plain transforms and known pictures."""

import io

import numpy as np
import pytest
from PIL import Image
from scipy.fft import dctn

from raycomp.models.images import hash_view, measure_look, measure_sharpness, shrink


def draw(seed: int, width: int = 300, height: int = 200) -> Image.Image:
    """Return a smooth picture of random blobs, so that it survives compression."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def test_the_hash_is_that_of_a_plain_transform():
    view = shrink(draw(0))
    grey = np.rint(view @ np.array([0.299, 0.587, 0.114]))
    low = dctn(grey)[:8, :8]
    bits = "".join("1" if value > np.median(low) else "0" for value in low.reshape(-1))
    assert hash_view(view) == int(bits, 2)


def test_copies_have_near_hashes_and_others_far_ones():
    for seed in range(5):
        image, buffer = draw(seed), io.BytesIO()
        image.save(buffer, "JPEG", quality=30)
        own = hash_view(shrink(image))
        copies = [Image.open(buffer).convert("RGB"), image.resize((150, 100)), image.resize((611, 407))]
        assert max((own ^ hash_view(shrink(copy))).bit_count() for copy in copies) <= 6
        others = [hash_view(shrink(draw(100 + other))) for other in range(20)]
        assert min((own ^ other).bit_count() for other in others) > 12


def test_measures_of_known_pictures():
    black, white = np.zeros((32, 32, 3), np.uint8), np.full((32, 32, 3), 255, np.uint8)
    assert measure_look(black, black) == (0, 0, 0)
    assert measure_look(white, white).brightness == pytest.approx(1)
    red_and_green = black.copy()
    red_and_green[:16, :, 0] = red_and_green[16:, :, 1] = 255
    # R - G is +-255, so its deviation is 255 and its mean 0; (R + G) / 2 - B is 127.5 everywhere.
    assert measure_look(red_and_green, black).colourfulness == pytest.approx(255 + 0.3 * 127.5)


def test_sharpness_of_rows_is_that_of_a_loop():
    for height in [1, 2, 3, 4, 7]:
        pixels = np.random.default_rng(height).integers(0, 256, (height, 9, 3), dtype=np.uint8)
        green = pixels[:, :, 1].astype(int)
        found = [
            green[y - 1, x] + green[y + 1, x] + green[y, x - 1] + green[y, x + 1] - 4 * green[y, x]
            for y in range(1, height - 1, 4)
            for x in range(1, 8)
        ]
        assert measure_sharpness(pixels) == pytest.approx(np.var(found) if found else 0)
