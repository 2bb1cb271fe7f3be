"""Images of hard negatives: the little world renders a scene that a negative describes.

For photos a text-to-image model would (TripletCLIP, arXiv 2411.02545); the table has the same form.
"""

import hashlib
from collections import Counter

import numpy as np
import pyarrow as pa

from lab.worlds.captions import read
from lab.worlds.render import encode_jpeg, render
from lab.worlds.samples import SIDE
from lab.worlds.scenes import Scene, is_true, show
from raycomp.data.files import join_uri
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.runs import list_negatives, read_finished
from raycomp.schema import NEGATIVE_IMAGE_SCHEMA
from raycomp.words import CAPTION, IMAGE, NEGATIVE, NEGATIVES, UID

SHOWN = "shown"
OUTSIDE = "has words that no scene of the world shows"
ALSO_TRUE = "its scene can also show the caption"


def write_negative_images(negatives: str, out: str) -> Counter[tuple[str, str]]:
    """Write a table of images for every table in ``negatives``, the folder of a finished run, into ``out``.

    The same folder gives the same bytes. Returns how many negatives of each operation (of several calls
    joined by "+") were SHOWN, and how many have no row because they are OUTSIDE the world or ALSO_TRUE.
    Raises ValueError where the folder holds no finished run that wrote negatives.
    """
    run = read_finished(negatives)
    if run["kind"] != "negatives":
        raise ValueError(f"{negatives}: must be a folder that raycomp negatives wrote")
    counts: Counter[tuple[str, str]] = Counter()
    for ordinal, uri in enumerate(list_negatives(run, negatives)):
        shown = []
        for row in read_columns(uri, [UID, CAPTION, NEGATIVES]).to_pylist():
            ops = {negative["text"]: negative["op"] for negative in row[NEGATIVES] or ()}
            for text, op in ops.items():
                found = show_negative(row[UID], row[CAPTION], text)
                counts[op, SHOWN if isinstance(found, Scene) else found] += 1
                if isinstance(found, Scene):
                    image = encode_jpeg(render(found, SIDE))
                    shown.append({UID: row[UID], NEGATIVE: text, IMAGE: image})
        table = pa.Table.from_pylist(shown, NEGATIVE_IMAGE_SCHEMA)
        write_table(table, join_uri(out, f"{ordinal:05d}.parquet"), NEGATIVE_IMAGE_SCHEMA)
    return counts


def show_negative(uid: str, caption: str, text: str) -> Scene | str:
    """Return a scene of which ``text`` is true and ``caption`` is false, or the reason why none exists.
    Properties that the text leaves open are drawn from uid and text. An addition that contradicts nothing
    also shows the caption, so its image is not a negative."""
    caption_claim, claim = read(caption), read(text)
    if caption_claim is None or claim is None:
        return OUTSIDE
    digest = hashlib.sha256(f"{uid} {text}".encode()).digest()
    scene = show(claim, np.random.default_rng(list(digest)))
    return ALSO_TRUE if is_true(caption_claim, scene) else scene
