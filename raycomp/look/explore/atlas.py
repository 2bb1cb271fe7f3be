"""The rows that are shown as one Parquet file for viewers of others: embedding-atlas, FiftyOne.

Columns: all that hold one value a row; ``phrase_texts``; ``thumbnail``, a struct of bytes and path, as
Hugging Face writes images; ``projection_x`` and ``projection_y``; ``neighbors``, a struct of ids, which are
numbers of rows in the file from 0, and distances, 1 - cosine, equally many in every row: embedding-atlas asks
for that.
"""

import importlib
import importlib.util
import shlex
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from raycomp.core.projection import project_pca
from raycomp.data.parquet import write_groups
from raycomp.look.explore.config import UMAP, ExploreConfig
from raycomp.look.explore.jobs import Embeddings, Job, Shards, list_targets, read_rows
from raycomp.look.explore.rows import Source, list_flat
from raycomp.run.tasks import map_tasks
from raycomp.words import PHRASES

_THUMBNAIL = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_NEIGHBORS = pa.struct([("ids", pa.list_(pa.int64())), ("distances", pa.list_(pa.float32()))])


def check_atlas(uri: str, config: ExploreConfig) -> None:
    """Raise ValueError where the file cannot be written, or umap is asked for and missing."""
    if not uri.endswith(".parquet"):
        raise ValueError(f"--atlas {uri}: must end in .parquet")
    if config.projection == UMAP and importlib.util.find_spec("umap") is None:
        raise ValueError("projection=umap: needs the package umap-learn; install it, or set projection=pca")


def write_atlas(
    jobs: Sequence[Job],
    source: Source,
    config: ExploreConfig,
    shards: Shards,
    embeddings: Embeddings,
    uri: str,
) -> str:
    """Write the rows of the jobs to the file; return the line that opens it."""
    place_M2 = np.full((embeddings.num_rows, 2), np.nan, np.float32)
    place_M2[embeddings.row_E] = _project(embeddings.value_ED, config)
    places = [place_M2[job.shown.first :][: len(job.shown.row_M)] for job in jobs]
    tables = map_tasks(
        _make_table, list(zip(jobs, places, strict=True)), source, config, shards, label="atlas"
    )
    first = next(tables)
    write_groups(chain([first], tables), uri, first.schema)
    return (
        f"{uri}: {embeddings.num_rows:,} rows; look at them with\n"
        f"embedding-atlas {shlex.quote(uri)} --duckdb server --x projection_x --y projection_y "
        "--neighbors neighbors --image thumbnail --text caption"
    )


def _project(value_ED: np.ndarray, config: ExploreConfig) -> np.ndarray:
    if config.projection != UMAP:
        return project_pca(value_ED)
    umap = importlib.import_module("umap")
    model = umap.UMAP(metric="cosine", random_state=config.seed)
    return model.fit_transform(value_ED.astype(np.float32))


def _make_table(
    placed: tuple[Job, np.ndarray], source: Source, config: ExploreConfig, shards: Shards
) -> pa.Table:
    """Return the rows of a job with their photo, place and nearest rows."""
    job, place_M2 = placed
    table, photos = read_rows(job, source, config, shards)
    found = table.select(list_flat(table))
    texts = [one and [phrase["text"] for phrase in one] for one in list_targets(table, PHRASES)]
    found = found.append_column("phrase_texts", pa.array(texts, pa.list_(pa.string())))
    images = [{"bytes": photos.get(row), "path": None} for row in job.shown.row_M.tolist()]
    found = found.append_column("thumbnail", pa.array(images, _THUMBNAIL))
    for axis, name in enumerate(("projection_x", "projection_y")):
        value_M = place_M2[:, axis]
        found = found.append_column(name, pa.array(value_M, mask=np.isnan(value_M)))
    return found.append_column("neighbors", pa.array(_list_near(job), _NEIGHBORS))


def _list_near(job: Job) -> list[dict[str, list[float]]]:
    """Return the nearest rows of each row; where fewer are known, the row itself fills their places."""
    own_M = job.shown.first + np.arange(len(job.near_MK))
    near_MK = np.where(job.near_MK < 0, own_M[:, None], job.near_MK)
    far_MK = np.where(job.near_MK < 0, 0, 1 - job.cosine_MK)
    return [
        {"ids": ids, "distances": far} for ids, far in zip(near_MK.tolist(), far_MK.tolist(), strict=True)
    ]
