"""CLEVR and CoGenT scenes (Johnson et al. 2017, arXiv:1612.06890): coloured solids on a table.

``CLEVR_*_scenes.json``: {"scenes": [{"image_filename", "split", "objects": [{"size", "color", "material",
"shape"}]}]}; images are ``images/SPLIT/FILE``. The scenes have no captions. The caption lists the objects in
the file's order, and they are the primitives, so the binding of attributes is kept.
"""

from collections.abc import Iterator

from raycomp.continual.layouts.row import Row, add_article
from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import read_json, take

NAME = "clevr"
_WORDS = ("size", "color", "material", "shape")


def read(folder: Folder, name: str, half: str) -> Iterator[Row]:
    """Yield a row for every scene; ValueError where a field is missing or misshapen."""
    scenes = take(read_json(folder, name, dict), "scenes", list, folder.at(name))
    for place, scene in enumerate(scenes):
        where = f"{folder.at(name)}: scene {place}"
        image, split = (take(scene, field, str, where) for field in ("image_filename", "split"))
        things = take(scene, "objects", list, where)
        named = [" ".join(take(thing, word, str, where) for word in _WORDS) for thing in things]
        caption = ", ".join(map(add_article, named))
        yield Row(f"{split}/{image}", caption, tuple(dict.fromkeys(named)))
