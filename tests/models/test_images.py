"""Preparation against open_clip's own evaluation transform, and every kind of picture the web holds."""

import io

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from raycomp.models import images
from raycomp.models.images import ImageFault, ImageSpec, decode_image, prepare_image
from raycomp.schema import CORRUPT_IMAGE, IMAGE_TOO_LARGE

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SPEC = ImageSpec(224, 224, MEAN, STD)


def draw(mode: str = "RGB", size: tuple[int, int] = (90, 60)) -> Image.Image:
    rng = np.random.default_rng(0)
    smooth = np.kron(rng.integers(0, 256, (6, 9, 3)), np.ones((10, 10, 1))).astype(np.uint8)
    return Image.fromarray(smooth).resize(size).convert(mode)


def encode(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_equals_open_clips_transform_to_the_bit(shared):
    transform = open_clip.image_transform((224, 224), is_train=False, mean=MEAN, std=STD)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    photos = sorted((shared / "data/cc_web_400/images").iterdir())[:6]
    photos += sorted((shared / "data/flickr8k_800/images").iterdir())[:6]
    for path in photos:
        pixels, size = prepare_image(path.read_bytes(), SPEC, 10**8)
        with Image.open(path) as image:
            expected = transform(image.convert("RGB"))
            assert size == image.size
        ours = (torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div(255) - mean) / std
        assert torch.equal(ours, expected), path


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        ("RGB", "JPEG", {"quality": 95, "subsampling": 0}),
        ("CMYK", "JPEG", {"quality": 95}),
        ("L", "JPEG", {"quality": 95}),
        ("RGB", "PNG", {}),
        ("P", "PNG", {}),
        ("RGBA", "PNG", {}),
        ("LA", "PNG", {}),
        ("1", "PNG", {}),
        ("RGB", "WEBP", {"lossless": True}),
        ("RGBA", "WEBP", {"lossless": True}),
        ("P", "GIF", {}),
        ("RGB", "BMP", {}),
        ("RGB", "TIFF", {}),
    ],
)
def test_every_kind_of_picture_becomes_rgb(mode, kind, options):
    image = draw(mode)
    decoded = decode_image(encode(image, kind, **options), 10**6)
    assert (decoded.mode, decoded.size) == ("RGB", image.size)
    difference = np.asarray(decoded).astype(int) - np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(difference).mean() < 4


def test_sixteen_bits_of_grey_are_scaled_not_clipped():
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    decoded = np.asarray(decode_image(encode(Image.fromarray(ramp), "PNG"), 10**6))
    assert np.abs(decoded[..., 0].astype(int) - (ramp >> 8)).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(orientation):
    image = draw(size=(40, 20))
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode_image(encode(image, "PNG", exif=exif), 10**6)
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    expected = image.transpose(turns[orientation]) if orientation > 1 else image
    assert np.array_equal(np.asarray(decoded), np.asarray(expected))


def test_a_broken_exif_block_is_ignored():
    data = encode(draw(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f garbage")
    assert decode_image(data, 10**6).size == (90, 60)


def test_an_animation_shows_its_first_frame():
    frames = [Image.new("RGB", (20, 20), color) for color in ("red", "lime", "blue")]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(data, 10**6).getpixel((5, 5)) == (255, 0, 0)


def test_too_many_pixels_are_refused_before_decoding(monkeypatch):
    data = encode(Image.new("1", (3000, 3000)), "PNG")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(ImageFault, match="3000 x 3000") as fault:
        decode_image(data, 1_000_000)
    assert fault.value.status == IMAGE_TOO_LARGE


def test_a_declared_bomb_is_refused_by_its_declaration():
    data = bytearray(encode(Image.new("RGB", (8, 8)), "BMP"))
    data[18:26] = (2**30).to_bytes(4, "little") * 2
    with pytest.raises(ImageFault) as fault:
        decode_image(bytes(data), 10**8)
    assert fault.value.status == IMAGE_TOO_LARGE


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_cut_and_damaged_pictures_are_faults_never_crashes(kind):
    rng = np.random.default_rng(0)
    whole = encode(draw(size=(200, 150)), kind)
    with pytest.raises(ImageFault) as fault:
        decode_image(whole[: len(whole) // 2], 10**6)
    assert fault.value.status == CORRUPT_IMAGE
    for _ in range(60):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(damaged), 8):
            damaged[at] = rng.integers(256)
        try:
            decode_image(bytes(damaged), 10**6)
        except ImageFault as found:
            assert found.status in (CORRUPT_IMAGE, IMAGE_TOO_LARGE)


@pytest.mark.parametrize("data", [b"", b"no picture", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg xmlns='x'/>"])
def test_what_is_no_picture_is_corrupt(data):
    with pytest.raises(ImageFault) as fault:
        decode_image(data, 10**6)
    assert fault.value.status == CORRUPT_IMAGE


def test_a_thin_picture_that_would_grow_beyond_the_limit_is_refused():
    data = encode(Image.new("RGB", (1, 3000)), "PNG")
    with pytest.raises(ImageFault, match="1 x 3000 would become") as fault:
        prepare_image(data, SPEC, 10_000_000)
    assert fault.value.status == IMAGE_TOO_LARGE
    assert prepare_image(encode(Image.new("RGB", (30, 90)), "PNG"), SPEC, 10_000_000)[1] == (30, 90)


def photo(width: int, height: int) -> Image.Image:
    """Return a smooth picture, as photos are."""
    rng = np.random.default_rng(1)
    return Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((width, height))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("width", "height"), [(450, 449), (1000, 2000), (3001, 1799)])
def test_fast_decoding_comes_close_and_tells_the_true_size(width, height, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo(width, height), "JPEG", quality=92, exif=exif)
    exact, size = prepare_image(data, SPEC, 10**8)
    fast, same = prepare_image(data, SPEC, 10**8, fast=True)
    assert same == size == ((height, width) if orientation > 4 else (width, height))
    assert fast.shape == exact.shape and not np.array_equal(fast, exact)
    assert np.abs(fast.astype(int) - exact).mean() < 5  # about half a pixel


@pytest.mark.parametrize(
    ("size", "decoded"),
    [
        ((447, 2000), (447, 2000)),
        ((448, 900), (224, 450)),
        ((895, 900), (448, 450)),
        ((4000, 1800), (500, 225)),
    ],
)
def test_fast_decoding_never_goes_below_the_models_size(monkeypatch, size, decoded):
    seen = []
    transpose = images._turn_upright
    monkeypatch.setattr(images, "_turn_upright", lambda rgb, o: seen.append(rgb.size) or transpose(rgb, o))
    prepare_image(encode(photo(*size), "JPEG"), SPEC, 10**8, fast=True)
    assert seen == [decoded]


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_fast_decoding_of_grey_and_print_colours(mode):
    data = encode(photo(1000, 800).convert(mode), "JPEG", quality=95)
    exact, fast = (prepare_image(data, SPEC, 10**8, fast)[0].astype(int) for fast in (False, True))
    assert 0 < np.abs(fast - exact).mean() < 3


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("WEBP", {}), ("GIF", {}), ("BMP", {}), ("TIFF", {}), ("TIFF", {"compression": "jpeg"})],
)
def test_fast_decoding_leaves_other_formats_alone(kind, options):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(photo(1000, 800), kind, exif=exif, **options)
    exact, fast = (prepare_image(data, SPEC, 10**8, fast) for fast in (False, True))
    assert np.array_equal(exact[0], fast[0])
    assert exact[1] == fast[1] == ((1000, 800) if kind in ("GIF", "BMP") else (800, 1000))


def test_fast_decoding_refuses_by_the_declared_size_and_sees_damage():
    data = encode(photo(2000, 1500), "JPEG")
    with pytest.raises(ImageFault, match="2000 x 1500") as fault:
        prepare_image(data, SPEC, 2_900_000, fast=True)
    assert fault.value.status == IMAGE_TOO_LARGE
    with pytest.raises(ImageFault) as fault:
        prepare_image(data[: len(data) // 2], SPEC, 10**8, fast=True)
    assert fault.value.status == CORRUPT_IMAGE
