"""Pictures on a page: small, and part of it."""

import base64
import io

from raycomp.models.images import ImageFault, decode_image

SIDE = 240
"""Pixels of a thumbnail's longer side."""
MOST_PIXELS = 100_000_000


def make_thumbnail(data: bytes) -> str | None:
    """Return a JPEG of at most 240 px as a data URI; None where the bytes are no readable image."""
    try:
        image = decode_image(data, MOST_PIXELS)
    except ImageFault:
        return None
    image.thumbnail((SIDE, SIDE))
    written = io.BytesIO()
    image.save(written, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(written.getvalue()).decode("ascii")
