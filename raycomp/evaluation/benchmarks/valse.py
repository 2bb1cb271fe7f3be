"""VALSE (Parcalabescu et al. 2022, arXiv:2112.07566): captions and foils for six linguistic phenomena.

``data/{piece}.json``: id -> image_file, caption, foil (or foils), mturk, the votes of three annotators for
the caption, the foil or neither. Published scores use the rows with at least two votes for the caption; the
others are read too, marked ``UNCONFIRMED``.
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import UNCONFIRMED, Choice, read_json, take, take_texts
from raycomp.words import OBJECT, RELATION, REPLACE, SWAP

NAME = "valse"
# For foils in answers, numbers, existence and plurality the paper names no edited concept.
EDITS = {
    "actant-swap": (SWAP, OBJECT),
    "action-replacement": (REPLACE, RELATION),
    "coreference-hard": ("", ""),
    "coreference-standard": ("", ""),
    "counting-adversarial": (REPLACE, ""),
    "counting-hard": (REPLACE, ""),
    "counting-small-quant": (REPLACE, ""),
    "existence": ("", ""),
    "foil-it": (REPLACE, OBJECT),
    "plurals": ("", ""),
    "relations": (REPLACE, RELATION),
}
VOTES_NEEDED = 2


def read(folder: Folder) -> Iterator[Choice]:
    """Yield the rows of all eleven pieces; ValueError where a file or field is missing."""
    for split, (op, kind) in EDITS.items():
        name = f"{split}.json"
        for key, record in read_json(folder, name, dict).items():
            where = f"{folder.at(name)}: row {key!r}"
            votes = take(take(record, "mturk", dict, where), "caption", int, f"{where}: mturk")
            yield Choice(
                NAME,
                split,
                key,
                take(record, "image_file", str, where),
                take_texts(record, "caption", where),
                take_texts(record, "foil" if "foil" in record else "foils", where),
                op,
                kind,
                () if votes >= VOTES_NEEDED else (UNCONFIRMED,),
            )
