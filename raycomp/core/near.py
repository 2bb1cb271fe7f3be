"""What two sets of samples share: the same images and texts, and near-duplicates.

The same: a key is the first 16 bytes of a SHA-256, of an image's bytes or of a text after ``normalise_text``.
Known keys are sorted, each once; parts that are read separately are merged. Memory is 16 bytes for each known
key; the queried keys can come in blocks of any size.

- An image on both sides is shared, with any text: a model that learned from it has seen the evidence of the
  answer, and another caption or box does not change that. A copy that was resized or encoded again has other
  bytes and is not found, so a count is a lower bound.
- A text on both sides is counted separately and makes no sample shared: all images of a class have the same
  prompts, and short captions repeat by chance. A known text still has to be found for a new image.
- An entry without a key, such as an unreadable image, is not shared.

Near: a view is the whole upright picture averaged to 32 x 32 pixels, uint8 [32, 32, 3], RGB; a thumbnail is a
grey picture of 16 x 16 pixels, uint8 [256]. All results depend on the set of rows alone.

V views of an index, U distinct hashes, N rows or queried samples, T texts, K known keys, D dimensions, E
pairs of rows, P pairs of image and text.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from raycomp.core.selection import KEY, find_keys

VIEW_SIDE = 32
HASH_BITS = 64
_LOW = 8
_LUMA = np.array([0.299, 0.587, 0.114])
# Every fourth row is enough for the variance, at a quarter of the time.
_ROW_STEP = 4


class Look(NamedTuple):
    """Measures of a picture; a perceptual hash is not a measure, so it stands apart."""

    brightness: float
    """Mean luma, 0 (black) to 1 (white)."""
    colourfulness: float
    """M^(3) of Hasler and Suesstrunk 2003, from 0 (grey); about 60 and more is vivid."""
    sharpness: float
    """Variance of the Laplacian of the green channel of the model's pixels, over every fourth row. A blurred
    picture has a small one."""


def measure_look(view: np.ndarray, pixels: np.ndarray) -> Look:
    """Return the measures of a picture from its view and its prepared pixels, uint8 [H, W, 3]."""
    red, green, blue = np.moveaxis(view.astype(np.float64), 2, 0)
    red_green, yellow_blue = red - green, (red + green) / 2 - blue
    spread = np.hypot(red_green.std(), yellow_blue.std())
    colour = spread + 0.3 * np.hypot(red_green.mean(), yellow_blue.mean())
    brightness = float((view @ _LUMA).mean() / 255)
    return Look(brightness, float(colour), measure_sharpness(pixels))


def measure_sharpness(pixels: np.ndarray) -> float:
    """Return the variance of the 4-neighbour Laplacian of green, uint8 [H, W, 3]; 0 below 3 x 3 pixels."""
    green = pixels[:, :, 1].astype(np.int16)
    above, row, below = (green[at : at + len(green) - 2 : _ROW_STEP] for at in (0, 1, 2))
    laplacian = row[:, :-2] + row[:, 2:] + above[:, 1:-1] + below[:, 1:-1] - 4 * row[:, 1:-1]
    return float(laplacian.var()) if laplacian.size else 0.0


def hash_view(view: np.ndarray) -> int:
    """Return the 64-bit perceptual hash of a view: which of its 8 x 8 lowest frequencies exceed their median.

    pHash as in the package imagehash (cosine transform of a 32 x 32 grey picture, row by row from the most
    significant bit), of an area average. Similar pictures differ in few bits; a picture of one colour has the
    hash of all others of one colour.
    """
    from scipy.fft import dctn  # commands that decode nothing do not need it

    low = dctn(np.rint(view @ _LUMA))[:_LOW, :_LOW].round(6)
    return int.from_bytes(np.packbits(low > np.median(low)).tobytes())


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


NO_KEY = b""
"""The key of entries that cannot be compared: 16 zero bytes."""


class Known(NamedTuple):
    """The training side, the result of ``merge_keys``."""

    image_K: np.ndarray
    text_K: np.ndarray


class Shared(NamedTuple):
    """The overlap of a test side with the training side."""

    num_images: int
    """Samples of the test that have an image."""
    images: int
    """Those of them whose image is shared: the leaks."""
    num_texts: int
    """Texts of the test, each once."""
    texts: int
    """Those of them that are shared, with any image."""

    @property
    def share(self) -> float:
        """The share of samples whose image is shared; 0 without samples."""
        return self.images / self.num_images if self.num_images else 0.0


def key_images(sha256s: Sequence[str | None]) -> np.ndarray:
    """Return the keys (N,) of images by the hex digits of their SHA-256; NO_KEY for None."""
    return np.array([bytes.fromhex(one[:32]) if one else NO_KEY for one in sha256s], KEY)


def key_texts(texts: Sequence[str | None]) -> np.ndarray:
    """Return the keys (T,) of texts; NO_KEY for None and for texts without content."""
    plain = [normalise_text(text) if text else "" for text in texts]
    return np.array([hashlib.sha256(one.encode()).digest()[:16] if one else NO_KEY for one in plain], KEY)


def normalise_text(text: str) -> str:
    """Return a canonical text: different spellings of the same words become equal.

    Unicode NFKC and full case folding; white space collapsed; punctuation removed at both ends, such as a
    final full stop. Punctuation inside stays: "black, white" and "black white" are two texts. Characters that
    cannot be encoded become "?".
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    words = " ".join(folded.encode("utf-8", "replace").decode().split())
    return words.strip("".join(one for one in {*words} if one == " " or unicodedata.category(one)[0] == "P"))


def merge_keys(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return all keys of the parts, sorted, each once, without NO_KEY."""
    found = np.unique(np.concatenate([np.zeros(0, KEY), *parts]))
    return found[found != NO_KEY]


def merge_known(parts: Sequence[Known]) -> Known:
    """Return several training sides as one."""
    return Known(merge_keys(one.image_K for one in parts), merge_keys(one.text_K for one in parts))


def find_shared(known_K: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Return which keys are among the known ones, bool (N,)."""
    return (find_keys(known_K, key_N) >= 0) & (key_N != NO_KEY)


def count_shared(known: Known, image_N: np.ndarray, text_T: np.ndarray) -> Shared:
    """Return the known part of a test: its samples' images (N,), and its texts (T,), which may repeat."""
    own_T = merge_keys([text_T])
    images, texts = find_shared(known.image_K, image_N), find_shared(known.text_K, own_T)
    return Shared(int((image_N != NO_KEY).sum()), int(images.sum()), len(own_T), int(texts.sum()))


def join_keys(image_P: np.ndarray, text_P: np.ndarray) -> np.ndarray:
    """Return one key (P,) for each image with its text, 32 bytes; NO_KEY if either has none."""
    halves = [np.ascontiguousarray(one).view(np.uint8).reshape(-1, KEY.itemsize) for one in (image_P, text_P)]
    pair_P = np.concatenate(halves, axis=1).view(f"S{2 * KEY.itemsize}").reshape(-1)
    return np.where((image_P != NO_KEY) & (text_P != NO_KEY), pair_P, NO_KEY)
