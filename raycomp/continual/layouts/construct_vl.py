"""ConStruct-VL (Smith et al. 2023, arXiv:2211.09790): one file of VL-CheckList per task.

A list of [image, {"POS": [...], "NEG": [...]}]: the first caption of each are the candidate answers. The
images, each once in the file's order, are shuffled by seed 0: the first 80 % are for training, the last 10 %
for testing, and those between are unused.
"""

from collections.abc import Iterator
from random import Random

from raycomp.continual.layouts.row import Row
from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import is_text, read_json, take_texts

NAME = "construct_vl"


def read(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """Yield the rows of a half; ValueError where a row has another shape."""
    records = read_json(folder, name, list)
    for place, record in enumerate(records):
        if not isinstance(record, list) or len(record) != 2 or not is_text(record[0]):
            where = f"{folder.at(name)}: row {place}"
            raise ValueError(f"{where}: must be [image, {{POS, NEG}}], is {record!r:.60}")
    chosen = split_images([record[0] for record in records], half)
    for place, (image, texts) in enumerate(records):
        where = f"{folder.at(name)}: row {place}"
        right, wrong = (take_texts(texts, side, where)[0] for side in ("POS", "NEG"))
        if image in chosen:
            yield Row(image, right, candidates=(right, wrong), kind=name.removesuffix(".json"))


def split_images(images: list[str], half: str) -> set[str]:
    """Return the images of a half."""
    order = list(dict.fromkeys(images))
    Random(0).shuffle(order)
    return set(order[: len(order) * 8 // 10] if half == "train" else order[len(order) * 9 // 10 :])
