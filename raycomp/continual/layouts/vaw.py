"""VAW (Pham et al. 2021, arXiv:2106.09707): objects of Visual Genome with their attributes.

``*.json``: a list of {image_id, instance_id, instance_bbox, object_name, positive_attributes,
negative_attributes}; images are Visual Genome's ``IMAGE_ID.jpg``, cut to the box. The caption has the
attributes and the object, "a parked, red car"; they are the primitives.
"""

from collections.abc import Iterator

from raycomp.continual.layouts.row import Row, add_article, name_file, take_words
from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import read_json, take, take_pixels

NAME = "vaw"


def read(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """Yield the rows; ValueError where a field is missing or misshapen."""
    for place, record in enumerate(read_json(folder, name, list)):
        where = f"{folder.at(name)}: row {place}"
        image = take(record, "image_id", str | int, where)
        thing = take(record, "object_name", str, where).strip()
        attributes = tuple(dict.fromkeys(take_words(record, "positive_attributes", where)))
        sides = take(record, "instance_bbox", list, where)
        if len(sides) != 4:
            raise ValueError(f"{where}: instance_bbox={sides!r:.80}: must be left, top, width, height")
        left, top, width, height = (
            take_pixels({"instance_bbox": one}, "instance_bbox", where) for one in sides
        )
        said = " ".join(part for part in (", ".join(attributes), thing) if part)
        yield Row(name_file(image), add_article(said), (*attributes, thing), (left, top, width, height))
