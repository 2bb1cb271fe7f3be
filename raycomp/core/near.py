"""Near-duplicates: pairs of rows by perceptual hash or embedding, and the groups that pairs make.

U distinct hashes, N rows, D dimensions, E pairs. All results depend on the set of rows alone.
"""

from collections.abc import Callable, Iterator

import numpy as np

BANDS, BAND_BITS = 4, 16
MOST_BITS = 7
"""Largest Hamming distance: with four bands, two hashes within it differ by at most one bit in some band."""
MASKS = (0, *(1 << bit for bit in range(BAND_BITS)))
"""What a band of two such hashes may differ by."""
PLAIN_HASHES = (0, 1 << 63)
"""Hashes of pictures of one colour: they say nothing of what is seen."""
_PAIRS = 1 << 22
_ROWS, _VALUES = 2048, 1 << 25
EXACT_ROWS = 20_000
"""Up to so many rows all pairs are compared for the nearest ones."""
_TRAINED_PER_LIST, _PROBES = 40, 16


def find_hash_pairs(hash_U: np.ndarray, bits: int, band: int, mask: int) -> np.ndarray:
    """Return the pairs of distinct hashes within ``bits`` whose ``band`` differs by ``mask``, int64 [E, 2].

    ``hash_U``: uint64, distinct. Over all BANDS and MASKS this finds every pair within ``bits`` (at most
    MOST_BITS), some more than once.
    """
    value_U = ((hash_U >> np.uint64(BAND_BITS * band)) & np.uint64(0xFFFF)).astype(np.int64)
    order_U = np.argsort(value_U, kind="stable")
    value_U = value_U[order_U]
    sorted_U = hash_U[order_U]
    start_U = np.searchsorted(value_U, value_U ^ mask)
    end_U = np.searchsorted(value_U, value_U ^ mask, side="right")
    # Each pair once: within a band's group later rows alone, between two groups from the smaller value.
    start_U = np.maximum(start_U, np.arange(len(hash_U)) + 1) if mask == 0 else start_U
    count_U = np.where((value_U < (value_U ^ mask)) | (mask == 0), np.maximum(end_U - start_U, 0), 0)
    found = [
        _compare(sorted_U, start_U, count_U, rows, bits) for rows in _cut(count_U) if count_U[rows].any()
    ]
    pairs = np.concatenate(found) if found else np.empty((0, 2), np.int64)
    return order_U[pairs]


def _cut(count_U: np.ndarray) -> Iterator[slice]:
    """Yield ranges of rows with about _PAIRS pairs."""
    total_U = np.cumsum(count_U)
    start = 0
    while start < len(count_U):
        done = total_U[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(total_U, done + _PAIRS, side="right")))
        yield slice(start, end)
        start = end


def _compare(
    hash_U: np.ndarray, start_U: np.ndarray, count_U: np.ndarray, rows: slice, bits: int
) -> np.ndarray:
    count_R = count_U[rows]
    row_E = np.repeat(np.arange(rows.start, rows.stop), count_R)
    within_E = np.arange(len(row_E)) - np.repeat(np.cumsum(count_R) - count_R, count_R)
    other_E = start_U[row_E] + within_E
    near_E = np.bitwise_count(hash_U[row_E] ^ hash_U[other_E]) <= bits
    return np.stack([row_E[near_E], other_E[near_E]], axis=1)


def find_cosine_pairs(embedding_ND: np.ndarray, cosine: float) -> np.ndarray:
    """Return the pairs of rows of length 1 whose cosine is at least ``cosine``, int64 [E, 2], as a forest.

    Of a group that hangs together only enough pairs are returned to join it, so a thousand copies do not
    make half a million pairs.
    """
    found: list[np.ndarray] = []
    size = max(1, min(_ROWS, _VALUES // max(1, len(embedding_ND))))
    for start in range(0, len(embedding_ND), size):
        block_RN = embedding_ND[start : start + size] @ embedding_ND[start:].T
        row_E, other_E = np.nonzero(np.triu(block_RN >= cosine, k=1))
        pairs = np.stack([row_E, other_E], axis=1) + start
        found = [span_groups(np.concatenate([*found, pairs]), len(embedding_ND))]
    return found[0] if found else np.empty((0, 2), np.int64)


def span_groups(pair_E2: np.ndarray, count: int) -> np.ndarray:
    """Return one pair (first row of the group, row) for every other row of the groups that pairs make."""
    label_N = label_groups(pair_E2, count)
    other_N = np.flatnonzero(label_N != np.arange(count))
    return np.stack([label_N[other_N], other_N], axis=1)


def label_groups(pair_E2: np.ndarray, count: int) -> np.ndarray:
    """Return the smallest row of each row's connected component, int64 [count]."""
    from scipy.sparse import coo_array  # only where groups are searched
    from scipy.sparse.csgraph import connected_components

    ones_E = np.ones(len(pair_E2), bool)
    graph = coo_array((ones_E, (pair_E2[:, 0], pair_E2[:, 1])), shape=(count, count))
    num, label_N = connected_components(graph, directed=False)
    first_L = np.full(num, count)
    np.minimum.at(first_L, label_N, np.arange(count))
    return first_L[label_N]


def find_centres(embedding_SD: np.ndarray, num: int, seed: int) -> np.ndarray:
    """Return ``num`` centres of rows of length 1 by spherical k-means, fp32 [num, D], each of length 1.

    One thread: the sums of several would depend on their number.
    """
    import faiss

    faiss.omp_set_num_threads(1)
    kmeans = faiss.Kmeans(
        embedding_SD.shape[1], num, niter=10, seed=seed, spherical=True, min_points_per_centroid=1
    )
    kmeans.train(np.ascontiguousarray(embedding_SD, np.float32))
    return np.asarray(kmeans.centroids)


def assign_lists(embedding_ND: np.ndarray, centre_LD: np.ndarray, probes: int) -> np.ndarray:
    """Return the ``probes`` nearest centres of each row, int64 [N, probes]; ties go to the smaller number."""
    probes = min(probes, len(centre_LD))
    found = [
        np.argsort(-(embedding_ND[start : start + _ROWS] @ centre_LD.T), axis=1, kind="stable")[:, :probes]
        for start in range(0, len(embedding_ND), _ROWS)
    ]
    return np.concatenate(found) if found else np.empty((0, probes), np.int64)


def find_nearest(embedding_ND: np.ndarray, most: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``most`` other rows of largest cosine of each row: int32 and fp32 [N, K], largest first.

    Rows are of length 1, fp16 or fp32; K is ``most``, or N - 1 of fewer rows. Up to EXACT_ROWS rows the
    result is exact. Of more rows, those of the nearest of about sqrt(N) clusters are compared, stored as fp16
    (faiss, an inverted file): a few are missed. Where fewer are found, the row is -1.
    """
    num = len(embedding_ND)
    most = max(0, min(most, num - 1))
    if not most:
        return np.zeros((num, 0), np.int32), np.zeros((num, 0), np.float32)
    search = _search_exactly if num <= EXACT_ROWS else _open_lists(embedding_ND, seed)
    found = [
        _leave_out_self(*search(embedding_ND, slice(start, start + _ROWS), most + 1), start)
        for start in range(0, num, _ROWS)
    ]
    row_NK, cosine_NK = (np.concatenate(side)[:, :most] for side in zip(*found, strict=True))
    return row_NK.astype(np.int32), cosine_NK.astype(np.float32)


def _search_exactly(embedding_ND: np.ndarray, rows: slice, most: int) -> tuple[np.ndarray, np.ndarray]:
    whole_ND = embedding_ND.astype(np.float32, copy=False)
    cosine_RN = whole_ND[rows] @ whole_ND.T
    row_RK = np.argsort(-cosine_RN, axis=1, kind="stable")[:, :most]
    return row_RK, np.take_along_axis(cosine_RN, row_RK, axis=1)


def _open_lists(embedding_ND: np.ndarray, seed: int) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return the search in an inverted file of all rows."""
    import faiss

    num, dim = embedding_ND.shape
    lists = int(np.sqrt(num))
    sample_S = np.random.default_rng(seed).permutation(num)[: lists * _TRAINED_PER_LIST]
    quantizer = faiss.IndexFlatIP(dim)
    quantizer.add(find_centres(embedding_ND[np.sort(sample_S)].astype(np.float32), lists, seed))
    kind, metric = faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexIVFScalarQuantizer(quantizer, dim, lists, kind, metric, False)
    index.train(np.zeros((1, dim), np.float32))
    for start in range(0, num, _VALUES // dim):
        index.add(embedding_ND[start : start + _VALUES // dim].astype(np.float32))
    index.nprobe = _PROBES

    def search(embedding_ND: np.ndarray, rows: slice, most: int) -> tuple[np.ndarray, np.ndarray]:
        cosine_RK, row_RK = index.search(embedding_ND[rows].astype(np.float32), most)
        return row_RK, cosine_RK

    return search


def _leave_out_self(row_RK: np.ndarray, cosine_RK: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Move each row's own number to the end of its list."""
    is_self_RK = row_RK == start + np.arange(len(row_RK))[:, None]
    order_RK = np.argsort(is_self_RK, axis=1, kind="stable")
    return np.take_along_axis(row_RK, order_RK, axis=1), np.take_along_axis(cosine_RK, order_RK, axis=1)
