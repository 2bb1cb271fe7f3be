"""Long curves made short enough to draw: what the eye would see of them all the same."""

from itertools import pairwise

import numpy as np


def thin(value_N: np.ndarray, most: int) -> np.ndarray:
    """Return the places, rising, of at most ``most`` (from 2) values: all of them where they are no more.

    Else the smallest and the largest of each of ``most`` // 2 stretches of equal length, so that no peak is
    lost and a line through them covers what a line through all does.
    """
    if len(value_N) <= most:
        return np.arange(len(value_N))
    edges = np.linspace(0, len(value_N), most // 2 + 1).astype(int)
    stretches = [(start, value_N[start:end]) for start, end in pairwise(edges)]
    return np.unique([start + pick(some) for start, some in stretches for pick in (np.argmin, np.argmax)])


def smooth(value_N: np.ndarray, width: int) -> np.ndarray:
    """Return each value's mean over ``width`` (odd) values around it, over fewer at both ends."""
    place_N, half = np.arange(len(value_N)), width // 2
    low_N, high_N = np.maximum(place_N - half, 0), np.minimum(place_N + half + 1, len(value_N))
    total = np.concatenate([[0.0], np.cumsum(value_N, dtype=np.float64)])
    return (total[high_N] - total[low_N]) / (high_N - low_N)
