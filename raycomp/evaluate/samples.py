"""The samples of an exam's shards, and the shards that a dial names.

N samples, D embedding dims.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raycomp.data.arrow import to_matrix
from raycomp.data.folder import Folder
from raycomp.data.inputs import expand_input
from raycomp.data.paths import ShardPath
from raycomp.data.runs import check_shards_of_runs
from raycomp.evaluate.exam import Pictures
from raycomp.words import CAPTION, EMPTY_SHARD, IMAGE_EMBEDDING, JSON, KEY, STATUS, UNREADABLE_SHARD


class ShardRow(NamedTuple):
    """One row of a shard."""

    id: str
    """The shard's name and the sample's key."""
    status: str
    caption: str | None
    json: str | None


def expand(spec: str, dial: str) -> list[ShardPath]:
    """Return the shards that a dial names; ValueError as ``expand_input``, naming the dial."""
    try:
        shards = expand_input(spec)
        check_shards_of_runs(shards)
        return shards
    except ValueError as error:
        said = str(error)
        said = dial + said.removeprefix("input") if said.startswith("input") else f"{dial}: {said}"
        raise ValueError(said) from error


def read_samples(
    shards: Sequence[ShardPath], pictures: Pictures, dial: str
) -> tuple[list[ShardRow], np.ndarray]:
    """Return all samples of the shards, and their embeddings, fp32 (N, D), 0 where the status is not ok.

    Raises ValueError, naming the dial, where a shard is none or has no sample.
    """
    samples: list[ShardRow] = []
    image = []
    for shard in shards:
        table = pictures.shards[shard.uri]
        columns = [table[name].to_pylist() for name in (KEY, STATUS, CAPTION, JSON)]
        found = [ShardRow(f"{shard.name}/{key}", *rest) for key, *rest in zip(*columns, strict=True)]
        for sample in found:
            if sample.status in (EMPTY_SHARD, UNREADABLE_SHARD):
                raise ValueError(f"{dial}: {shard.name} is an {sample.status}")
        samples += found
        image.append(to_matrix(table[IMAGE_EMBEDDING]))
    return samples, np.concatenate(image)


def read_text(uri: str, dial: str) -> str:
    """Return a text file; ValueError, beginning with ``dial``, where it cannot be read or is not UTF-8."""
    try:
        return Folder(uri).read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ValueError(f"{dial}: cannot be read: {' '.join(str(error).split())}") from error
