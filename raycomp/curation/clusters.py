"""Clusters of image embeddings: the parts in which near-duplicates are searched, and caps on their size.

The centres are those of k-means on the rows of the smallest hashed uids, so they depend on the set of rows
alone. A cap drops the rows of a cluster after the first ``near.cap``, as ``near.prefer`` orders them. One
process holds ``near.clusters`` times ``near.cap`` rows, 24 bytes each, and the same of one more file.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pyarrow as pa

from raycomp.core import near
from raycomp.core.selection import hash_uids, parse_uids
from raycomp.core.uids import KEY, find_keys, to_keys
from raycomp.curation.config import NearConfig
from raycomp.curation.measures import find_corpus
from raycomp.curation.scored import ScoresFile
from raycomp.data.arrow import to_matrix
from raycomp.data.parquet import read_columns, write_table
from raycomp.run.tasks import map_files
from raycomp.words import ALIGNMENT, CLUSTER, CLUSTER_FULL, IMAGE_EMBEDDING, MARK, UID

_SAMPLE_PER_CENTRE = 64
_ROW = np.dtype([("cluster", "<i4"), ("alignment", "<f4"), ("uid", KEY)])


def load_rows(file: ScoresFile, columns: Sequence[str]) -> pa.Table:
    """Return columns of the rows with an alignment and without a mark, with their uids."""
    table = file.read([UID, ALIGNMENT, *columns])
    return table.filter(pa.array(find_corpus(table)))


def find_corpus_centres(files: Sequence[ScoresFile], num: int, label: str) -> np.ndarray:
    """Return the centres of ``num`` clusters of the rows' image embeddings, fp32 [num, D]; fewer if there are
    fewer rows."""
    most = num * _SAMPLE_PER_CENTRE
    samples = list(map_files(_sample, files, most, label=label))
    hash_N = np.concatenate([hashes for hashes, _ in samples])
    embedding_ND = np.concatenate([embeddings for _, embeddings in samples])
    sample = embedding_ND[np.argsort(hash_N, kind="stable")[:most]]
    return near.find_centres(sample, min(num, len(sample)), seed=0) if len(sample) else sample


def _sample(file: ScoresFile, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the smallest hashed uids: their hashes and embeddings."""
    table = load_rows(file, [IMAGE_EMBEDDING])
    hash_N = hash_uids(parse_uids(table[UID]), 0)
    row_M = np.sort(np.argsort(hash_N, kind="stable")[:most])
    return hash_N[row_M], to_matrix(table[IMAGE_EMBEDDING].take(pa.array(row_M))).astype(np.float32)


def cap_clusters(files: Sequence[ScoresFile], config: NearConfig) -> dict[str, int]:
    """Add ``cluster`` to the marks of the files, and the mark of the rows above the cap; return counts.

    The marks of the files are complete but for the cap.
    """
    assert config.clusters is not None
    centre_LD = find_corpus_centres(files, config.clusters, CLUSTER)
    found = map_files(_rank_rows, files, centre_LD, config, label=CLUSTER)
    first = reduce(lambda a, b: _take_first(np.concatenate([a, b]), config), found, np.empty(0, _ROW))
    keepers = np.sort(first["uid"])
    drops = config.cap is not None and config.action == "drop"
    dropped = list(map_files(_write_clusters, files, centre_LD, keepers, drops, label=CLUSTER))
    return {"clusters": len(centre_LD), "dropped": sum(dropped)}


def _assign(table: pa.Table, centre_LD: np.ndarray) -> np.ndarray:
    """Return the number of each row's cluster, int [N]."""
    if not len(table) or not len(centre_LD):
        return np.zeros(len(table), int)
    return near.assign_lists(to_matrix(table[IMAGE_EMBEDDING]).astype(np.float32), centre_LD, 1)[:, 0]


def _rank_rows(file: ScoresFile, centre_LD: np.ndarray, config: NearConfig) -> np.ndarray:
    """Return the first rows of each cluster in one file; none without a cap."""
    if config.cap is None:
        return np.empty(0, _ROW)
    table = load_rows(file, [IMAGE_EMBEDDING])
    rows = np.empty(len(table), _ROW)
    rows["cluster"], rows["uid"] = _assign(table, centre_LD), to_keys(parse_uids(table[UID]))
    rows["alignment"] = table[ALIGNMENT].to_numpy()
    return _take_first(rows, config)


def _take_first(rows: np.ndarray, config: NearConfig) -> np.ndarray:
    """Return the rows within the cap of each cluster."""
    assert config.cap is not None or not len(rows)
    worth = -rows["alignment"] if config.prefer == "best" else np.zeros(len(rows))
    rows = rows[np.lexsort((rows["uid"], worth, rows["cluster"]))]
    _, start, which = np.unique(rows["cluster"], return_index=True, return_inverse=True)
    return rows[np.arange(len(rows)) - start[which] < (config.cap or 0)] if len(rows) else rows


def _write_clusters(file: ScoresFile, centre_LD: np.ndarray, keepers: np.ndarray, drops: bool) -> int:
    """Add the column ``cluster`` and the mark of dropped rows to the marks of a file; return their number."""
    assert file.marks is not None
    marks, table = read_columns(file.marks), file.read([UID, ALIGNMENT, IMAGE_EMBEDDING])
    row_M = np.flatnonzero(find_corpus(table))
    cluster_N = np.full(len(table), -1)
    cluster_N[row_M] = _assign(table.take(pa.array(row_M)), centre_LD)
    marks = marks.append_column(CLUSTER, pa.array(cluster_N, pa.int32(), mask=cluster_N < 0))
    is_lost_N = (cluster_N >= 0) & (find_keys(keepers, to_keys(parse_uids(table[UID]))) < 0) & drops
    reasons = np.where(is_lost_N, CLUSTER_FULL, marks[MARK].to_numpy(zero_copy_only=False))
    place = marks.schema.get_field_index(MARK)
    marks = marks.set_column(place, MARK, pa.array(reasons.tolist(), pa.string()))
    write_table(marks, file.marks, marks.schema)
    return int(is_lost_N.sum())
