"""SugarCrepe (Hsieh et al. 2023, arXiv:2306.14610): captions of COCO val2017, negatives by ChatGPT.

``data/{split}.json``: id (with gaps) -> filename, caption, negative_caption.
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, read_json, take, take_texts
from raycomp.words import ADD, ATTRIBUTE, OBJECT, RELATION, REPLACE, SWAP

NAME = "sugarcrepe"
EDITS = {
    "add_att": (ADD, ATTRIBUTE),
    "add_obj": (ADD, OBJECT),
    "replace_att": (REPLACE, ATTRIBUTE),
    "replace_obj": (REPLACE, OBJECT),
    "replace_rel": (REPLACE, RELATION),
    "swap_att": (SWAP, ATTRIBUTE),
    "swap_obj": (SWAP, OBJECT),
}


def read(folder: Folder) -> Iterator[Choice]:
    """Yield the rows of all seven splits; ValueError where a file or field is missing."""
    for split, (op, kind) in EDITS.items():
        name = f"{split}.json"
        for key, record in read_json(folder, name, dict).items():
            where = f"{folder.at(name)}: row {key!r}"
            yield Choice(
                NAME,
                split,
                key,
                take(record, "filename", str, where),
                take_texts(record, "caption", where),
                take_texts(record, "negative_caption", where),
                op,
                kind,
            )
