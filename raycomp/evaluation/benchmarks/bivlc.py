"""BiVLC (Miranda et al. 2024, arXiv:2406.09952): SugarCrepe's pairs with an image made for the false caption.

It is published as Parquet with the images inside (``imirandam/BiVLC``, split test). This module reads
``bivlc.jsonl``, a line for each row with the published fields: caption, negative_caption, type (add, replace,
swap), subtype (att, obj, rel), and image and negative_image as the names of files that hold their bytes.
The ``datasets`` library writes it::

    rows = load_dataset("imirandam/BiVLC", split="test")
    for name in ("image", "negative_image"):
        rows = rows.cast_column(name, Image(decode=False))
    with open("bivlc.jsonl", "w") as file:
        for place, row in enumerate(rows):
            for name in ("image", "negative_image"):
                path = f"{place}_{name}.jpg"
                pathlib.Path("images", path).write_bytes(row[name]["bytes"])
                row[name] = path
            file.write(json.dumps(row) + "\\n")
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, pair_up, read_lines, take, take_texts
from raycomp.evaluation.benchmarks.sugarcrepe import EDITS

NAME = "bivlc"
FILE = "bivlc.jsonl"


def read(folder: Folder) -> Iterator[Choice]:
    """Yield two rows for every item, splits as in SugarCrepe; ValueError where a file or field is missing."""
    for place, (where, record) in enumerate(read_lines(folder, FILE)):
        split = "_".join(take(record, name, str, where).lower() for name in ("type", "subtype"))
        if split not in EDITS:
            raise ValueError(
                f"{where}: type and subtype give {split!r:.80}: must be one of {', '.join(EDITS)}"
            )
        yield from pair_up(
            NAME,
            split,
            str(place),
            (take(record, "image", str, where), take(record, "negative_image", str, where)),
            (take_texts(record, "caption", where), take_texts(record, "negative_caption", where)),
            *EDITS[split],
        )
