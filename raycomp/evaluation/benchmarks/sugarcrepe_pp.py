"""SugarCrepe++ (Dumpala et al. 2024, arXiv:2406.11171): SugarCrepe's edits with two positives each.

``data/{split}.json``: a list of id, filename, caption, caption2 (a paraphrase), negative_caption. Some of the
first captions were edited and differ from SugarCrepe's. Chance is 1/3: both positives above the negative.
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, read_json, take, take_texts
from raycomp.evaluation.benchmarks.sugarcrepe import EDITS

NAME = "sugarcrepe_pp"
SPLITS = ("replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")


def read(folder: Folder) -> Iterator[Choice]:
    """Yield the rows of all five splits; ValueError where a file or field is missing."""
    for split in SPLITS:
        name = f"{split}.json"
        for place, record in enumerate(read_json(folder, name, list)):
            where = f"{folder.at(name)}: row {place}"
            captions = take_texts(record, "caption", where) + take_texts(record, "caption2", where)
            yield Choice(
                NAME,
                split,
                str(take(record, "id", int | str, where)),
                take(record, "filename", str, where),
                captions,
                take_texts(record, "negative_caption", where),
                *EDITS[split],
            )
