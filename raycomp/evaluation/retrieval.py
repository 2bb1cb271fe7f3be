"""Retrieval: does an image retrieve one of its captions among all, and a caption its image?

CLIP_benchmark's recalls, except that ties count as wrong. M images to evaluate, T captions of theirs.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp import words
from raycomp.config.options import ColumnsConfig
from raycomp.core.intervals import Ranks, number_duplicates, rank_items
from raycomp.data.files import Folder, absolute_uri, join_uri
from raycomp.data.inputs import LIST, ShardPath
from raycomp.data.reader import list_records
from raycomp.data.samples import CAPTION_COLUMNS, IMAGE_COLUMNS, find_column, parse_object
from raycomp.evaluation.benchmarks.choice import is_text, parse_text, read_text, take, take_texts
from raycomp.evaluation.choices import Picture, Pictures, Statuses, Texts, expand, read_samples
from raycomp.evaluation.config import RetrievalConfig
from raycomp.evaluation.embed import find_images
from raycomp.schema import RETRIEVED_SCHEMA

NAME = "retrieval"
_FILES = ("captions.jsonl", "captions.json")
_FIELDS = ("captions", "caption")


class Item(NamedTuple):
    """An image with its captions."""

    image: str
    """The image's name in the file, or the shard's name and the sample's key; unique."""
    captions: tuple[str, ...]


class _Found(NamedTuple):
    """All images, and the embeddings of those that can be evaluated."""

    items: list[Item]
    statuses: list[str]
    image_MD: np.ndarray

    @property
    def good(self) -> list[Item]:
        return [item for item, status in zip(self.items, self.statuses, strict=True) if status == words.OK]


@dataclass(frozen=True)
class Retrieval:
    """Images with captions: files below a folder, or the samples of shards."""

    option: str
    """The option that names them and its value, as errors print it."""
    items: Sequence[Item]
    """The items of image files; empty for shards."""
    uris: Mapping[str, str]
    """Name of an image -> its uri, for the images that were found."""
    shards: Sequence[ShardPath]
    ambiguous: Sequence[str] = ()
    """Image names that match several files."""
    name: str = NAME
    warnings: tuple[str, ...] = field(default=(), repr=False)
    """Warnings on how its images were found."""

    @property
    def pictures(self) -> list[Picture]:
        """Return the image files that were found."""
        return [Picture(uri) for uri in self.uris.values()]

    def list_texts(self, pictures: Pictures) -> list[str]:
        """Return the captions of all images that can be evaluated."""
        return [text for item in self._find(pictures).good for text in item.captions]

    def find_statuses(self, pictures: Pictures) -> dict[str, Statuses]:
        """Return the status of every image, faults of its captions included."""
        items, statuses, _ = self._judge(pictures)
        return {NAME: [(item.image, status) for item, status in zip(items, statuses, strict=True)]}

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return RETRIEVED_SCHEMA's rows, an image's before those of its captions.

        An image that cannot be evaluated is excluded with its captions, as queries and as targets.
        """
        found = self._find(pictures, texts.bad)
        own_T = np.repeat(np.arange(len(found.good)), [len(item.captions) for item in found.good])
        text_TD = texts.take([text for item in found.good for text in item.captions])
        item_M = np.arange(len(found.good))
        by_image = rank_items(found.image_MD, text_TD, item_M, own_T)
        by_text = rank_items(text_TD, found.image_MD, own_T, item_M)
        images, captions = _list_queries(found)
        _rank_queries(words.IMAGE_TO_TEXT, images, by_image, len(own_T))
        _rank_queries(words.TEXT_TO_IMAGE, captions, by_text, len(item_M))
        return pa.Table.from_pylist(images + captions, RETRIEVED_SCHEMA)

    def _find(self, pictures: Pictures, bad: Collection[str] = ()) -> _Found:
        """Return the images; those with a ``bad`` caption are bad. Raises ValueError unless at least two can
        be evaluated.
        """
        items, statuses, image_ND = self._judge(pictures.asked)
        for i, item in enumerate(items):
            if statuses[i] == words.OK and any(text in bad for text in item.captions):
                statuses[i] = words.BAD_EMBEDDING
        is_good_N = np.array([status == words.OK for status in statuses])
        if is_good_N.sum() < 2:
            said = f"{is_good_N.sum()} of its {len(items)} images can be scored"
            raise ValueError(f"{self.option}: {said}; add images with captions")
        return _Found(items, statuses, image_ND[is_good_N])

    def _judge(self, pictures: Pictures) -> tuple[list[Item], list[str], np.ndarray]:
        """Return all images, their statuses and embeddings."""
        if self.shards:
            items, statuses, image_ND = self._read_shards(pictures)
        else:
            items, statuses, place_N = list(self.items), [], []
            for item in items:
                uri = self.uris.get(item.image)
                lost = words.AMBIGUOUS_IMAGE if item.image in self.ambiguous else words.NO_IMAGE
                place_N.append(0 if uri is None else pictures.place[Picture(uri)])
                statuses.append(lost if uri is None else pictures.status_M[place_N[-1]])
            image_ND = pictures.image_MD[place_N]
        for i, item in enumerate(items):
            if statuses[i] == words.OK and not item.captions:
                statuses[i] = words.NO_CAPTION
        return items, statuses, image_ND

    def _read_shards(self, pictures: Pictures) -> tuple[list[Item], list[str], np.ndarray]:
        samples, image_ND = read_samples(self.shards, pictures, self.option)
        columns = self.shards[0].columns
        items = [Item(sample.id, find_captions(sample.caption, sample.json, columns)) for sample in samples]
        statuses = [sample.status for sample in samples]
        if not any(shard.format == LIST for shard in self.shards):
            return items, statuses, image_ND
        # A list's further rows of an image have keys that end in #1 and so on: one item, with the captions of
        # all its good rows.
        places: dict[str, int] = {}
        joined: list[Item] = []
        chosen: list[int] = []
        for i, item in enumerate(items):
            name, _, number = item.image.rpartition("#")
            place = places.get(name) if number.isdecimal() else None
            if place is None or words.OK not in (statuses[i], statuses[chosen[place]]):
                places[item.image] = len(chosen)
                chosen.append(i)
                joined.append(item)
            elif statuses[chosen[place]] != words.OK:
                chosen[place], joined[place] = i, item
            elif statuses[i] == words.OK:
                joined[place] = joined[place]._replace(captions=joined[place].captions + item.captions)
        return joined, [statuses[i] for i in chosen], image_ND[chosen]


def _list_queries(found: _Found) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the images as queries, and all their captions, with RETRIEVED_SCHEMA's descriptive columns."""
    numbers = number_duplicates(found.image_MD).tolist()
    count = Counter(numbers)
    is_duplicate = iter(count[number] > 1 for number in numbers)
    owners = Counter(text for item in found.good for text in set(item.captions))
    images, captions = [], []
    for (image, own), status in zip(found.items, found.statuses, strict=True):
        is_good = status == words.OK
        defects = [words.DUPLICATE_IMAGE] if is_good and next(is_duplicate) else []
        same = {words.IMAGE: image, words.STATUS: status}
        num_own = len(own) if is_good else None
        images.append({**same, "id": image, "query": image, "defects": defects, "num_own": num_own})
        for place, text in enumerate(own):
            shared = [words.SHARED_CAPTION] if owners[text] > 1 else []
            asked = {"id": f"{image}#{place}", "query": text, "num_own": 1 if is_good else None}
            captions.append({**same, **asked, "defects": defects + shared})
    return images, captions


def _rank_queries(direction: str, queries: list[dict[str, Any]], ranks: Ranks, num_targets: int) -> None:
    """Complete the rows of queries; ``ranks`` covers those whose status is ok."""
    found = zip(ranks.rank_Q.tolist(), ranks.ties_Q.tolist(), strict=True)
    for query in queries:
        query |= {"benchmark": NAME, "split": words.TEST, "direction": direction}
        if query[words.STATUS] == words.OK:
            query["rank"], query["ties"] = next(found)
            query["num_targets"] = num_targets


def find_captions(
    caption: str | None, sample_json: str | None, columns: ColumnsConfig | None = None
) -> tuple[str, ...]:
    """Return a sample's captions: a list in its json, else the lines of its caption."""
    fields = parse_object(sample_json)[1] or {}
    if columns is not None and columns.captions != "first":
        fields = {}  # the caption is the one that was chosen
    names = _FIELDS if columns is None or columns.caption is None else (columns.caption,)
    listed = next((fields[name] for name in names if isinstance(fields.get(name), list)), None)
    texts = (caption or "").splitlines() if listed is None else listed
    return tuple(text.strip() for text in texts if is_text(text))


def open_retrieval(
    config: RetrievalConfig, option: str = f"{NAME}.input", columns: ColumnsConfig | None = None
) -> Retrieval:
    """Return the benchmark. Raises ValueError, one line that names the option, where a part is missing."""
    said = f"{option}={config.input!r}"
    if not config.input:
        raise ValueError(f"{said}: must name images with captions: a folder, a file or shards")
    file = None
    if "::" not in config.input:
        whole = absolute_uri(config.input)
        found_files = (join_uri(whole, name) for name in _FILES if Folder(whole).exists(name))
        file = whole if whole.lower().endswith((".json", ".jsonl")) else next(found_files, None)
    if file is None:  # shards
        if config.split is not None:
            raise ValueError(
                f"retrieval.split={config.split!r}: is for a json file of images, not for {said}"
            )
        try:
            return Retrieval(said, (), {}, expand(config.input, option, columns))
        except ValueError as error:
            raise ValueError(f"{error}; {' or '.join(_FILES)} is missing, too") from error
    items = _read_items(file, said, columns or ColumnsConfig(), config.split)
    try:
        found = find_images(Folder(file.rpartition("/")[0]), [item.image for item in items])
    except ValueError as error:
        raise ValueError(f"{said}: {error}") from error
    reported = tuple(found.warn_by_base_name(said))
    return Retrieval(said, items, found.uris, (), found.ambiguous, warnings=reported)


def _read_items(file: str, said: str, columns: ColumnsConfig, split: str | None = None) -> list[Item]:
    """Return the images of a file, each once, with all of its captions.

    The file is a JSON list, or holds one JSON object per line (.jsonl).
    """
    text = read_text(file, said)
    records: list[Any] | None
    if file.lower().endswith(".jsonl"):
        # Not splitlines: a caption may contain Unicode line separators.
        records = [parse_text(line, said) for line in text.split("\n") if line.strip()]
    else:
        records = list_records(parse_text(text, said))
    if records is None:
        raise ValueError(f"{said}: must hold a JSON list, or an object of captions by image")
    if split is not None:
        splits = {str(one["split"]) for one in records if isinstance(one, dict) and "split" in one}
        if split not in splits:
            there = ", ".join(sorted(splits)) or "none"
            raise ValueError(f"retrieval.split={split!r}: {said} has no such split; it has {there}")
        records = [one for one in records if isinstance(one, dict) and one.get("split") == split]
    captions: dict[str, list[str]] = {}
    for place, record in enumerate(records):
        where = f"{said}: row {place}"
        names = record if isinstance(record, dict) else ()
        image = take(record, find_column(names, columns.image, IMAGE_COLUMNS) or words.IMAGE, str, where)
        name = find_column(names, columns.caption, (*_FIELDS, *CAPTION_COLUMNS)) or _FIELDS[0]
        captions.setdefault(image, []).extend(take_texts(record, name, where))
    if not captions:
        raise ValueError(f"{said}: has no image with captions")
    return [Item(image, tuple(texts)) for image, texts in captions.items()]
