"""Preparation against open_clip's own evaluation transform, and every kind of picture the web holds."""

import gzip
import io
import itertools
import struct
import subprocess
import sys
import warnings
import zlib
from contextlib import suppress

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image, ImageCms, ImageOps
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.functional import resized_crop
from webdataset.autodecode import imagehandler

from raycomp.models import images
from raycomp.models.images import ImageFault, ImageSpec, crop_image, decode_image, draw_crop, prepare_image
from raycomp.words import CORRUPT_IMAGE, IMAGE_TOO_LARGE

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


MODES = [
    ImageSpec(*size, MEAN, STD, interpolation, resize_mode, fill)
    for size in ((224, 224), (48, 80))
    for resize_mode, fill in (("shortest", 0), ("longest", 7), ("squash", 0))
    for interpolation in ("bicubic", "bilinear", "random")
]


def assert_open_clips(image: Image.Image, spec: ImageSpec, pixels: np.ndarray) -> None:
    transform = open_clip.image_transform(
        (spec.height, spec.width),
        is_train=False,
        mean=MEAN,
        std=STD,
        resize_mode=spec.resize_mode,
        interpolation=spec.interpolation,
        fill_color=spec.fill_color,
    )
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    ours = (torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div(255) - mean) / std
    assert torch.equal(ours, transform(image.convert("RGB"))), (image.size, spec)


def test_equals_open_clips_transform_to_the_bit(shared):
    folders = ("cc_web_400", "flickr8k_800", "coco_val_40")
    photos = [path for name in folders for path in sorted((shared / "data" / name / "images").iterdir())]
    for number, path in enumerate(photos[::10]):
        with Image.open(path) as image:
            for spec in (SPEC, MODES[number % len(MODES)]):
                pixels, size = prepare_image(path.read_bytes(), spec, 10**8)
                assert size == image.size
                assert_open_clips(image, spec, pixels)


def test_odd_sizes_equal_open_clips_transform_to_the_bit():
    for number, spec in enumerate(MODES):
        sides = (1, 47, 48, 81, 224, 225)
        for width, height in itertools.islice(itertools.product(sides, sides), number % 5, None, 5):
            image = draw(size=(width, height))
            try:
                pixels, _ = prepare_image(encode(image, "PNG"), spec, 10**8)
            except ImageFault as fault:
                assert "too thin" in str(fault), spec
                with pytest.raises(ValueError, match="must be > 0"):
                    assert_open_clips(image, spec, np.zeros((spec.height, spec.width, 3), np.uint8))
            else:
                assert_open_clips(image, spec, pixels)


def chunks_of_png(
    *middle: tuple[bytes, bytes],
    size: tuple[int, int] = (8, 8),
    bits: int = 8,
    kind: int = 2,
    data: bytes = b"",
) -> bytes:
    """Return a PNG with more chunks behind its header."""
    header, body = struct.pack(">IIBBBBB", *size, bits, kind, 0, 0, 0), b""
    for name, own in [(b"IHDR", header), *middle, (b"IDAT", data), (b"IEND", b"")]:
        body += struct.pack(">I", len(own)) + name + own + struct.pack(">I", zlib.crc32(name + own))
    return b"\x89PNG\r\n\x1a\n" + body


def turn(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def bombs() -> dict[str, bytes]:
    """Return small files that declare, somewhere, much more than they hold."""
    screen = bytes.fromhex("474946383961ffffffff800000000000ffffff21f90408000000002c0000") + bytes.fromhex(
        "0000ffffffff0002024401003b"
    )
    zeros = zlib.compress(bytes(300_000_000), 1)
    bmp = bytearray(encode(Image.new("P", (8, 8)), "BMP"))
    bmp[18:26] = struct.pack("<II", 2**30, 2**30)
    webp = bytearray(encode(Image.new("RGBA", (8, 8)), "WEBP", exif=b"Exif\0\0"))
    webp[24:30] = (15_000).to_bytes(3, "little") * 2
    jpeg = encode(Image.new("RGB", (8, 8)), "JPEG")
    return {
        "gif screen": screen,
        "gif frame": screen[:6] + b"\1\0\1\0" + screen[10:],
        "png size": chunks_of_png(size=(60_000, 60_000)),
        "png text": chunks_of_png((b"zTXt", b"a\0\0" + zeros)),
        "bmp size": bytes(bmp),
        "webp canvas": bytes(webp),
        "jpeg size": jpeg.replace(struct.pack(">HH", 8, 8), struct.pack(">HH", 65_500, 65_500)),
    }


IN_LITTLE_MEMORY = """
import pathlib, resource, sys
from raycomp.models.images import ImageFault, decode_image
folder = pathlib.Path(sys.argv[1])
for path in folder.glob("good.*"):
    decode_image(path.read_bytes(), 10**6)  # Pillow and its decoders are loaded
held = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 250_000_000,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
for path in folder.glob("*.bomb"):
    try:
        decode_image(path.read_bytes(), 20_000_000)
        print(path.stem, "ok", "", sep="/")
    except ImageFault as fault:
        print(path.stem, fault.status, type(fault.__cause__).__name__, sep="/")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process as Linux has them")
def test_nothing_is_allocated_before_its_size_is_checked(tmp_path):
    files = {f"good.{kind}": encode(draw(), kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")}
    files |= {f"{name}.bomb": data for name, data in bombs().items()}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    command = [sys.executable, "-W", "always", "-c", IN_LITTLE_MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    found = {line.split("/")[0]: line.split("/")[1:] for line in done.stdout.splitlines()}
    assert found.keys() == bombs().keys()
    for name, (status, cause) in found.items():
        assert (status == IMAGE_TOO_LARGE or name == "png text") and cause != "MemoryError", name


MODES_OF = {
    "JPEG": "RGB L CMYK", "PNG": "RGB L P LA 1 RGBA", "WEBP": "RGB RGBA", "GIF": "P L", "BMP": "RGB P 1 L",
    "TIFF": "RGB L LA P PA 1 RGBA CMYK YCbCr LAB", "AVIF": "RGB", "MPO": "RGB",
}  # fmt: skip


def pictures() -> dict[str, bytes]:
    """Return pictures of every mode and format that data sets hold."""
    rgb, grey = draw(), np.asarray(draw("L"))
    masked, palette = rgb.convert("RGBA"), rgb.quantize(64)
    masked.putalpha(draw("L"))
    found = {}
    for kind, modes in MODES_OF.items():
        for mode in modes.split():
            image = rgb if mode in ("YCbCr", "LAB", "CMYK") else masked
            found[f"{kind} {mode}"] = encode(image.convert(mode), kind)
    profile = {"icc_profile": ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()}
    frames = {"save_all": True, "append_images": [rgb.transpose(Image.Transpose.ROTATE_180)]}
    arrays = [grey.astype(np.int32), grey.astype(np.int32) * 9999, grey.astype("f4"), grey.astype("f4") / 255]
    options = [
        *[
            ("JPEG", rgb, how)
            for how in ({"progressive": True}, {"subsampling": 0}, {"keep_rgb": True}, profile)
        ],
        *[("PNG", rgb, how) for how in (profile, frames, {**frames, "default_image": True})],
        *[("PNG", palette, {"transparency": alpha}) for alpha in (bytes([255] * 63 + [0]), 3)],
        *[
            ("PNG", rgb, {"transparency": (9, 9, 9)}),
            ("GIF", rgb, frames),
            ("GIF", palette, {"transparency": 3}),
        ],
        *[("WEBP", rgb, frames), ("WEBP", masked, {"lossless": True}), ("TIFF", rgb, frames)],
        *[("TIFF", rgb, {"compression": how}) for how in ("jpeg", "tiff_lzw", "tiff_deflate")],
        *[("TIFF", Image.fromarray(array), {}) for array in arrays],
    ]
    found |= {f"{one[0]}, {i}": encode(one[1], one[0], **one[2]) for i, one in enumerate(options)}
    for kind, bits, num in [(0, 2, 1), (0, 4, 1), (2, 16, 3), (4, 16, 2), (6, 16, 4)]:
        rows = np.random.default_rng(0).integers(0, 256, (16, 2 * num * bits), dtype=np.uint8)
        data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
        for middle in ([], [(b"tRNS", b"\0\1" * num)]) if kind in (0, 2) else ([],):
            name = f"PNG of {num} x {bits} bits, {len(middle)}"
            found[name] = chunks_of_png(*middle, size=(16, 16), bits=bits, kind=kind, data=data)
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF"):
        turns = range(1, 9) if kind in ("JPEG", "PNG") else (1, 6)
        found |= {f"turned {n}, {kind}": encode(rgb, kind, exif=turn(n)) for n in turns}
    wide, cmyk, jpeg = Image.fromarray(grey.astype(np.uint16) * 257), found["JPEG CMYK"], found["JPEG RGB"]
    adobe, cut = cmyk.index(b"\xff\xee"), jpeg[: len(jpeg) // 2]
    return {
        **found, "no marker of Adobe": cmyk[:adobe] + cmyk[adobe + 16 :], "a tail": jpeg + bytes(5000),
        "cut": cut, "cut PNG": found["PNG RGB"][:-400], "cut, with an end": cut + b"\xff\xd9",
        "a gap": jpeg[:900] + bytes(40) + jpeg[940:], "behind a line": b"\r\n" + jpeg,
        "html": b"<!DOCTYPE html>", "nothing": b"", "gzip": gzip.compress(jpeg),
        "grey of 16 bits, PNG": encode(wide, "PNG"), "grey of 16 bits, TIFF": encode(wide, "TIFF"),
        "grey of 16 bits, turned": encode(wide, "PNG", exif=turn(6)),
        "grey of 16 bits, reversed": encode(wide.convert("I;16B"), "TIFF"),
    }  # fmt: skip


def test_every_mode_is_what_open_clip_sees_or_has_a_status():
    """But for pictures that EXIF turns, and grey of 16 bits, which open_clip clips to white."""
    bad = {"cut", "cut PNG", "behind a line", "html", "nothing", "gzip"}
    seen, spec = set(), ImageSpec(32, 32, MEAN, STD)
    for name, data in pictures().items():
        try:
            theirs = imagehandler("pilrgb")(".jpg", data)
        except Exception:
            theirs = None
        try:
            pixels, _ = prepare_image(data, spec, 10**6)
        except ImageFault as fault:
            assert theirs is None and fault.status == CORRUPT_IMAGE, name
            seen.add(name)
            continue
        assert theirs is not None, name
        right = image = Image.open(io.BytesIO(data))
        if image.mode.startswith("I;16"):
            right = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            right.getexif()[0x0112] = image.getexif().get(0x0112, 1)
        is_own = name.startswith(("turned", "grey of 16")) and not name.startswith("turned 1")
        upright = ImageOps.exif_transpose(right).convert("RGB") if is_own else theirs
        assert_open_clips(upright, spec, pixels)
        form, is_alike = images.describe_image(data, 10**6)
        assert is_alike == (not is_own) and (is_own or np.array_equal(upright, theirs)), name
        assert form == str(image.format).lower(), name
        again = imagehandler("pilrgb")(".png", images.encode_png(decode_image(data, 10**6)))
        assert np.array_equal(again, upright), name
    assert seen == bad


def test_cut_and_damaged_pictures_are_faults_never_crashes():
    for kind in ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"]:
        rng = np.random.default_rng(0)
        whole = encode(draw(size=(200, 150)), kind)
        with pytest.raises(ImageFault) as fault:
            decode_image(whole[: len(whole) // 2], 10**6)
        assert fault.value.status == CORRUPT_IMAGE, kind
        for _ in range(20):
            damaged = bytearray(whole)
            for at in rng.integers(0, len(damaged), 8):
                damaged[at] = rng.integers(256)
            with suppress(ImageFault):
                decode_image(bytes(damaged), 10**6)


def with_scans(count: int, comment: bytes = b"") -> bytes:
    """Return a JPEG whose only scan of its last component stands ``count`` times more."""
    data = encode(draw(), "JPEG", progressive=True, comment=comment)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + data[-2:]


def test_a_jpeg_of_more_scans_than_any_encoder_writes_is_corrupt(monkeypatch):
    comment = b"\xff\xda" * 600  # no scans
    trailer = b"\xff\xda\0\2" * 600
    assert decode_image(encode(draw(), "JPEG", comment=comment) + trailer, 10**6).size == (90, 60)
    assert decode_image(with_scans(400, comment), 10**6).size == (90, 60)
    data = with_scans(500)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(ImageFault, match=r"51\d scans") as fault:
        decode_image(data, 10**6)
    assert fault.value.status == CORRUPT_IMAGE


def test_a_thin_picture_that_would_grow_beyond_the_limit_is_refused():
    data = encode(Image.new("RGB", (1, 3000)), "PNG")
    with pytest.raises(ImageFault, match="1 x 3000 would become") as fault:
        prepare_image(data, SPEC, 10_000_000)
    assert fault.value.status == IMAGE_TOO_LARGE
    assert prepare_image(encode(Image.new("RGB", (30, 90)), "PNG"), SPEC, 10_000_000)[1] == (30, 90)
    for name, value in [("interpolation", "nearest"), ("resize_mode", "stretch")]:
        with pytest.raises(ValueError, match=f"{name}='{value}': must be one of"):
            ImageSpec(224, 224, MEAN, STD, **{name: value})


def test_fast_decoding_comes_close_never_goes_below_the_models_size_and_reports_the_true_one(monkeypatch):
    seen, resize = [], images.resize_picture
    for (width, height), orientation, decoded in [
        ((447, 2000), 1, (447, 2000)),
        ((448, 900), 6, (450, 224)),
        ((895, 900), 1, (448, 450)),
        ((4000, 1800), 1, (500, 225)),
    ]:
        data = encode(photo(width, height), "JPEG", quality=92, exif=turn(orientation))
        exact, size = prepare_image(data, SPEC, 10**8)
        with monkeypatch.context() as patch:
            patch.setattr(
                images, "resize_picture", lambda rgb, *how: seen.append(rgb.size) or resize(rgb, *how)
            )
            fast, same = prepare_image(data, SPEC, 10**8, fast=True)
        assert same == size == ((height, width) if orientation > 4 else (width, height))
        assert seen.pop() == decoded and not seen
        assert np.array_equal(fast, exact) == (width == 447), (width, height)
        assert np.abs(fast.astype(int) - exact).mean() < 5  # about half a pixel


def photo(width: int, height: int) -> Image.Image:
    """Return a smooth picture, as photos are."""
    rng = np.random.default_rng(1)
    return Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((width, height))


def test_a_crop_is_torchvisions_to_the_bit(monkeypatch):
    boxes = ((0, 0, 90, 60), (7, 3, 68, 59), (1, 0, 3, 2))
    specs = SPEC, ImageSpec(32, 48, MEAN, STD)
    for mode, box, spec in itertools.product(("RGB", "L", "CMYK"), boxes, specs):
        monkeypatch.setattr(images, "draw_crop", lambda *_, box=box: box)
        left, top, right, bottom = box
        data, size = encode(draw(mode), "JPEG"), [spec.height, spec.width]
        whole, sides = decode_image(data, 10**6), (bottom - top, right - left)
        expected = resized_crop(whole, top, left, *sides, size, InterpolationMode.BICUBIC)
        found = crop_image(data, spec, 10**6, (0.9, 1.0), np.random.default_rng(0))
        assert found.shape == (*size, 3) and np.array_equal(found, np.asarray(expected)), (mode, box)


def test_a_box_is_cropped_as_the_code_of_aro_crops_it_black_beyond_the_image():
    whole = draw("RGB")
    for box in ((7, 3, 40, 50), (60, 40, 70, 60), (-20, -5, 60, 90)):
        left, top, across, down = box
        cropped = whole.crop((left, top, left + across, top + down))
        pixels, size = prepare_image(encode(whole, "PNG"), SPEC, 10**6, box=box)
        assert_open_clips(cropped, SPEC, pixels)
        assert size == (across, down)
    for box, status in (((90, 0, 5, 5), CORRUPT_IMAGE), ((0, 0, 1001, 1000), IMAGE_TOO_LARGE)):
        with pytest.raises(ImageFault) as fault:
            prepare_image(encode(whole, "PNG"), SPEC, 10**6, box=box)
        assert fault.value.status == status


def test_crops_are_drawn_as_torchvision_draws_them():
    """Means and spreads of 1,000 boxes: width, height and the free place beside them; or the middle."""
    num, bounds = 1000, [3 / 4, 4 / 3]
    for share, size in itertools.product([(0.9, 1.0), (0.08, 1.0)], [(640, 480), (100, 300)]):
        rng, image = np.random.default_rng(0), Image.new("RGB", size)
        own = np.array([draw_crop(*size, share, rng) for _ in range(num)], float)
        assert own.min() >= 0 and (own[:, 2] <= size[0]).all() and (own[:, 3] <= size[1]).all()
        own[:, 2:] -= own[:, :2]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            drawn = [RandomResizedCrop.get_params(image, list(share), bounds) for _ in range(num)]
        theirs = np.array([(left, top, w, h) for top, left, h, w in drawn], float)
        error = np.sqrt((own.var(0) + theirs.var(0)) / num)
        assert (np.abs(own.mean(0) - theirs.mean(0)) <= 4 * error + 1e-9).all(), (share, size)
        assert np.allclose(own.std(0), theirs.std(0), rtol=0.1, atol=0.2), (share, size)
    for size in [(1000, 10), (10, 1000), (1, 1), (5, 1)]:
        top, left, height, width = RandomResizedCrop.get_params(Image.new("RGB", size), [0.9, 1.0], bounds)
        found = draw_crop(*size, (0.9, 1.0), np.random.default_rng(0))
        assert found == (left, top, left + width, top + height), size


def test_a_fast_crop_comes_close_and_enlarges_nothing(monkeypatch):
    spec, boxes, crop = ImageSpec(32, 32, MEAN, STD), [], Image.Image.crop
    monkeypatch.setattr(Image.Image, "crop", lambda image, box: boxes.append(box) or crop(image, box))
    data, small = encode(draw().resize((1200, 900)), "JPEG", quality=95), encode(draw(), "JPEG")
    for share, seed in itertools.product([(0.9, 1.0), (0.08, 0.3)], range(5)):
        exact, fast = (
            crop_image(data, spec, 10**7, share, np.random.default_rng(seed), fast) for fast in (False, True)
        )
        assert not np.array_equal(exact, fast)
        assert np.abs(exact.astype(int) - fast).mean() < 4
    assert min(side for left, top, right, bottom in boxes for side in (right - left, bottom - top)) >= 31
    pair = [crop_image(small, SPEC, 10**6, share, np.random.default_rng(1), fast) for fast in (False, True)]
    assert np.array_equal(*pair)


def test_too_many_pixels_are_refused_before_decoding_and_pillow_is_left_as_it_was(monkeypatch):
    before = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decode_image(encode(draw("P"), "PNG", transparency=b"\1\2\3"), 10**6)
        decode_image(encode(draw(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f garbage"), 10**6)
        data = encode(draw("L"), "PNG")
        for name, most in (("convert", 10**6), ("load", 90 * 60 - 1)):
            with monkeypatch.context() as patch:
                patch.setattr(Image.Image, name, raise_no_memory if name == "convert" else None)
                with pytest.raises(ImageFault) as fault:
                    decode_image(data, most)
            assert fault.value.status == IMAGE_TOO_LARGE, name
    assert caught == [] and before == Image.MAX_IMAGE_PIXELS


def raise_no_memory(*args, **kwargs):
    raise MemoryError
