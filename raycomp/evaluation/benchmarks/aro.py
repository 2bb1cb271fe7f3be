"""ARO (Yuksekgonul et al. 2023, arXiv:2210.01936): Visual Genome Relation and Attribution.

The user downloads ``visual_genome_relation.json`` and ``visual_genome_attribution.json`` (one is enough):
lists of image_path, true_caption, false_caption, and a box that the image is cropped to before scoring.
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, read_json, take, take_pixels, take_texts
from raycomp.words import ATTRIBUTE, OBJECT, SWAP

NAME = "aro"
FILES = {
    "relation": ("visual_genome_relation.json", (SWAP, OBJECT)),
    "attribution": ("visual_genome_attribution.json", (SWAP, ATTRIBUTE)),
}
BOX = ("bbox_x", "bbox_y", "bbox_w", "bbox_h")


def read(folder: Folder) -> Iterator[Choice]:
    """Yield the rows of the files that are there; ValueError where there is none or a field is missing."""
    found = {split: file for split, file in FILES.items() if folder.exists(file[0])}
    if not found:
        raise ValueError(f"{folder.uri}: has neither {' nor '.join(name for name, _ in FILES.values())}")
    for split, (name, edit) in found.items():
        for place, record in enumerate(read_json(folder, name, list)):
            where = f"{folder.at(name)}: row {place}"
            left, top, width, height = (take_pixels(record, side, where) for side in BOX)
            yield Choice(
                NAME,
                split,
                str(place),
                take(record, "image_path", str, where),
                take_texts(record, "true_caption", where),
                take_texts(record, "false_caption", where),
                *edit,
                box=(left, top, width, height),
            )
