"""Hard positives (Kamath et al. 2024, arXiv:2409.17958): a word replaced so that the caption stays true.

``data/vl_checklist_{split}.json`` holds captions c and their hard negatives n, the same row of
``swapped_data/`` the hard positive p and n again, each with image_path: c and p must both lie above n.
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, read_json, take, take_texts
from raycomp.words import ATTRIBUTE, RELATION, REPLACE

NAME = "hard_positives"
KINDS = {"attributes": ATTRIBUTE, "relations": RELATION}
FOLDERS = ("data", "swapped_data")
SAME = ("image_path", "false_caption")


def read(folder: Folder) -> Iterator[Choice]:
    """Yield the rows of both splits; ValueError where a file or field is missing or the folders disagree."""
    for split, kind in KINDS.items():
        names = [f"{part}/vl_checklist_{split}.json" for part in FOLDERS]
        rows = [read_json(folder, name, list) for name in names]
        if len(rows[0]) != len(rows[1]):
            counts = " and ".join(f"{len(some):,} in {name}" for some, name in zip(rows, names, strict=True))
            raise ValueError(f"{folder.uri}: the rows do not match: {counts}")
        for place, (first, second) in enumerate(zip(*rows, strict=True)):
            wheres = [f"{folder.at(name)}: row {place}" for name in names]
            for name in SAME:
                if take(first, name, str, wheres[0]) != take(second, name, str, wheres[1]):
                    raise ValueError(f"{wheres[1]}: {name}={second[name]!r:.80}: differs from {names[0]}")
            yield Choice(
                NAME,
                split,
                str(place),
                first["image_path"].removeprefix("data/"),
                take_texts(first, "true_caption", wheres[0]) + take_texts(second, "true_caption", wheres[1]),
                take_texts(first, "false_caption", wheres[0]),
                REPLACE,
                kind,
            )
