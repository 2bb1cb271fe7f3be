"""The compiled resize has Pillow's bits; a process takes it after its first pictures, if a check passes."""

import io
from functools import cache
from itertools import product

import numpy as np
import pytest
from PIL import Image

from raycomp.models import resize
from raycomp.models.images import ImageSpec, prepare_image
from raycomp.models.resize import DIFFERS, PILLOW, Resizer, check_resize, load_resizer, resize_pillow

CUBIC, LINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR


@cache
def compiled() -> Resizer:
    pytest.importorskip("numba")
    return load_resizer()


def draw(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def assert_pillows(num: int) -> None:
    """Random sizes and crops; of every third the columns lose about twice as many pixels as the rows."""
    rng = np.random.default_rng(num)
    for i in range(num):
        old, new = (np.exp(rng.uniform(0, most, 2)).astype(int) for most in (6.5, 5.5))
        if i % 3 == 0:
            lost = rng.integers(0, old[0])
            new = np.maximum(1, [old[0] - lost, old[1] - 2 * lost + rng.integers(-1, 2)])
        first = rng.integers(0, new)
        box = (*first.tolist(), *(rng.integers(first, new) + 1).tolist())
        task = draw(rng, *old), tuple(new.tolist()), (CUBIC, LINEAR)[i % 2], box
        assert np.array_equal(compiled().resize(*task), resize_pillow(*task)), (old, task[1:])


def test_it_has_pillows_bits():
    assert compiled().name.startswith("numba")
    assert_pillows(150)


@pytest.mark.slow
def test_it_has_pillows_bits_at_ten_thousand_sizes():
    assert_pillows(10_000)


def test_it_has_pillows_bits_on_real_photos(shared):
    """Every fourth, upright and on its side, for a model's shorter side and squashed."""
    photos = sorted(path for path in (shared / "data").glob("*/images/*"))[::4]
    assert len(photos) > 250
    for i, path in enumerate(photos):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        image = image if i % 3 else image.transpose(Image.Transpose.ROTATE_90)
        longer = int(224 * max(image.size) / min(image.size))
        size = (224, longer) if image.width <= image.height else (longer, 224)
        left, top = (size[0] - 224) // 2, (size[1] - 224) // 2
        for task in (size, (left, top, left + 224, top + 224)), ((224, 224), (0, 0, 224, 224)):
            for how in (CUBIC, LINEAR):
                found = compiled().resize(image, task[0], how, task[1])
                assert np.array_equal(found, resize_pillow(image, task[0], how, task[1])), path.name


def test_pictures_that_are_not_in_one_piece_and_other_filters_have_pillows_bits():
    """Wide and tall ones, in bands of whole rows, also of a row longer than a band."""
    rng = np.random.default_rng(0)
    sizes = ((3000, 1500), (1500, 3000), (2300, 2001), (400, 11_000), (4_500_000, 2))
    for (width, height), how in product(sizes, (CUBIC, LINEAR)):
        task = draw(rng, width, height), (30, 20), how, (3, 2, 28, 19)
        assert np.array_equal(compiled().resize(*task), resize_pillow(*task)), (width, height)
    task = draw(rng, 50, 40), (30, 20), Image.Resampling.LANCZOS, (3, 2, 28, 19)
    assert np.array_equal(compiled().resize(*task), resize_pillow(*task))


def test_a_process_takes_it_after_its_first_pictures_and_keeps_pillow_where_a_check_fails(monkeypatch):
    assert check_resize(resize_pillow)
    assert not check_resize(lambda *task: resize_pillow(*task) ^ 1)
    buffer = io.BytesIO()
    draw(np.random.default_rng(1), 90, 61).save(buffer, "PNG")
    spec = ImageSpec(32, 32, (0.5,) * 3, (0.5,) * 3)
    monkeypatch.setattr(resize, "_PILLOWS_PIXELS", 90 * 61 + 1)
    for fails, last in ((False, compiled().name), (True, DIFFERS)):
        chosen, names, found = resize._Chosen(), [], []
        if fails:
            monkeypatch.setattr(resize, "check_resize", lambda work: False)
        monkeypatch.setattr("raycomp.models.images.resize_picture", chosen)
        for _ in range(4):
            found.append(prepare_image(buffer.getvalue(), spec, 10**6)[0].tobytes())
            names.append(chosen.resizer.name)
        assert names == [PILLOW, PILLOW, last, last] and len({*found}) == 1
