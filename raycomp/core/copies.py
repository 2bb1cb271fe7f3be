"""Copies of pictures: the views that an index holds of each, and what finds them again.

V views of an index, N rows, E matches. A thumbnail is a grey picture of 16 x 16 pixels, uint8 [256].
"""

import numpy as np

from raycomp.core.near import BAND_BITS, BANDS

THUMBNAIL = 16
LEAST_LIKENESS = 0.95
"""Smallest correlation of two thumbnails of one picture."""
MOST_MATCH_BITS = 11
_CUTS = (0.05, 0.1, 0.15)
_PAIRS = 1 << 22


def list_boxes() -> dict[str, tuple[float, float, float, float]]:
    """Return the parts of a picture that are indexed, as (left, top, right, bottom) from 0 to 1, by name.

    The whole, and with 5, 10 and 15 % of the width and height cut off: on all sides, on one, at a corner.
    """
    boxes = {"whole": (0.0, 0.0, 1.0, 1.0)}
    for cut in _CUTS:
        for x, left in enumerate((0.0, cut / 2, cut)):
            for y, top in enumerate((0.0, cut / 2, cut)):
                boxes[f"cut {cut:.0%} {x}{y}"] = (left, top, left + 1 - cut, top + 1 - cut)
        boxes[f"cut {cut:.0%} left"] = (cut, 0.0, 1.0, 1.0)
        boxes[f"cut {cut:.0%} right"] = (0.0, 0.0, 1 - cut, 1.0)
        boxes[f"cut {cut:.0%} top"] = (0.0, cut, 1.0, 1.0)
        boxes[f"cut {cut:.0%} bottom"] = (0.0, 0.0, 1.0, 1 - cut)
    return boxes


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
        for band, (value_V, order_V) in enumerate(self._bands):
            value_N = _take_band(hash_N, band)
            for mask in _list_masks(bits // BANDS):
                start_N = np.searchsorted(value_V, value_N ^ mask)
                count_N = np.searchsorted(value_V, value_N ^ mask, side="right") - start_N
                found += self._compare(hash_N, start_N, count_N, order_V, bits)
        return np.unique(np.concatenate(found), axis=0)

    def _compare(
        self, hash_N: np.ndarray, start_N: np.ndarray, count_N: np.ndarray, order_V: np.ndarray, bits: int
    ) -> list[np.ndarray]:
        found = []
        row_M = np.flatnonzero(count_N)
        step = max(1, _PAIRS // max(1, int(count_N.max(initial=1))))
        for start in range(0, len(row_M), step):
            some = row_M[start : start + step]
            count_R = count_N[some]
            row_E = np.repeat(some, count_R)
            within_E = np.arange(len(row_E)) - np.repeat(np.cumsum(count_R) - count_R, count_R)
            view_E = order_V[start_N[row_E] + within_E]
            near_E = np.bitwise_count(hash_N[row_E] ^ self.hash_V[view_E]) <= bits
            found.append(np.stack([row_E[near_E], view_E[near_E]], axis=1))
        return found


def _take_band(hash_N: np.ndarray, band: int) -> np.ndarray:
    return ((hash_N >> np.uint64(BAND_BITS * band)) & np.uint64(0xFFFF)).astype(np.int64)


def _list_masks(most: int) -> list[int]:
    """Return the values of a band that have at most ``most`` bits."""
    return [mask for mask in range(1 << BAND_BITS) if mask.bit_count() <= most]


def measure_likeness(one_ET: np.ndarray, other_ET: np.ndarray) -> np.ndarray:
    """Return the correlation of thumbnails, float64 [E]; 0 where one of them has a single value."""
    one_ET, other_ET = (thumb.astype(np.float64) for thumb in (one_ET, other_ET))
    one_ET = one_ET - one_ET.mean(axis=1, keepdims=True)
    other_ET = other_ET - other_ET.mean(axis=1, keepdims=True)
    size_E = np.linalg.norm(one_ET, axis=1) * np.linalg.norm(other_ET, axis=1)
    return np.divide((one_ET * other_ET).sum(axis=1), size_E, out=np.zeros(len(size_E)), where=size_E > 0)
