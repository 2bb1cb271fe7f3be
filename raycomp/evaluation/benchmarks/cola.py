"""COLA, multi-object matching (Ray et al. 2023, arXiv:2305.03689): two images, captions that swap attributes.

``data/COLA_multiobjects_matching_benchmark.json``: a list of [image 1, caption 1, image 2, caption 2]; an
image is a URL that ends in the name of a Visual Genome file.
"""

from collections.abc import Iterator

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import Choice, is_text, pair_up, read_json
from raycomp.words import ATTRIBUTE, SWAP

NAME = "cola"
FILE = "COLA_multiobjects_matching_benchmark.json"
SPLIT = "multi_objects"


def read(folder: Folder) -> Iterator[Choice]:
    """Yield two rows for every item; ValueError where the file is missing or a row has another shape."""
    for place, record in enumerate(read_json(folder, FILE, list)):
        if not isinstance(record, list) or len(record) != 4 or not all(map(is_text, record)):
            where = f"{folder.at(FILE)}: row {place}"
            raise ValueError(f"{where}: must be [image 1, caption 1, image 2, caption 2], is {record!r:.80}")
        images = tuple(record[i].rpartition("/")[2] for i in (0, 2))
        captions = (record[1].strip(),), (record[3].strip(),)
        yield from pair_up(NAME, SPLIT, str(place), (images[0], images[1]), captions, SWAP, ATTRIBUTE)
