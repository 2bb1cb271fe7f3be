"""Near-duplicates: pictures by the bits of their hashes, embeddings by their cosines, groups and neighbours.

A thumbnail is a grey picture of 16 x 16 pixels, uint8 [256]; hashes are those of ``hash_view``. All results
depend on the set of rows alone.

V views of an index, U distinct hashes, N rows or queried samples, D dimensions, E pairs of rows.
"""

from typing import Any

import numpy as np

THUMBNAIL = 16
LEAST_LIKENESS = 0.95
"""Smallest correlation of two thumbnails of one picture."""
MOST_MATCH_BITS = 11


def list_boxes() -> dict[str, tuple[float, float, float, float]]:
    """Return the parts of a picture that are indexed, as (left, top, right, bottom) from 0 to 1, by name.

    The whole, and with 5, 10 and 15 % of the width and height cut off: on all sides, on one, at a corner.
    """
    boxes = {"whole": (0.0, 0.0, 1.0, 1.0)}
    for cut in (0.05, 0.1, 0.15):
        for x, left in enumerate((0.0, cut / 2, cut)):
            for y, top in enumerate((0.0, cut / 2, cut)):
                boxes[f"cut {cut:.0%} {x}{y}"] = (left, top, left + 1 - cut, top + 1 - cut)
        boxes[f"cut {cut:.0%} left"] = (cut, 0.0, 1.0, 1.0)
        boxes[f"cut {cut:.0%} right"] = (0.0, 0.0, 1 - cut, 1.0)
        boxes[f"cut {cut:.0%} top"] = (0.0, cut, 1.0, 1.0)
        boxes[f"cut {cut:.0%} bottom"] = (0.0, 0.0, 1.0, 1 - cut)
    return boxes


def _take_band(hash_N: np.ndarray, band: int) -> np.ndarray:
    return ((hash_N >> np.uint64(BAND_BITS * band)) & np.uint64(0xFFFF)).astype(np.int64)


def _match(
    hash_N: np.ndarray, start_N: np.ndarray, count_N: np.ndarray, other_V: np.ndarray, bits: int
) -> np.ndarray:
    """Return each row with those of the ``count_N`` places from ``start_N`` on that are within ``bits``.

    int64 [E, 2]; about _PAIRS pairs are compared at a time.
    """
    found = [np.empty((0, 2), np.int64)]
    total_N = np.cumsum(count_N)
    start = 0
    while start < len(count_N):
        done = total_N[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(total_N, done + _PAIRS, side="right")))
        count_R = count_N[start:end]
        row_E = np.repeat(np.arange(start, start + len(count_R)), count_R)
        within_E = np.arange(len(row_E)) - np.repeat(np.cumsum(count_R) - count_R, count_R)
        other_E = start_N[row_E] + within_E
        near_E = np.bitwise_count(hash_N[row_E] ^ other_V[other_E]) <= bits
        found.append(np.stack([row_E[near_E], other_E[near_E]], axis=1))
        start = end
    return np.concatenate(found)


class HashIndex:
    """Hashes that are found by any hash within some bits."""

    def __init__(self, hash_V: np.ndarray):
        """``hash_V``: uint64."""
        self.hash_V = hash_V
        values = [_take_band(hash_V, band) for band in range(BANDS)]
        orders = [np.argsort(value_V, kind="stable") for value_V in values]
        # The sorted values of each band, and the views in that order.
        self._bands = [(value_V[order_V], order_V) for value_V, order_V in zip(values, orders, strict=True)]

    def find(self, hash_N: np.ndarray, bits: int) -> np.ndarray:
        """Return every (row, view) whose hashes differ in at most ``bits``, int64 [E, 2], each once.

        Exact: two such hashes differ in some band by at most a fourth of the bits.
        """
        found = [np.empty((0, 2), np.int64)]
        masks = [mask for mask in range(1 << BAND_BITS) if mask.bit_count() <= bits // BANDS]
        for band, (value_V, order_V) in enumerate(self._bands):
            value_N, sorted_V = _take_band(hash_N, band), self.hash_V[order_V]
            for mask in masks:
                start_N = np.searchsorted(value_V, value_N ^ mask)
                count_N = np.searchsorted(value_V, value_N ^ mask, side="right") - start_N
                row_E, place_E = _match(hash_N, start_N, count_N, sorted_V, bits).T
                found.append(np.stack([row_E, order_V[place_E]], axis=1))
        return np.unique(np.concatenate(found), axis=0)


def measure_likeness(one_ET: np.ndarray, other_ET: np.ndarray) -> np.ndarray:
    """Return the correlation of thumbnails, float64 [E]; 0 where one of them has a single value."""
    one_ET, other_ET = (thumb.astype(np.float64) for thumb in (one_ET, other_ET))
    one_ET = one_ET - one_ET.mean(axis=1, keepdims=True)
    other_ET = other_ET - other_ET.mean(axis=1, keepdims=True)
    size_E = np.linalg.norm(one_ET, axis=1) * np.linalg.norm(other_ET, axis=1)
    return np.divide((one_ET * other_ET).sum(axis=1), size_E, out=np.zeros(len(size_E)), where=size_E > 0)


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
    value_U = _take_band(hash_U, band)
    order_U = np.argsort(value_U, kind="stable")
    value_U = value_U[order_U]
    sorted_U = hash_U[order_U]
    start_U = np.searchsorted(value_U, value_U ^ mask)
    end_U = np.searchsorted(value_U, value_U ^ mask, side="right")
    # Each pair once: within a band's group later rows alone, between two groups from the smaller value.
    start_U = np.maximum(start_U, np.arange(len(hash_U)) + 1) if mask == 0 else start_U
    count_U = np.where((value_U < (value_U ^ mask)) | (mask == 0), np.maximum(end_U - start_U, 0), 0)
    return order_U[_match(sorted_U, start_U, count_U, sorted_U, bits)]


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


def compute_centres(embedding_SD: np.ndarray, num: int, seed: int) -> np.ndarray:
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
    index = None if num <= EXACT_ROWS else _open_lists(embedding_ND, seed)
    whole_ND = embedding_ND.astype(np.float32, copy=False) if index is None else embedding_ND
    found = []
    for start in range(0, num, _ROWS):
        rows_RD = whole_ND[start : start + _ROWS]
        if index is None:
            cosine_RN = rows_RD @ whole_ND.T
            row_RK = np.argsort(-cosine_RN, axis=1, kind="stable")[:, : most + 1]
            cosine_RK = np.take_along_axis(cosine_RN, row_RK, axis=1)
        else:
            cosine_RK, row_RK = index.search(rows_RD.astype(np.float32), most + 1)
        # A row's own number goes to the end of its list.
        is_self_RK = row_RK == start + np.arange(len(row_RK))[:, None]
        order_RK = np.argsort(is_self_RK, axis=1, kind="stable")
        found.append([np.take_along_axis(side_RK, order_RK, axis=1) for side_RK in (row_RK, cosine_RK)])
    row_NK, cosine_NK = (np.concatenate(side)[:, :most] for side in zip(*found, strict=True))
    return row_NK.astype(np.int32), cosine_NK.astype(np.float32)


def _open_lists(embedding_ND: np.ndarray, seed: int) -> Any:
    """Return faiss's inverted file of all rows."""
    import faiss

    num, dim = embedding_ND.shape
    lists = int(np.sqrt(num))
    sample_S = np.random.default_rng(seed).permutation(num)[: lists * _TRAINED_PER_LIST]
    quantizer = faiss.IndexFlatIP(dim)
    quantizer.add(compute_centres(embedding_ND[np.sort(sample_S)].astype(np.float32), lists, seed))
    kind, metric = faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexIVFScalarQuantizer(quantizer, dim, lists, kind, metric, False)
    index.train(np.zeros((1, dim), np.float32))
    for start in range(0, num, _VALUES // dim):
        index.add(embedding_ND[start : start + _VALUES // dim].astype(np.float32))
    index.nprobe = _PROBES
    return index
