"""Winoground (Thrush et al. 2022, arXiv:2204.03162): two images, two captions of exactly the same words.

``data/examples.jsonl`` of ``facebook/winoground``, one item a line: id, image_0, image_1 (names without the
ending), caption_0, caption_1, collapsed_tag (Object, Relation or Both). Its images.zip holds NAME.png.
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, pair_up, read_lines, take, take_texts
from raycomp.words import OBJECT, RELATION, SWAP

NAME = "winoground"
FILE = "examples.jsonl"
SPLIT = "test"
KINDS = {"Object": OBJECT, "Relation": RELATION, "Both": ""}


def read(folder: Folder) -> Iterator[Choice]:
    """Yield two rows for every item; ValueError where the file or a field is missing."""
    for where, record in read_lines(folder, FILE):
        tag = take(record, "collapsed_tag", str, where)
        if tag not in KINDS:
            raise ValueError(f"{where}: collapsed_tag={tag!r:.80}: must be one of {', '.join(KINDS)}")
        yield from pair_up(
            NAME,
            SPLIT,
            str(take(record, "id", int | str, where)),
            (_name_image(record, "image_0", where), _name_image(record, "image_1", where)),
            (take_texts(record, "caption_0", where), take_texts(record, "caption_1", where)),
            SWAP,
            KINDS[tag],
        )


def _name_image(record: object, name: str, where: str) -> str:
    image: str = take(record, name, str, where)
    return image if image.endswith(".png") else f"{image}.png"
