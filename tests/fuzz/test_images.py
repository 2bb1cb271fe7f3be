"""Images: pixels of the promised shape or one of two statuses, whatever the bytes are."""

import io
import struct
import zlib
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from raycomp.models.images import ImageFault, ImageSpec, decode_image, prepare_image
from raycomp.words import CORRUPT_IMAGE, IMAGE_TOO_LARGE
from tests.corpus import write_png
from tests.fuzz.child import run
from tests.fuzz.inputs import EDITS, damage

pytestmark = pytest.mark.slow

SPEC = ImageSpec(height=24, width=16, mean=(0.5,) * 3, std=(0.5,) * 3)
MOST_PIXELS = 100_000
FORMATS = {
    "JPEG": ("RGB", "L", "CMYK"),
    "PNG": ("RGB", "L", "P", "RGBA", "LA", "1", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P", "L"),
    "BMP": ("RGB", "P", "1"),
    "TIFF": ("RGB", "L", "P", "CMYK", "I;16", "F"),
}
KINDS = [(name, mode) for name, modes in FORMATS.items() for mode in modes]
# Type, count and four bytes of the value of an EXIF orientation: right, out of range, of any type.
ORIENTATIONS = (
    st.none()
    | st.sampled_from([(3, 1, struct.pack("<I", number)) for number in (1, 6, 8, 0, 9, 70000)])
    | st.tuples(st.integers(0, 14), st.sampled_from([0, 1, 2, 4, 2**31]), st.binary(min_size=4, max_size=4))
)
MAGIC = [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0"]
NOISE = st.tuples(st.sampled_from(MAGIC), st.binary())


@cache
def encode(name: str, mode: str, width: int, height: int, num_frames: int, options: tuple) -> bytes:
    """Return a picture of noise in a format."""
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(num_frames):
        rgb = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        if mode == "I;16":
            frames.append(Image.fromarray(rng.integers(0, 65536, (height, width)).astype(np.uint16)))
        else:
            frames.append(rgb.convert("RGBA").convert(mode) if mode == "LA" else rgb.convert(mode))
    more = {"save_all": True, "append_images": frames[1:]} if num_frames > 1 else {}
    buffer = io.BytesIO()
    frames[0].save(buffer, name, **more, **dict(options))
    return buffer.getvalue()


@st.composite
def pictures(draw) -> bytes:
    """Draw a whole picture."""
    name, mode = draw(st.sampled_from(KINDS))
    size = draw(st.sampled_from([(40, 30), (1, 1), (33, 1), (1, 90), (130, 64)]))
    options: dict = {}
    orientation = draw(ORIENTATIONS)
    if orientation and name in ("JPEG", "PNG", "WEBP", "TIFF"):
        kind, count, value = orientation
        tag = struct.pack("<HHI", 0x0112, kind, count) + value
        options["exif"] = b"Exif\0\0II*\0\x08\0\0\0\x01\0" + tag + bytes(4)
    if name == "TIFF":
        options["compression"] = draw(st.sampled_from(["raw", "tiff_lzw", "tiff_deflate", "packbits"]))
        options.pop("exif", None)
    if name == "JPEG":
        options["progressive"] = draw(st.booleans())
    num_frames = draw(st.sampled_from([1, 1, 3])) if name in ("GIF", "WEBP", "TIFF", "PNG") else 1
    return encode(name, mode, *size, num_frames, tuple(options.items()))


def decode(data: bytes, is_fast: bool) -> tuple | str:
    """Return pixels (as bytes) and size, or the status; check what is promised of them."""
    try:
        pixels, (width, height) = prepare_image(data, SPEC, MOST_PIXELS, is_fast)
    except ImageFault as fault:
        assert fault.status in (CORRUPT_IMAGE, IMAGE_TOO_LARGE)
        return fault.status
    assert pixels.shape == (SPEC.height, SPEC.width, 3) and pixels.dtype == np.uint8
    assert width > 0 and height > 0 and width * height <= MOST_PIXELS
    return pixels.tobytes(), (width, height)


@given(pictures())
def whole_images(data):
    image = decode_image(data, MOST_PIXELS)
    assert image.mode == "RGB"
    found = decode(data, False)
    assert found == IMAGE_TOO_LARGE or found[1] == image.size


@given(pictures() | NOISE.map(b"".join), EDITS, st.booleans())
def damaged_images(data, edits, is_fast):
    data = damage(data, edits)
    assert decode(data, is_fast) == decode(data, is_fast)


# 43 bytes: a frame of 65,535 x 65,535 on a screen as large.
GIF = bytes.fromhex("474946383961ffffffff800000000000ffffff21f90408000000002c00000000ffffffff0002024401003b")


def bombs():
    """Small images that ask for much, in little memory."""
    packer = zlib.compressobj(9)
    zeros = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
    pixels = (b"IDAT", zeros)
    profiles = [write_png(4, 4, (kind, b"x\0\0" + zeros), pixels) for kind in (b"iCCP", b"zTXt")]
    for data in (GIF, write_png(30_000, 30_000, pixels), write_png(4, 4, pixels), *profiles):
        decode(data, False)


def load() -> None:
    """Load every decoder, and open_clip's transform."""
    for name, mode in KINDS:
        decode(encode(name, mode, 40, 30, 1, ()), False)


def test_images():
    run(whole_images, 300)
    run(damaged_images, 1500)
    run(bombs, cpu_s=30)
