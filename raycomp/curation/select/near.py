"""Groups of near-duplicates over all files, in parts by clusters; the groups are written to marks/.

The centres are those of k-means on the rows of the smallest hashed uids, so they depend on the set of rows
alone. A cap drops the rows of a cluster after the first ``near.cap``, as ``near.prefer`` orders them. One
process holds ``near.clusters`` times ``near.cap`` rows, 24 bytes each, and the same of one more file.

Rows without a mark and with an alignment take part. Every rule gives links, pairs of uids:

- equal keys (bytes, pixels, captions, hashes): rows are partitioned by bucket of the key, 32 bytes a row;
- hashes within ``near.bits``: tasks over bands and what they differ by, on the distinct hashes, 24 bytes
  each;
- embeddings: k-means on the rows of the smallest hashed uids, then tasks over clusters.

One process joins the links to groups, some 100 bytes a link; a row has few. A group's name is its smallest
uid. So groups depend on the set of rows alone, not on files, their order or the number of workers.
"""

import hashlib
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp import words
from raycomp.core import near
from raycomp.core.selection import KEY, find_keys, from_keys, hash_uids, parse_uids, to_keys
from raycomp.curation.config import NearConfig
from raycomp.curation.select.measures import ScoresFile, mask_corpus
from raycomp.data.files import Folder
from raycomp.data.parquet import add_columns, read_columns, to_matrix, write_table
from raycomp.language.overlap import normalise_caption
from raycomp.run.work import map_files, map_tasks

Span = tuple[int, int]
"""The first row of a part of a file, and the row after its last."""
_SAMPLE_PER_CENTRE = 64
_ROW = np.dtype([("cluster", "<i4"), ("alignment", "<f4"), ("uid", KEY)])


def load_rows(file: ScoresFile, columns: Sequence[str]) -> pa.Table:
    """Return columns of the rows with an alignment and without a mark, with their uids."""
    table = file.read([words.UID, words.ALIGNMENT, *columns])
    return table.filter(pa.array(mask_corpus(table)))


def compute_corpus_centres(files: Sequence[ScoresFile], num: int, label: str) -> np.ndarray:
    """Return the centres of ``num`` clusters of the rows' image embeddings, fp32 [num, D]; fewer if there are
    fewer rows."""
    most = num * _SAMPLE_PER_CENTRE
    samples = list(map_files(_sample, files, most, label=label))
    hash_N = np.concatenate([hashes for hashes, _ in samples])
    embedding_ND = np.concatenate([embeddings for _, embeddings in samples])
    sample = embedding_ND[np.argsort(hash_N, kind="stable")[:most]]
    return near.compute_centres(sample, min(num, len(sample)), seed=0) if len(sample) else sample


def _sample(file: ScoresFile, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the smallest hashed uids: their hashes and embeddings."""
    table = load_rows(file, [words.IMAGE_EMBEDDING])
    hash_N = hash_uids(parse_uids(table[words.UID]), 0)
    row_M = np.sort(np.argsort(hash_N, kind="stable")[:most])
    return hash_N[row_M], to_matrix(table[words.IMAGE_EMBEDDING].take(pa.array(row_M))).astype(np.float32)


def cap_clusters(files: Sequence[ScoresFile], config: NearConfig) -> dict[str, int]:
    """Add ``cluster`` to the marks of the files, and the mark of the rows above the cap; return counts.

    The marks of the files are complete but for the cap.
    """
    assert config.clusters is not None
    centre_LD = compute_corpus_centres(files, config.clusters, words.CLUSTER)
    found = map_files(_rank_in_cluster, files, centre_LD, config, label=words.CLUSTER)
    first = reduce(lambda a, b: _take_first(np.concatenate([a, b]), config), found, np.empty(0, _ROW))
    keepers = np.sort(first["uid"])
    drops = config.cap is not None and config.action == "drop"
    dropped = list(map_files(_write_clusters, files, centre_LD, keepers, drops, label=words.CLUSTER))
    return {"clusters": len(centre_LD), "dropped": sum(dropped)}


def _assign(table: pa.Table, centre_LD: np.ndarray) -> np.ndarray:
    """Return the number of each row's cluster, int [N]."""
    if not len(table) or not len(centre_LD):
        return np.zeros(len(table), int)
    return near.assign_lists(to_matrix(table[words.IMAGE_EMBEDDING]).astype(np.float32), centre_LD, 1)[:, 0]


def _rank_in_cluster(file: ScoresFile, centre_LD: np.ndarray, config: NearConfig) -> np.ndarray:
    """Return the first rows of each cluster in one file; none without a cap."""
    if config.cap is None:
        return np.empty(0, _ROW)
    table = load_rows(file, [words.IMAGE_EMBEDDING])
    rows = np.empty(len(table), _ROW)
    rows["cluster"], rows["uid"] = _assign(table, centre_LD), to_keys(parse_uids(table[words.UID]))
    rows["alignment"] = table[words.ALIGNMENT].to_numpy()
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
    marks, table = read_columns(file.marks), file.read([words.UID, words.ALIGNMENT, words.IMAGE_EMBEDDING])
    row_M = np.flatnonzero(mask_corpus(table))
    cluster_N = np.full(len(table), -1)
    cluster_N[row_M] = _assign(table.take(pa.array(row_M)), centre_LD)
    marks = marks.append_column(words.CLUSTER, pa.array(cluster_N, pa.int32(), mask=cluster_N < 0))
    is_lost_N = (cluster_N >= 0) & (find_keys(keepers, to_keys(parse_uids(table[words.UID]))) < 0) & drops
    _write_marks(file, marks, is_lost_N, words.CLUSTER_FULL)
    return int(is_lost_N.sum())


_FOLDER = "near"
_ROWS_PER_BUCKET = 4_000_000
_ROWS_PER_LIST, _MOST_LISTS = 2000, 16_384
_LISTS_PER_TASK = 16
_ENTRY = np.dtype([("key", KEY), ("uid", KEY)])
_HASH = np.dtype([("hash", "<u8"), ("uid", KEY)])
_LINK = np.dtype([("first", KEY), ("second", KEY)])
_RANKED = np.dtype([("group", KEY), ("alignment", "<f4"), ("uid", KEY)])
_KEYS = {
    words.EXACT: words.IMAGE_SHA256,
    words.SAME_PIXELS: words.PIXELS_HASH,
    words.PERCEPTUAL: words.PERCEPTUAL_HASH,
    words.SAME_CAPTION: words.CAPTION,
}


def find_groups(
    files: Sequence[ScoresFile], config: NearConfig, work: Folder, rows_per_bucket: int = _ROWS_PER_BUCKET
) -> dict[str, dict[str, int]]:
    """Add the groups to the marks of the files; return the number of groups, and of rows in them, by rule.

    The marks of the files are complete but for near-duplicates. Safe to repeat.
    """
    work.remove(_FOLDER)
    num_rows = sum(map_files(lambda file: len(load_rows(file, [])), files, label="near-duplicates"))
    num_buckets = max(1, -(-num_rows // rows_per_bucket))
    links = {rule: _link_rule(rule, files, config, work, num_buckets, num_rows) for rule in config.rules}
    groups = {rule: _join(found) for rule, found in links.items()}
    groups[words.DUPLICATE_GROUP] = _join(np.concatenate(list(links.values())))
    keepers = _find_keepers(files, groups[words.DUPLICATE_GROUP], config.prefer)
    drops = config.action == "drop"
    list(map_files(_write_groups, files, groups, keepers, drops, label="near-duplicates"))
    work.remove(_FOLDER)
    return {
        name: {"groups": len(np.unique(found["first"])), "rows": len(found)} for name, found in groups.items()
    }


def _link_rule(
    rule: str, files: Sequence[ScoresFile], config: NearConfig, work: Folder, num_buckets: int, num_rows: int
) -> np.ndarray:
    """Return the links that a rule finds."""
    if rule == words.SEMANTIC:
        return _link_embeddings(files, config, work, num_rows)
    edges = list(map_tasks(_write_keys, list(enumerate(files)), rule, num_buckets, work, label=rule))
    buckets = range(num_buckets)
    jobs = [(bucket, [(edge_B[bucket], edge_B[bucket + 1]) for edge_B in edges]) for bucket in buckets]
    found = list(map_tasks(_link_equal, jobs, rule, work, label=rule))
    if rule == words.PERCEPTUAL:
        masks = [(band, mask) for band in range(near.BANDS) for mask in near.MASKS]
        found += map_tasks(_link_hashes, masks, num_buckets, config.bits, work, label=rule)
    return np.concatenate(found)


def _write_keys(numbered: tuple[int, ScoresFile], rule: str, num_buckets: int, work: Folder) -> np.ndarray:
    """Write the keys of a file's rows by bucket; return the buckets' edges, [B + 1]."""
    ordinal, file = numbered
    table = load_rows(file, [_KEYS[rule]])
    keys = [None if value is None else name_key(rule, value) for value in table[_KEYS[rule]].to_pylist()]
    row_M = np.flatnonzero([key is not None for key in keys])
    entries = np.empty(len(row_M), _ENTRY)
    entries["key"] = [keys[row] for row in row_M]
    entries["uid"] = to_keys(parse_uids(table[words.UID]))[row_M]
    bucket_M = _halves(entries["key"])[:, 1] % np.uint64(num_buckets)
    order_M = np.argsort(bucket_M, kind="stable")
    work.write_bytes(entries[order_M].tobytes(), _FOLDER, f"{rule}-{ordinal:05d}")
    return np.searchsorted(bucket_M[order_M], np.arange(num_buckets + 1))


def name_key(rule: str, value: Any) -> bytes | None:
    """Return 16 bytes by which rows are compared, None where a value says nothing."""
    text, number = b"", b""
    if rule != words.PERCEPTUAL:
        text = (normalise_caption(value) if rule == words.SAME_CAPTION else value).encode()
    elif int(value) not in near.PLAIN_HASHES:
        text = number = int(value).to_bytes(8)
    return hashlib.blake2b(text, digest_size=16).digest()[: 16 - len(number)] + number if text else None


def _halves(key_N: np.ndarray) -> np.ndarray:
    return np.frombuffer(key_N.astype(KEY).tobytes(), ">u8").astype(np.uint64).reshape(-1, 2)


def _link_equal(job: tuple[int, list[Span]], rule: str, work: Folder) -> np.ndarray:
    """Return a link from the smallest uid of each key to its other rows; write the distinct hashes."""
    bucket, edges = job
    entries = np.sort(_read_all(work, rule, edges, _ENTRY, 1)[:, 0], order=("key", "uid"))
    is_first_N = np.ones(len(entries), bool)
    is_first_N[1:] = entries["key"][1:] != entries["key"][:-1]
    first_N = entries["uid"][is_first_N][np.cumsum(is_first_N) - 1] if len(entries) else entries["uid"]
    if rule == words.PERCEPTUAL:
        hashes = np.empty(int(is_first_N.sum()), _HASH)
        hashes["hash"] = _halves(entries["key"][is_first_N])[:, 1]
        hashes["uid"] = entries["uid"][is_first_N]
        work.write_bytes(hashes.tobytes(), _FOLDER, f"hashes-{bucket:05d}")
    return _make_links(first_N[~is_first_N], entries["uid"][~is_first_N])


def _make_links(first_E: np.ndarray, second_E: np.ndarray) -> np.ndarray:
    links = np.empty(len(first_E), _LINK)
    links["first"], links["second"] = first_E, second_E
    return links


def _link_hashes(job: tuple[int, int], num_buckets: int, bits: int, work: Folder) -> np.ndarray:
    """Return links between distinct hashes whose band differs by a mask."""
    parts = [work.read_bytes(_FOLDER, f"hashes-{bucket:05d}") for bucket in range(num_buckets)]
    hashes = np.frombuffer(b"".join(parts), _HASH)
    pairs = near.find_hash_pairs(np.ascontiguousarray(hashes["hash"]), bits, *job)
    pairs = near.span_groups(pairs, len(hashes))
    return _make_links(hashes["uid"][pairs[:, 0]], hashes["uid"][pairs[:, 1]])


def _link_embeddings(
    files: Sequence[ScoresFile], config: NearConfig, work: Folder, num_rows: int
) -> np.ndarray:
    """Return links between rows whose embeddings are near, within clusters."""
    num_lists = int(min(max(1, num_rows // _ROWS_PER_LIST), _MOST_LISTS))
    centre_LD = compute_corpus_centres(files, num_lists, words.SEMANTIC) if num_lists > 1 else None
    numbered = list(enumerate(files))
    edges = list(map_tasks(_write_lists, numbered, centre_LD, config.probes, work, label=words.SEMANTIC))
    starts = range(0, num_lists, _LISTS_PER_TASK)
    jobs = [[edge_L[start : start + _LISTS_PER_TASK + 1] for edge_L, _ in edges] for start in starts]
    dim = max((dim for _, dim in edges), default=0)
    found = map_tasks(_link_lists, jobs, dim, config.cosine, work, label=words.SEMANTIC)
    return np.concatenate([np.empty(0, _LINK), *found])


def _write_lists(
    numbered: tuple[int, ScoresFile], centre_LD: np.ndarray | None, probes: int, work: Folder
) -> tuple[np.ndarray, int]:
    """Write a file's rows by cluster; return the clusters' edges, [L + 1], and the embeddings' length."""
    ordinal, file = numbered
    table = load_rows(file, [words.IMAGE_EMBEDDING])
    embedding_ND = to_matrix(table[words.IMAGE_EMBEDDING]).astype(np.float32)
    uid_N = to_keys(parse_uids(table[words.UID]))
    num_lists, list_NP = 1, np.zeros((len(table), 1), int)
    if centre_LD is not None:
        num_lists, list_NP = len(centre_LD), near.assign_lists(embedding_ND, centre_LD, probes)
    row_M = np.repeat(np.arange(len(table)), list_NP.shape[1])
    order_M = np.argsort(list_NP.reshape(-1), kind="stable")
    row_M, list_M = row_M[order_M], list_NP.reshape(-1)[order_M]
    work.write_bytes(embedding_ND[row_M].tobytes(), _FOLDER, f"rows-{ordinal:05d}")
    work.write_bytes(uid_N[row_M].tobytes(), _FOLDER, f"uids-{ordinal:05d}")
    return np.searchsorted(list_M, np.arange(num_lists + 1)), embedding_ND.shape[1] if len(table) else 0


def _link_lists(edges: list[np.ndarray], dim: int, cosine: float, work: Folder) -> np.ndarray:
    """Return the links within some clusters."""
    found = [np.empty(0, _LINK)]
    for place in range(len(edges[0]) - 1):
        spans = [(edge[place], edge[place + 1]) for edge in edges]
        uid_N = _read_all(work, "uids", spans, KEY, 1).reshape(-1)
        order_N = np.argsort(uid_N, kind="stable")  # so that a pair's cosine is summed in one order
        embedding_ND = _read_all(work, "rows", spans, np.dtype("<f4"), dim)[order_N]
        pairs = near.find_cosine_pairs(embedding_ND, cosine)
        uid_N = uid_N[order_N]
        found.append(_make_links(uid_N[pairs[:, 0]], uid_N[pairs[:, 1]]))
    return np.concatenate(found)


def _read_all(work: Folder, name: str, spans: list[Span], dtype: np.dtype, width: int) -> np.ndarray:
    """Return the rows that each file of this name has from one number to another, [rows, width]."""
    size = dtype.itemsize * width
    parts = [
        work.read_range(start * size, end * size, _FOLDER, f"{name}-{ordinal:05d}")
        for ordinal, (start, end) in enumerate(spans)
        if start < end
    ]
    return np.frombuffer(b"".join(parts), dtype).reshape(-1, width)


def _join(links: np.ndarray) -> np.ndarray:
    """Return (smallest uid of the group, uid) of every linked row, sorted by uid."""
    uid_U, place = np.unique(np.concatenate([links["first"], links["second"]]), return_inverse=True)
    pairs = place.reshape(2, -1).T
    label_U = near.label_groups(pairs, len(uid_U)) if len(uid_U) else np.empty(0, int)
    return _make_links(uid_U[label_U], uid_U)


def _find_keepers(files: Sequence[ScoresFile], groups: np.ndarray, prefer: str) -> np.ndarray:
    """Return the uid of each group that stays, sorted."""
    if prefer == "first":
        return np.unique(groups["first"])
    ranked = map_files(_rank_rows, files, groups, label="near-duplicates")
    found = np.concatenate([np.empty(0, _RANKED), *ranked])
    found = found[np.lexsort((found["uid"], -found["alignment"], found["group"]))]
    _, first = np.unique(found["group"], return_index=True)
    return np.sort(found["uid"][first])


def _rank_rows(file: ScoresFile, groups: np.ndarray) -> np.ndarray:
    table = load_rows(file, [])
    uid_N = to_keys(parse_uids(table[words.UID]))
    place_N = find_keys(groups["second"], uid_N)
    row_M = np.flatnonzero(place_N >= 0)
    ranked = np.empty(len(row_M), _RANKED)
    ranked["group"], ranked["uid"] = groups["first"][place_N[row_M]], uid_N[row_M]
    ranked["alignment"] = table[words.ALIGNMENT].to_numpy()[row_M]
    return ranked


def _write_groups(file: ScoresFile, groups: dict[str, np.ndarray], keepers: np.ndarray, drops: bool) -> None:
    """Add the columns of groups to the marks of a file, and the mark of the rows that do not stay."""
    assert file.marks is not None
    marks = read_columns(file.marks)
    takes_N = mask_corpus(file.read([words.ALIGNMENT]))
    uid_N = to_keys(parse_uids(marks[words.UID]))
    for rule, found in groups.items():
        place_N = np.where(takes_N, find_keys(found["second"], uid_N), -1)
        names = from_keys(found["first"][place_N]) if len(found) else [""] * len(marks)
        name = rule if rule == words.DUPLICATE_GROUP else f"{rule}_group"
        marks = marks.append_column(name, pa.array(names, pa.string(), mask=place_N < 0))
    is_grouped_N = marks[words.DUPLICATE_GROUP].is_valid().to_numpy()
    is_lost_N = is_grouped_N & (find_keys(keepers, uid_N) < 0) & drops
    _write_marks(file, marks, is_lost_N, words.NEAR_DUPLICATE)


def _write_marks(file: ScoresFile, marks: pa.Table, is_lost_N: np.ndarray, reason: str) -> None:
    """Write the marks of a file, with a reason for the rows that do not stay."""
    assert file.marks is not None
    reasons = np.where(is_lost_N, reason, marks[words.MARK].to_numpy(zero_copy_only=False))
    marks = add_columns(marks, {words.MARK: pa.array(reasons.tolist(), pa.string())})
    write_table(marks, file.marks, marks.schema)
