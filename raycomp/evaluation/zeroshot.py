"""Zero-shot classification (Radford et al. 2021, arXiv:2103.00020): is the class's text the nearest?

CLIP_benchmark's protocol, except that ties count as wrong. C classes, K templates, G evaluated images.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raycomp.config.shared import ColumnsConfig
from raycomp.core.ranks import mean_directions
from raycomp.data.folder import Folder
from raycomp.data.paths import ShardPath
from raycomp.evaluation.benchmarks.choice import parse_text
from raycomp.evaluation.config import ZeroshotConfig
from raycomp.evaluation.evaluation import Picture, Pictures, Statuses, Texts, read_text
from raycomp.evaluation.labelled import LabelledImages, classify_images, open_labelled

NAME = "zeroshot"
TEMPLATE = "a photo of a {}."
# Placeholders of the class name: Python's and CLIP_benchmark's.
_PLACES = ("{}", "{c}")
# Files in the folder of CLIP_benchmark's shards or in its parent.
_CLASSES, _TEMPLATES = "classnames.txt", "zeroshot_classification_templates.txt"


@dataclass(frozen=True)
class Zeroshot:
    """Labelled images, and the names of the classes."""

    images: LabelledImages
    classes: Sequence[str]
    """In the order of their numbers, or of the sorted folders."""
    templates: Sequence[str]
    name: str = NAME

    @property
    def pictures(self) -> Sequence[Picture]:
        return self.images.pictures

    @property
    def shards(self) -> Sequence[ShardPath]:
        return self.images.shards

    def list_texts(self, pictures: Pictures) -> list[str]:
        """Return every class in every template, class by class."""
        return [fill(template, name) for name in self.classes for template in self.templates]

    def find_statuses(self, pictures: Pictures) -> dict[str, Statuses]:
        return {NAME: self.images.find_statuses(pictures)}

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return CLASSIFIED_SCHEMA's rows.

        Raises ValueError where a sample has an unknown class, or where a class's text, which every image is
        compared with, has a bad embedding.
        """
        if texts.bad:
            self._refuse_texts(texts.bad)
        examples = self.images.find_examples(pictures.asked)
        places = self._number_classes()
        for i in examples.good:
            if examples.labels[i] not in places:
                wanted = f"a number from 0 to {len(self.classes) - 1}, or a name"
                said = f"{examples.ids[i]} has class {examples.labels[i]!r}"
                raise ValueError(f"{self.images.option}: {said}; must be {wanted}")
        label_G = np.array([places[str(examples.labels[i])] for i in examples.good])
        text_TD = texts.take(self.list_texts(pictures))
        weight_CD = mean_directions(text_TD.reshape(len(self.classes), len(self.templates), -1))
        image_GD = examples.image_ND[examples.good]
        return classify_images(NAME, examples, label_G, image_GD, weight_CD, make_distinct(self.classes))

    def _refuse_texts(self, bad: Collection[str]) -> None:
        texts = [fill(template, name) for name in self.classes for template in self.templates]
        found = next((text for text in texts if text in bad), None)
        if found:
            raise ValueError(
                f"{NAME}.classes: {found!r} has an embedding that is not finite or not of length 1; "
                "rename the class, or set other model.weights"
            )

    def _number_classes(self) -> dict[str, int]:
        """Return the number of a class by each of its possible labels."""
        if self.images.classes:
            return {folder: number for number, folder in enumerate(self.images.classes)}
        names = {name: number for number, name in enumerate(self.classes)}
        return names | {str(number): number for number in range(len(self.classes))}


def make_distinct(names: Sequence[str]) -> list[str]:
    """Return the names; a name that several classes have gets the class number as a suffix."""
    count = Counter(names)
    return [name if count[name] == 1 else f"{name} #{i}" for i, name in enumerate(names)]


def fill(template: str, name: str) -> str:
    """Return the template with the name in its placeholders."""
    for place in _PLACES:
        template = template.replace(place, name)
    return template


def open_zeroshot(config: ZeroshotConfig, columns: ColumnsConfig | None = None) -> Zeroshot:
    """Return the benchmark. Raises ValueError, one line that names the option, where a part is missing."""
    images = open_labelled(config.input, f"{NAME}.input", columns)
    return Zeroshot(images, _read_classes(config, images), _read_templates(config, images))


def _read_classes(config: ZeroshotConfig, images: LabelledImages) -> list[str]:
    option = f"{NAME}.classes"
    names = (
        _read_list(config.classes, option) if config.classes else _find_list(images.shards, _CLASSES, option)
    )
    said = f"{option}={config.classes!r}"
    if names is None and images.shards:
        raise ValueError(f"{said}: must be set: the shards come without {_CLASSES}")
    names = [name.replace("_", " ") for name in images.classes] if names is None else names
    if images.classes and len(names) != len(images.classes):
        raise ValueError(f"{said}: has {len(names)} names, and {images.option} {len(images.classes)} classes")
    if len(names) < 2:
        raise ValueError(f"{said}: has {len(names)} class; must have at least 2")
    return names


def _read_templates(config: ZeroshotConfig, images: LabelledImages) -> list[str]:
    option = f"{NAME}.templates"
    found = _read_list(config.templates, option) if config.templates else None
    templates = found or _find_list(images.shards, _TEMPLATES, option) or [TEMPLATE]
    for template in templates:
        if not any(place in template for place in _PLACES):
            places = " or ".join(_PLACES)
            raise ValueError(f"{option}={config.templates!r}: {template!r} must have {places} for the name")
    return templates


def _find_list(shards: Sequence[ShardPath], name: str, option: str) -> list[str] | None:
    """Return the lines of a file in the folder of the first shard, or in its parent."""
    for shard in shards[:1]:
        for folder in (shard.uri.rpartition("/")[0], shard.uri.rpartition("/")[0].rpartition("/")[0]):
            if folder and Folder(folder).exists(name):
                return _read_list(f"{folder}/{name}", option)
    return None


def _read_list(uri: str, option: str) -> list[str]:
    """Return the texts of a file, one per line or a JSON list; ValueError if it is empty."""
    said = f"{option}={uri!r}"
    text = read_text(uri, said)
    if not uri.lower().endswith(".json"):
        found = text.splitlines()
    else:
        found = parse_text(text, said)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise ValueError(f"{said}: must hold a JSON list of texts")
    found = [item.strip() for item in found if item.strip()]
    if not found:
        raise ValueError(f"{said}: is empty")
    return found
