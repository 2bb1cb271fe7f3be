"""Images with classes: a folder of images for each class, or shards whose samples have a class.

N examples, D embedding dims.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config.shared import ColumnsConfig
from raycomp.core.ranks import rank_items
from raycomp.data.image_folder import list_classes
from raycomp.data.paths import ShardPath, absolute_uri, join_uri
from raycomp.data.rows import parse_object
from raycomp.data.tar import IMAGE_EXTENSIONS
from raycomp.evaluation.evaluation import Picture, Pictures, Statuses, expand, key_pictures, read_samples
from raycomp.schema import CLASSIFIED_SCHEMA
from raycomp.words import IMAGE, NO_LABEL, OK, STATUS, TEST, TRAIN

# Fields of a sample's json; the first one that is present is its class.
_FIELDS = ("cls", "label")


@dataclass(frozen=True)
class Examples:
    """Images, readable or not, and their class labels."""

    ids: Sequence[str]
    statuses: Sequence[str]
    labels: Sequence[str | None]
    """The folder's name, or the shard's text or digits of a number; None where there is no label."""
    image_ND: np.ndarray
    """fp32, of length 1; 0 where the status is not ok."""
    key_N: np.ndarray
    """Keys of their images, see ``core.leaks``."""

    @property
    def good(self) -> list[int]:
        """The numbers of the examples that can be evaluated."""
        return [i for i, status in enumerate(self.statuses) if status == OK]


@dataclass(frozen=True)
class LabelledImages:
    """The images of a labelled set: in a folder for each class, or in shards."""

    option: str
    """The option that names them and its value, as errors print it."""
    folder: str
    classes: Mapping[str, Sequence[str]]
    """Class -> the names of its images in the folder; empty for shards."""
    shards: Sequence[ShardPath]

    @property
    def names(self) -> list[str]:
        """The image files, class by class."""
        return [name for names in self.classes.values() for name in names]

    @property
    def pictures(self) -> list[Picture]:
        """The image files as pictures."""
        return [self._picture(name) for name in self.names]

    def _picture(self, name: str) -> Picture:
        return Picture(join_uri(self.folder, name))

    def find_statuses(self, pictures: Pictures) -> Statuses:
        """Return the status of every image. Raises ValueError where a shard is empty."""
        examples = self._read(pictures)
        return list(zip(examples.ids, examples.statuses, strict=True))

    def find_examples(self, pictures: Pictures) -> Examples:
        """Return all images. Raises ValueError where a shard is empty, or no image can be evaluated."""
        examples = self._read(pictures)
        if not examples.good:
            found = ", ".join(sorted(set(examples.statuses)))
            raise ValueError(f"{self.option}: none of its {len(examples.ids)} images can be scored: {found}")
        return examples

    def _read(self, pictures: Pictures) -> Examples:
        return self._read_shards(pictures) if self.shards else self._read_folder(pictures)

    def _read_folder(self, pictures: Pictures) -> Examples:
        place_N = [pictures.place[self._picture(name)] for name in self.names]
        labels = [label for label, names in self.classes.items() for _ in names]
        statuses = [pictures.status_M[place] for place in place_N]
        return Examples(self.names, statuses, labels, pictures.image_MD[place_N], pictures.key_M[place_N])

    def _read_shards(self, pictures: Pictures) -> Examples:
        samples, image_ND = read_samples(self.shards, pictures, self.option)
        labels = [find_label(sample.json) for sample in samples]
        statuses = [
            NO_LABEL if sample.status == OK and label is None else sample.status
            for sample, label in zip(samples, labels, strict=True)
        ]
        key_N = np.concatenate([key_pictures(pictures.shards[shard.place]) for shard in self.shards])
        return Examples([sample.id for sample in samples], statuses, labels, image_ND, key_N)


def open_labelled(spec: str, option: str, columns: ColumnsConfig | None = None) -> LabelledImages:
    """Return the images that an option names; ``option`` is the option's name.

    Raises ValueError, one line with that name, where there are no images, one class, or a class without any.
    """
    said = f"{option}={spec!r}"
    if not spec:
        raise ValueError(f"{said}: must name a folder with a folder of images for each class, or shards")
    classes = None if "::" in spec else _list(spec, said)
    if classes is None:
        return LabelledImages(said, "", {}, expand(spec, option, columns, needs_captions=False))
    if not classes:
        raise ValueError(f"{said}: has no folders of images, one for each class, and no shards")
    if len(classes) == 1:
        raise ValueError(f"{said}: has one class, {next(iter(classes))!r}; must have at least 2")
    empty = next((name for name, images in classes.items() if not images), None)
    if empty is not None:
        known = ", ".join(IMAGE_EXTENSIONS)
        raise ValueError(f"{said}: class {empty!r} has no image; images end in one of {known}")
    return LabelledImages(said, absolute_uri(spec), classes, ())


def _list(spec: str, said: str) -> dict[str, list[str]] | None:
    try:
        return list_classes(spec)
    except (OSError, ValueError) as error:
        raise ValueError(f"{said}: cannot be read: {' '.join(str(error).split())}") from error


def find_label(json: str | None) -> str | None:
    """Return the class in a sample's json: digits of a whole number, or a text; None without one."""
    fields = parse_object(json)[1] or {}
    return next((label for name in _FIELDS if (label := _to_label(fields.get(name))) is not None), None)


def _to_label(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, float):  # pandas turns whole numbers into floats in a column with a null
        return str(int(value)) if value.is_integer() else None
    text = str(value).strip()
    return (str(int(text)) if text.isdecimal() and len(text) < 10 else text) or None


def classify_images(
    benchmark: str,
    examples: Examples,
    label_G: np.ndarray,
    feature_GD: np.ndarray,
    weight_CD: np.ndarray,
    names: Sequence[str],
) -> pa.Table:
    """Return a row for every example; those evaluated are ranked by ``feature_GD @ weight_CD.T``.

    ``label_G`` are the indices of their classes in ``names``.
    """
    classes_C = np.arange(len(names))
    ranks = rank_items(feature_GD, weight_CD, label_G, classes_C)
    predicted_G = np.where(ranks.rank_Q == 1, label_G, ranks.rival_Q)
    columns = _describe(benchmark, TEST, examples, range(len(examples.ids)))
    for g, i in enumerate(examples.good):
        columns["label"][i], columns["predicted"][i] = names[label_G[g]], names[predicted_G[g]]
        columns["rank"][i], columns["ties"][i] = int(ranks.rank_Q[g]), int(ranks.ties_Q[g])
        columns["margin"][i], columns["num_classes"][i] = float(ranks.margin_Q[g]), len(names)
    return pa.table(columns, CLASSIFIED_SCHEMA)


def list_unread(benchmark: str, examples: Examples) -> pa.Table:
    """Return rows of the split ``train`` for the examples that training could not use."""
    bad = [i for i, status in enumerate(examples.statuses) if status != OK]
    return pa.table(_describe(benchmark, TRAIN, examples, bad), CLASSIFIED_SCHEMA)


def _describe(benchmark: str, split: str, examples: Examples, which: Sequence[int]) -> dict[str, Any]:
    """Return the columns of some examples; their result columns are null."""
    ids = [examples.ids[i] for i in which]
    return {name: [None] * len(which) for name in CLASSIFIED_SCHEMA.names} | {
        "benchmark": [benchmark] * len(which),
        "split": [split] * len(which),
        "id": ids,
        IMAGE: ids,
        STATUS: [examples.statuses[i] for i in which],
    }
