"""A kept sample as it is written: open_clip trains on the image and caption that were scored.

open_clip's reader (webdataset) takes one image named jpg, png, jpeg or webp, in this order. It skips a sample
without an image. It decodes every member that it has a decoder for, and loses the sample if decoding fails.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from raycomp.data.rows import decode_text, parse_object
from raycomp.data.tar import IMAGE_EXTENSIONS, find_caption, find_image
from raycomp.models.images import decode_image, describe_image, encode_png

TRAINED_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
# Suffixes for the bytes of a format that were stored under another suffix.
_NAMES = {"jpeg": "jpg", "mpo": "jpg", "png": "png", "webp": "webp"}
# An image whose hash matches its scores has passed prepare.max_pixels.
_NO_LIMIT = sys.maxsize

# Suffixes (after the last dot) that webdataset decodes; the first ones as plain text.
_READS: dict[str, Callable[[bytes], object]] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
}
DECODED = frozenset(
    (
        "json jsn pkl pickle pyd pth ten tb mp msg npy npz cbor gz "
        "blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib h5 hdf png apng jp2 "
        "j2k jpc jpf jpx j2c icns ico im iim tif tiff jfif jpe jpg jpeg mpg mpeg msp pcd pxr pbm pgm ppm pnm "
        "psd bw rgb rgba sgi ras tga icb vda vst webp wmf emf xbm xpm"
    ).split()
)


def is_scored(members: Mapping[str, bytes], image_sha256: str | None, caption: str) -> bool:
    """Return whether members hold the image (None = none) and the caption that were scored."""
    return hash_image(members) == image_sha256 and read_caption(members) == caption


def hash_image(members: Mapping[str, bytes]) -> str | None:
    """Return the SHA-256 of the image that a reader of the members takes, None without one."""
    name = find_image(members)
    return None if name is None else hashlib.sha256(members[name]).hexdigest()


def read_caption(members: Mapping[str, bytes]) -> str | None:
    """Return the caption that a reader of the members scores, None without one."""
    _, own = parse_object(members.get("json")) if "txt" not in members else (None, None)
    return decode_text(find_caption(members, own or {}))


def rewrite(members: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return a scored sample's members as open_clip reads them, and the fields that its json gains.

    The image keeps its bytes if open_clip decodes them to the scored picture, under a suffix that it accepts.
    Else it becomes a PNG of that picture, and the json gains ``original_sha256`` and ``original_format``.
    Other images are removed. Another member that open_clip would decode gets the suffix ``.bytes``, so that
    decoding cannot fail, unless it is a readable text or whole number.
    """
    scored = find_image(members)
    written: dict[str, bytes] = {}
    fields: dict[str, Any] = {}
    for name, data in members.items():
        if name == scored:
            name, data, fields = _to_trained(name, data)
        elif name in IMAGE_EXTENSIONS:
            continue
        elif name != "json" and _may_fail(name, data):
            name += ".bytes"
        while name in written:
            name += ".bytes"
        written[name] = data
    return written, fields


def _to_trained(name: str, data: bytes) -> tuple[str, bytes, dict[str, Any]]:
    """Return the name, bytes and json fields of a scored image."""
    form, is_alike = describe_image(data, _NO_LIMIT)
    if is_alike and (name in TRAINED_EXTENSIONS or form in _NAMES):
        return name if name in TRAINED_EXTENSIONS else _NAMES[form], data, {}
    fields = {"original_sha256": hashlib.sha256(data).hexdigest(), "original_format": form}
    return "png", encode_png(decode_image(data, _NO_LIMIT)), fields


def _may_fail(name: str, data: bytes) -> bool:
    last = name.rpartition(".")[2]
    try:
        _READS.get(last, bytes)(data)
    except ValueError:
        return True
    return last in DECODED or name.startswith("__")
