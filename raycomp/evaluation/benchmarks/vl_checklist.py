"""VL-CheckList (Zhao et al. 2022, arXiv:2207.00221): one word of a short caption replaced.

Every ``*.json`` below the folder is a split of that name: a list of [image, {"POS": [...], "NEG": [...]}].
The published test takes the first caption of each, and the first 1,000 rows of each file.
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, is_text, read_json, take_texts
from raycomp.words import CONCEPT_KINDS, REPLACE

NAME = "vl_checklist"


def read(folder: Folder) -> Iterator[Choice]:
    """Yield the rows of every file; ValueError where there is none, or a row has another shape."""
    names = [name for name in folder.find_names() if name.endswith(".json")]
    if not names:
        raise ValueError(f"{folder.uri}: has no *.json file below it")
    for name in names:
        split = name.removesuffix(".json")
        kind = next((kind for kind in CONCEPT_KINDS if kind in split.lower()), "")
        for place, record in enumerate(read_json(folder, name, list)):
            where = f"{folder.at(name)}: row {place}"
            if not isinstance(record, list) or len(record) != 2 or not is_text(record[0]):
                raise ValueError(f"{where}: must be [image, {{POS, NEG}}], is {record!r:.60}")
            positives = take_texts(record[1], "POS", where)
            negatives = take_texts(record[1], "NEG", where)
            yield Choice(NAME, split, str(place), record[0], positives, negatives, REPLACE, kind)
