"""The little world's test set: scenes of coloured shapes, a caption, a paraphrase and a hard negative each.

``world.json``, written by ``lab.worlds.write_test_set``: a list of split, id, image, caption, paraphrase,
negative, op, kind. Chance is 1/3 for both captions above the negative, 1/2 for the first.
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, read_json, take, take_texts

NAME = "world"
FILE = "world.json"
WORLD = f"{__file__}:{NAME}"
"""What ``benchmarks`` of an evaluation names; ``own.annotations`` is the folder of the test set."""


def world(folder: Folder) -> Iterator[Choice]:
    """Yield the rows; ValueError where the file or a field is missing."""
    for place, record in enumerate(read_json(folder, FILE, list)):
        where = f"{folder.at(FILE)}: row {place}"
        split, key, image, op, kind = (
            take(record, name, str, where) for name in ("split", "id", "image", "op", "kind")
        )
        positives = take_texts(record, "caption", where) + take_texts(record, "paraphrase", where)
        yield Choice(NAME, split, key, image, positives, take_texts(record, "negative", where), op, kind)
