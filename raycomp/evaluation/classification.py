"""Zero-shot classification, and images with classes from folders or shards.

CLIP_benchmark's protocol, except that ties count as wrong. N examples, G of them evaluated, C classes, K
templates, D embedding dims.

Linear probe (Radford et al. 2021, arXiv:2103.00020, section 3.2): a linear classifier on image embeddings.

Multinomial logistic regression on embeddings of length 1. The penalty with the highest accuracy on a fifth of
every class of the training images is selected; then all training images are used. Identical images stay
together. M images to learn from, C classes.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config.options import ColumnsConfig
from raycomp.core.intervals import mean_directions, number_duplicates, rank_items
from raycomp.data.files import Folder, absolute_uri, join_uri
from raycomp.data.inputs import IMAGE_EXTENSIONS, ShardPath, list_classes, split_input
from raycomp.data.parquet import add_columns
from raycomp.data.samples import parse_object
from raycomp.evaluation.benchmarks.choice import parse_text, read_text
from raycomp.evaluation.choices import Picture, Pictures, Statuses, Texts, expand, key_pictures, read_samples
from raycomp.evaluation.config import LinearProbeConfig, ZeroshotConfig
from raycomp.evaluation.results import AGGREGATES
from raycomp.schema import CLASSIFIED_SCHEMA
from raycomp.words import DROP, IMAGE, MACRO, MICRO, NO_LABEL, OK, STATUS, TEST, TRAIN, WARN

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
        return [Picture(join_uri(self.folder, name)) for name in self.names]

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
        if not self.shards:
            place_N = [pictures.place[picture] for picture in self.pictures]
            labels = [label for label, names in self.classes.items() for _ in names]
            statuses = [pictures.status_M[place] for place in place_N]
            image_ND, key_N = pictures.image_MD[place_N], pictures.key_M[place_N]
            return Examples(self.names, statuses, labels, image_ND, key_N)
        samples, image_ND = read_samples(self.shards, pictures, self.option)
        found = [find_label(sample.json) for sample in samples]
        both = zip([sample.status for sample in samples], found, strict=True)
        statuses = [NO_LABEL if status == OK and label is None else status for status, label in both]
        key_N = np.concatenate([key_pictures(pictures.shards[shard.place]) for shard in self.shards])
        return Examples([sample.id for sample in samples], statuses, found, image_ND, key_N)


def open_labelled(spec: str, option: str, columns: ColumnsConfig | None = None) -> LabelledImages:
    """Return the images that an option names; ``option`` is the option's name.

    Raises ValueError, one line with that name, where there are no images, one class, or a class without any.
    """
    said = f"{option}={spec!r}"
    if not spec:
        raise ValueError(f"{said}: must name a folder with a folder of images for each class, or shards")
    try:
        classes = None if "::" in spec else list_classes(spec)
    except (OSError, ValueError) as error:
        raise ValueError(f"{said}: cannot be read: {' '.join(str(error).split())}") from error
    if classes is None:
        return LabelledImages(said, "", {}, expand(spec, option, columns, needs_captions=False))
    if not classes:
        raise ValueError(f"{said}: has no folders of images, one for each class, and no shards")
    _check_several(said, list(classes))
    if {*classes} <= {"train", "val", "valid", "validation", "test"}:
        raise ValueError(f"{said}: its folders {', '.join(classes)} are splits, not classes; name one")
    empty = next((name for name, images in classes.items() if not images), None)
    if empty is not None:
        known = ", ".join(IMAGE_EXTENSIONS)
        raise ValueError(f"{said}: class {empty!r} has no image; images end in one of {known}")
    return LabelledImages(said, absolute_uri(spec), classes, ())


def _check_several(said: str, names: Sequence[str]) -> None:
    if len(names) == 1:
        raise ValueError(f"{said}: has one class, {names[0]!r}; must have at least 2")


def find_label(json: str | None) -> str | None:
    """Return the class in a sample's json: digits of a whole number, or a text; None without one."""
    fields = parse_object(json)[1] or {}
    for value in (fields.get(name) for name in _FIELDS):
        if isinstance(value, float) and value.is_integer():
            return str(int(value))  # pandas turns whole numbers into floats in a column with a null
        if isinstance(value, int | str) and not isinstance(value, bool):
            text = str(value).strip()
            if text:
                return str(int(text)) if text.isdecimal() and len(text) < 10 else text
    return None


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


NAME = "zeroshot"
TEMPLATE = "a photo of a {}."
# Placeholders of the class name: Python's and CLIP_benchmark's.
_PLACES = ("{}", "{c}")
# Files in the folder of CLIP_benchmark's shards or in its parent.
_CLASSES, _TEMPLATES = "classnames.txt", "zeroshot_classification_templates.txt"
_QUOTED = re.compile(r"""^(?:lambda c: ?f)?(["'])(.*)\1,?$""")  # a text as a line of Python
_NUMBER = re.compile(r"n\d{8}|\d+")  # names of classes that are no words, WordNet's ids among them


@dataclass(frozen=True)
class Zeroshot:
    """Labelled images, and the names of the classes."""

    images: LabelledImages
    classes: Sequence[str]
    """In the order of their numbers, or of the sorted folders."""
    templates: Sequence[str]
    name: str = NAME
    warnings: tuple[str, ...] = field(default=(), repr=False)
    """Warnings on the names of the classes."""

    @property
    def pictures(self) -> Sequence[Picture]:
        return self.images.pictures

    @property
    def shards(self) -> Sequence[ShardPath]:
        return self.images.shards

    def list_texts(self, pictures: Pictures) -> list[str]:
        """Return every class in every template, class by class."""
        return [t.replace("{}", name).replace("{c}", name) for name in self.classes for t in self.templates]

    def find_statuses(self, pictures: Pictures) -> dict[str, Statuses]:
        return {NAME: self.images.find_statuses(pictures)}

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return CLASSIFIED_SCHEMA's rows.

        Raises ValueError where a sample has an unknown class, or where a class's text, which every image is
        compared with, has a bad embedding.
        """
        wanted = self.list_texts(pictures)
        for bad in filter(texts.bad.__contains__, wanted):
            said = f"{NAME}.classes: {bad!r} has an embedding that is not finite or not of length 1"
            raise ValueError(f"{said}; rename the class, or set other model.weights")
        examples = self.images.find_examples(pictures.asked)
        labels = {i: str(examples.labels[i]) for i in examples.good}
        # A class by each of its possible labels: its folder, or its name and its number.
        names = list(self.images.classes or self.classes)
        count, numbers = Counter(names), {str(number): number for number in range(len(names))}
        places = {name: number for number, name in enumerate(names) if count[name] == 1}
        is_named = any(one.isdecimal() and one in places and one not in numbers for one in labels.values())
        places |= {} if is_named or self.images.classes else numbers
        for i, label in labels.items():
            if label not in places:
                said = (
                    f"class {label!r}; must be a number from 0 to {len(names) - 1}, or the name of one class"
                )
                raise ValueError(f"{self.images.option}: {examples.ids[i]} has {said}")
        label_G = np.array([places[label] for label in labels.values()])
        text_TD = texts.take(wanted)
        weight_CD = mean_directions(text_TD.reshape(len(self.classes), len(self.templates), -1))
        count = Counter(self.classes)
        names = [name if count[name] == 1 else f"{name} #{i}" for i, name in enumerate(self.classes)]
        return classify_images(NAME, examples, label_G, examples.image_ND[examples.good], weight_CD, names)


@dataclass(frozen=True)
class Sets:
    """Named sets of one benchmark, a Zeroshot or LinearProbe each; each is a split of its rows."""

    name: str
    parts: Mapping[str, Any]

    @property
    def pictures(self) -> list[Picture]:
        return [picture for part in self.parts.values() for picture in part.pictures]

    @property
    def shards(self) -> list[ShardPath]:
        return [shard for part in self.parts.values() for shard in part.shards]

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(line for part in self.parts.values() for line in getattr(part, "warnings", ()))

    def list_texts(self, pictures: Pictures) -> list[str]:
        return [text for part in self.parts.values() for text in part.list_texts(pictures)]

    def find_statuses(self, pictures: Pictures) -> dict[str, Statuses]:
        found = {name: part.find_statuses(pictures) for name, part in self.parts.items()}
        return {f"{said} {name}": own for name, one in found.items() for said, own in one.items()}

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return the rows of all sets; ids, images and keys of the schema's metadata have the set's name."""
        tables, found = [], dict[bytes, bytes]()
        for name, part in self.parts.items():
            table = part.grade(pictures, texts)
            columns = {one: pc.binary_join_element_wise(name, table[one], "/") for one in ("id", IMAGE)}
            columns["split"] = pc.if_else(pc.equal(table["split"], TEST), name, table["split"])
            tables.append(add_columns(table, columns))
            found |= {b"%b.%b" % (key, name.encode()): v for key, v in (table.schema.metadata or {}).items()}
        return pa.concat_tables(tables).replace_schema_metadata(found)


def _split_sets(group: str, config: Any, options: Sequence[str]) -> dict[str, Any]:
    """Return the config of each set that the first of ``options`` names, NAME=PATH joined with ``::``; empty
    without names. Other options have a value for each set by its name, or one for all. Raises ValueError."""
    reserved = (TRAIN, TEST, MICRO, MACRO, *AGGREGATES[NAME])
    values: dict[str, dict[str, str]] = {}
    for option in options:
        parts = split_input(getattr(config, option) or "")
        values[option] = own = dict(parts) if any(name for name, _ in parts) else {}
        said = f"{group}.{option}={getattr(config, option)!r}"
        if own and len({*own} - {"", *reserved}) < len(parts):
            raise ValueError(f"{said}: must be NAME=PATH::NAME=PATH, names unlike {', '.join(reserved)}")
        if other := own.keys() - values[options[0]].keys():
            raise ValueError(f"{said}: {group}.{options[0]} has no set named {min(other)!r}")
    sets = values[options[0]]
    return {name: replace(config, **{o: own.get(name) for o, own in values.items() if own}) for name in sets}


def open_zeroshot(
    config: ZeroshotConfig, columns: ColumnsConfig | None = None, option: str = f"{NAME}.input"
) -> Zeroshot | Sets:
    """Return the benchmark. Raises ValueError, one line that names the option, where a part is missing."""
    if sets := _split_sets(NAME, config, ("input", "classes", "templates")).items():
        parts = {name: open_zeroshot(own, columns, f"{NAME}.input: {name}") for name, own in sets}
        return Sets(NAME, {name: replace(part, name=f"{NAME} {name}") for name, part in parts.items()})
    images = open_labelled(config.input, option, columns)
    option, said = f"{NAME}.classes", f"{NAME}.classes={config.classes!r}"
    if config.classes:
        names = _read_list(config.classes, option)
    elif images.classes:
        names = [name.replace("_", " ") for name in images.classes]
    else:
        names = _find_list(images.shards, _CLASSES, option)
        if not names:
            raise ValueError(f"{said}: must be set: the shards come without {_CLASSES}")
    if images.classes and len(names) != len(images.classes):
        raise ValueError(f"{said}: has {len(names)} names, and {images.option} {len(images.classes)} classes")
    _check_several(said, names)
    joins = config.classes and images.classes
    names, warnings = _join_folders(names, list(images.classes), said) if joins else (names, [])
    option = f"{NAME}.templates"
    found = _read_list(config.templates, option) if config.templates else None
    templates = found or _find_list(images.shards, _TEMPLATES, option) or [TEMPLATE]
    for one in templates:
        if one.startswith("lambda") or not any(place in one for place in _PLACES):
            said = f"{one!r} must have {' or '.join(_PLACES)} for the name"
            raise ValueError(f"{option}={config.templates!r}: {said}")
    if bare := list(filter(_NUMBER.fullmatch, names)) if images.classes else []:
        shown = templates[0].replace("{}", bare[0]).replace("{c}", bare[0])
        of = f"{len(bare):,} of {len(names):,} classes are named by a number, as in {shown!r}"
        warnings.append(f"{said}: {of}; set {NAME}.classes to a file with words for them")
    return Zeroshot(images, names, templates, warnings=tuple(warnings))


def _join_folders(names: list[str], folders: list[str], said: str) -> tuple[list[str], list[str]]:
    """Return the names of a file by sorted folders, and a warning where only their order says which is whose.

    A line that starts with a folder's name ("n01440764 tench"), or equals it but for case, ``_`` and ``-``,
    is for it. Folders 0 to C - 1, or 1 to C, with a prefix or none, are numbers of lines. Raises ValueError
    where order and names contradict each other.
    """
    start, count = re.split(r"\d", folders[0], maxsplit=1)[0], len(names)
    numbers = [int(end) for folder in folders if (end := folder.removeprefix(start)).isdecimal()]
    heads = dict(re.split(r"[\s,;:]+", f"{name} ", maxsplit=1) for name in names)
    if all(map(_NUMBER.fullmatch, folders)) and heads.keys() == {*folders} and all(heads.values()):
        return [heads[folder].strip() for folder in folders], []
    own, folded = ([re.sub(r"[\s_-]+", " ", one).casefold() for one in some] for some in (folders, names))
    for keys, wanted in ((folded, own), (range(count), numbers), (range(1, count + 1), numbers)):
        places: dict[Any, int] = {key: place for place, key in enumerate(keys)}
        if len(places) == count and places.keys() == {*wanted}:
            return [names[places[key]] for key in wanted], []
    if len(numbers) == count and not (start and numbers == sorted(numbers)):
        valid = f"must be numbered 0 to {count - 1}, or 1 to {count}, or have the names of the file"
        raise ValueError(f"{said}: the folders {valid}; one is {folders[-1]!r}")
    unknown = [folder for folder, key in zip(folders, own, strict=True) if key not in folded]
    counts = f"{said}: {len(unknown):,} of {count:,} folders have no line of their name"
    for folder, key, line in zip(folders, own, folded, strict=True):
        if key in folded and key != line:
            raise ValueError(f"{counts}, and that of {folder!r} stands elsewhere; give all folders' names")
    return names, [f"{counts}; lines are taken for the sorted folders: {folders[0]!r} is {names[0]!r}"]


def _find_list(shards: Sequence[ShardPath], name: str, option: str) -> list[str]:
    """Return the lines of a file in the folder of the first shard, or in its parent; empty without it."""
    folder = shards[0].uri.rpartition("/")[0] if shards else ""
    for place in (folder, folder.rpartition("/")[0]):
        if place and Folder(place).exists(name):
            return _read_list(f"{place}/{name}", option)
    return []


def _read_list(uri: str, option: str) -> list[str]:
    """Return the texts of a file, one per line or a JSON list; ValueError if it is empty."""
    said = f"{option}={uri!r}"
    text = read_text(uri, said)
    if not uri.lower().endswith(".json"):
        found = [_QUOTED.sub(r"\2", line.strip()) for line in text.rstrip().splitlines()]
    else:
        found = parse_text(text, said)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise ValueError(f"{said}: must hold a JSON list of texts")
    kept = [item.strip() for item in found if item.strip()]
    if not kept:
        raise ValueError(f"{said}: is empty")
    if len(kept) < len(found) and option == f"{NAME}.classes":
        raise ValueError(f"{said}: one of its {len(found)} entries is empty; each must name a class")
    return kept


LINEAR_PROBE = "linear_probe"
# Keys of the schema's metadata.
PENALTY, VALIDATION = b"penalty", b"validation_acc1"


@dataclass(frozen=True)
class LinearProbe:
    """Labelled images for training, and others for testing."""

    train: LabelledImages
    test: LabelledImages
    seed: int = 0
    overlap: str = WARN
    """warn, or drop: training images are left out of the test set."""
    name: str = LINEAR_PROBE

    @property
    def pictures(self) -> list[Picture]:
        return self.train.pictures + self.test.pictures

    @property
    def shards(self) -> list[ShardPath]:
        return [*self.train.shards, *self.test.shards]

    def list_texts(self, pictures: Pictures) -> list[str]:
        return []

    def find_statuses(self, pictures: Pictures) -> dict[str, Statuses]:
        """Return the status of every training image, and of every test image."""
        parts = {"train": self.train, "test": self.test}
        return {f"{LINEAR_PROBE}.{name}": images.find_statuses(pictures) for name, images in parts.items()}

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return CLASSIFIED_SCHEMA's rows: the test images, then the training images that were unusable.

        The schema's metadata hold the penalty and its accuracy on the fifth. Raises ValueError where the test
        has a class without training images, and where no images are left to select the penalty.
        """
        from raycomp.core.logistic import choose_penalty, fit_logistic, hold_out_fifth

        known = self.train.find_examples(pictures)
        seen = pictures.bar(known.key_N[known.good]) if self.overlap == DROP else pictures
        asked = self.test.find_examples(seen.asked)
        names = sorted({str(known.labels[i]) for i in known.good})
        number = {name: i for i, name in enumerate(names)}
        _check_several(self.train.option, names)
        unknown = sorted({str(asked.labels[i]) for i in asked.good} - set(names))
        if unknown:
            said = f"{len(unknown)} of its classes are not in {self.train.option}, such as {unknown[0]!r}"
            raise ValueError(f"{self.test.option}: {said}")
        label_M = np.array([number[str(known.labels[i])] for i in known.good])
        image_MD = known.image_ND[known.good]
        is_held_M = hold_out_fifth(label_M, number_duplicates(image_MD), np.random.default_rng(self.seed))
        if not is_held_M.any():
            raise ValueError(f"{self.train.option}: must have a class with at least two different images")
        penalty, shares = choose_penalty(image_MD, label_M, len(names), is_held_M)
        fitted = fit_logistic(image_MD, label_M, len(names), penalty)
        image_GD = asked.image_ND[asked.good]
        label_G = np.array([number[str(asked.labels[i])] for i in asked.good])
        # The bias is the weight of a feature that is 1.
        feature_GD = np.append(image_GD, np.ones((len(image_GD), 1), np.float32), axis=1)
        weight_CD = np.append(fitted.weight_CD, fitted.bias_C[:, None], axis=1)
        tested = classify_images(LINEAR_PROBE, asked, label_G, feature_GD, weight_CD, names)
        found = {PENALTY: str(penalty).encode(), VALIDATION: str(max(shares)).encode()}
        bad = [i for i, status in enumerate(known.statuses) if status != OK]
        unread = pa.table(_describe(LINEAR_PROBE, TRAIN, known, bad), CLASSIFIED_SCHEMA)
        return pa.concat_tables([tested, unread]).replace_schema_metadata(found)


def open_linear_probe(
    config: LinearProbeConfig, overlap: str = WARN, columns: ColumnsConfig | None = None, own: str = ""
) -> LinearProbe | Sets:
    """Return the benchmark. Raises ValueError, one line that names the option, where a part is missing."""
    if sets := _split_sets(LINEAR_PROBE, config, ("train", "test")).items():
        parts = {name: open_linear_probe(one, overlap, columns, f": {name}") for name, one in sets}
        return Sets(
            LINEAR_PROBE, {one: replace(part, name=f"{LINEAR_PROBE} {one}") for one, part in parts.items()}
        )
    halves = ((getattr(config, name), f"{LINEAR_PROBE}.{name}{own}") for name in ("train", "test"))
    train, test = (open_labelled(*half, columns) for half in halves)
    return LinearProbe(train, test, config.seed, overlap)
