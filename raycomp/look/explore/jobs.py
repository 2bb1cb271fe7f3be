"""The work on the rows that are shown: their embeddings and nearest rows, jobs of many rows, small photos.

M rows are shown, E of them have an embedding; D dimensions, K nearest rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.core.near import find_nearest
from raycomp.curation.publish import stream_photos
from raycomp.data.arrow import to_matrix
from raycomp.data.parquet import read_columns
from raycomp.data.paths import ShardPath
from raycomp.look.explore.config import ExploreConfig
from raycomp.look.explore.rows import Shown, Source
from raycomp.report.page import shrink_photo
from raycomp.run.tasks import map_tasks
from raycomp.words import IMAGE_EMBEDDING, SHARD

# Rows of one job: their small photos are held in memory, and a tar is read anew for each.
_ROWS_PER_JOB = 50_000
Shards = Mapping[str, ShardPath]
"""The input's shards by name; none where they are gone."""


class Embeddings(NamedTuple):
    """The image embeddings of the rows that have one."""

    num_rows: int
    row_E: np.ndarray
    value_ED: np.ndarray


class Job(NamedTuple):
    """Rows of one file, with the numbers of their nearest rows, -1 for none, and the cosines."""

    shown: Shown
    near_MK: np.ndarray
    cosine_MK: np.ndarray


def load_embeddings(shown: Sequence[Shown]) -> Embeddings:
    """Return the embeddings of all rows that are shown, in the precision of the scores files."""
    found = list(map_tasks(_load_embeddings, shown, label="embeddings"))
    num_rows = sum(len(one.row_M) for one in shown)
    row_E = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in found)])
    values = [value_ED for _, value_ED in found if len(value_ED)]
    return Embeddings(num_rows, row_E, np.concatenate(values) if values else np.zeros((0, 1), np.float32))


def _load_embeddings(shown: Shown) -> tuple[np.ndarray, np.ndarray]:
    column = read_columns(shown.file.uri, [IMAGE_EMBEDDING])[IMAGE_EMBEDDING].take(pa.array(shown.row_M))
    return shown.first + np.flatnonzero(column.is_valid().to_numpy()), to_matrix(column.drop_null())


def plan_jobs(shown: Sequence[Shown], embeddings: Embeddings, config: ExploreConfig) -> list[Job]:
    """Return the jobs in the order of their rows."""
    near_EK, found_EK = find_nearest(embeddings.value_ED, config.neighbours, config.seed)
    near_MK = np.full((embeddings.num_rows, near_EK.shape[1]), -1, np.int32)
    cosine_MK = np.zeros(near_MK.shape, np.float32)
    if near_MK.size:
        near_MK[embeddings.row_E] = np.where(near_EK < 0, -1, embeddings.row_E[near_EK])
        cosine_MK[embeddings.row_E] = found_EK
    jobs = []
    for one in shown:
        for start in range(0, len(one.row_M), _ROWS_PER_JOB):
            row_M, first = one.row_M[start : start + _ROWS_PER_JOB], one.first + start
            rows = slice(first, first + len(row_M))
            jobs.append(Job(one._replace(row_M=row_M, first=first), near_MK[rows], cosine_MK[rows]))
    return jobs


def list_targets(table: pa.Table, name: str) -> list[Any]:
    """Return a column of phrases, or of other words, of each row; None where there are none."""
    return table[name].to_pylist() if name in table.column_names else [None] * len(table)


def read_rows(
    job: Job, source: Source, config: ExploreConfig, shards: Shards
) -> tuple[pa.Table, dict[int, bytes]]:
    """Return the columns of a job's rows, and their small photos by place in the file.

    There is no photo where its bytes are not those that were scored.
    """
    shown = job.shown
    table = source.read(shown.file).take(pa.array(shown.row_M))
    shard = shards.get(table[SHARD][0].as_py())
    if shard is None or not config.thumbnails:
        return table, {}
    photos = stream_photos(shard, shown.file.uri, {*shown.row_M.tolist()})
    small = ((place, shrink_photo(image, config.side)) for place, image in photos)
    return table, {place: photo for place, photo in small if photo is not None}
