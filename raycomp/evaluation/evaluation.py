"""The interface of a benchmark for the embedding pass. Embeddings are shared across benchmarks.

M pictures, T texts, D embedding dims.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from raycomp import words
from raycomp.config.shared import ColumnsConfig
from raycomp.core import selection
from raycomp.core.leaks import find_shared, key_images, merge_keys
from raycomp.data.files import Folder
from raycomp.data.inputs import check_tables, expand_input
from raycomp.data.parquet import add_columns, to_matrix
from raycomp.data.paths import ShardPath
from raycomp.data.runs import check_shards_of_runs


class Picture(NamedTuple):
    """An image file, or a part of it."""

    uri: str
    box: tuple[int, int, int, int] | None = None
    """Left, top, width, height in pixels; None for the whole image."""


@dataclass(frozen=True)
class Pictures:
    """The embeddings and statuses of pictures."""

    place: Mapping[Picture, int]
    """File -> its row."""
    status_M: Sequence[str]
    """ok, or the reason why there is no embedding."""
    image_MD: np.ndarray
    """fp32, of length 1; 0 where the status is not ok."""
    shards: Mapping[str, pa.Table]
    """Uri of a shard -> its rows, in order: uid, key, caption, json, status, image_sha256 and
    image_embedding."""
    key_M: np.ndarray
    """Keys of the files, see ``core.leaks``; none where the status is not ok."""
    barred_K: np.ndarray = field(default_factory=lambda: np.zeros(0, selection.KEY))
    """Sorted keys of images that are barred from tests."""

    def bar(self, key_N: np.ndarray) -> "Pictures":
        """Return the pictures with these keys barred from tests, too."""
        return replace(self, barred_K=merge_keys([self.barred_K, key_N]))

    @property
    def asked(self) -> "Pictures":
        """The pictures with the status contaminated for barred ones, as a test uses them."""
        if not len(self.barred_K):
            return self
        shards = {}
        for uri, table in self.shards.items():
            is_shared_N = find_shared(self.barred_K, key_pictures(table))
            statuses = pa.array(_mark(table[words.STATUS].to_pylist(), is_shared_N), pa.string())
            shards[uri] = add_columns(table, {words.STATUS: statuses})
        status_M = _mark(self.status_M, find_shared(self.barred_K, self.key_M))
        return replace(self, status_M=status_M, shards=shards)


def _mark(statuses: Sequence[str], is_shared_M: np.ndarray) -> list[str]:
    return [words.CONTAMINATED if shared else own for own, shared in zip(statuses, is_shared_M, strict=True)]


def key_pictures(table: pa.Table) -> np.ndarray:
    """Return the keys of embedded pictures, as ``core.leaks`` makes them; none where the status is not ok."""
    columns = (table[name].to_pylist() for name in (words.IMAGE_SHA256, words.STATUS))
    return key_images(
        [sha256 if status == words.OK else None for sha256, status in zip(*columns, strict=True)]
    )


@dataclass(frozen=True)
class Texts:
    """The embeddings of texts."""

    place: Mapping[str, int]
    """Text -> its row."""
    text_TD: np.ndarray
    """fp32, of length 1; 0 for bad texts."""
    bad: frozenset[str] = frozenset()
    """Texts without an embedding: every example with one of them has the status bad_embedding."""

    def take(self, texts: Sequence[str]) -> np.ndarray:
        """Return the rows of these texts."""
        return self.text_TD[[self.place[text] for text in texts]]


Statuses = Sequence[tuple[str, str]]
"""The name and the status of every image."""


class Needs(Protocol):
    """Pictures and texts to embed."""

    @property
    def pictures(self) -> Sequence[Picture]:
        """The image files that it needs; may repeat."""

    @property
    def shards(self) -> Sequence[ShardPath]:
        """The shards whose pictures it needs, all of them."""

    def list_texts(self, pictures: Pictures) -> list[str]:
        """Return the texts that it needs; may repeat."""


class Evaluation(Needs, Protocol):
    """A benchmark: its inputs, and the results that follow from their embeddings."""

    @property
    def name(self) -> str:
        """The name of its file of scores."""

    def find_statuses(self, pictures: Pictures) -> Mapping[str, Statuses]:
        """Return the statuses of every set of images, by the set's name in messages."""

    def grade(self, pictures: Pictures, texts: Texts) -> pa.Table:
        """Return a row for every example: at least benchmark, split, id and status."""


class ShardRow(NamedTuple):
    """One row of a shard."""

    id: str
    """The shard's name and the sample's key."""
    status: str
    caption: str | None
    json: str | None


def expand(
    spec: str, option: str, columns: ColumnsConfig | None = None, needs_captions: bool = True
) -> list[ShardPath]:
    """Return the shards that an option names; ValueError as ``expand_input``, naming the option."""
    try:
        shards = expand_input(spec, columns=columns)
        check_shards_of_runs(shards)
        check_tables(shards, needs_captions)
        return shards
    except ValueError as error:
        said = str(error)
        said = option + said.removeprefix("input") if said.startswith("input") else f"{option}: {said}"
        raise ValueError(said) from error


def read_samples(
    shards: Sequence[ShardPath], pictures: Pictures, option: str
) -> tuple[list[ShardRow], np.ndarray]:
    """Return all samples of the shards, and their embeddings, fp32 (N, D), 0 where the status is not ok.

    Raises ValueError, naming the option, where a shard is none or has no sample.
    """
    samples: list[ShardRow] = []
    image = []
    for shard in shards:
        table = pictures.shards[shard.place]
        columns = [table[name].to_pylist() for name in (words.KEY, words.STATUS, words.CAPTION, words.JSON)]
        found = [ShardRow(f"{shard.name}/{key}", *rest) for key, *rest in zip(*columns, strict=True)]
        for sample in found:
            if sample.status in (words.EMPTY_SHARD, words.UNREADABLE_SHARD):
                raise ValueError(f"{option}: {shard.name} is an {sample.status}")
        samples += found
        image.append(to_matrix(table[words.IMAGE_EMBEDDING]))
    return samples, np.concatenate(image)


def read_text(uri: str, option: str) -> str:
    """Return a text file; ValueError, starting with ``option``, where it cannot be read or is not UTF-8."""
    try:
        return Folder(uri).read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ValueError(f"{option}: cannot be read: {' '.join(str(error).split())}") from error
