"""Uids as keys of 16 bytes: membership and duplicates.

N queried keys, M sorted keys. A uid is 32 hex digits; as numbers it is two uint64, see
``parse_uids``.
"""

from collections.abc import Sequence

import numpy as np

from raycomp.core.selection import bucket_of, find_firsts, format_uids

KEY = np.dtype("S16")
# Uids whose duplicates are searched together; sorting takes some 80 bytes for each.
_BUCKET_ROWS = 4_000_000


def to_keys(uid_N2: np.ndarray) -> np.ndarray:
    """Return uids, uint64 (N, 2), as keys (N,) in the same order."""
    return np.ascontiguousarray(uid_N2, ">u8").view(KEY).reshape(-1)


def from_keys(key_N: np.ndarray) -> list[str]:
    """Return keys as uids of 32 hex digits."""
    return format_uids(np.frombuffer(key_N.astype(KEY).tobytes(), ">u8").astype(np.uint64).reshape(-1, 2))


def find_keys(key_M: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Return the first index of each key among the sorted ``key_M``, int64 (N,); -1 if it is absent."""
    if not len(key_M):
        return np.full(len(key_N), -1)
    place_N = np.searchsorted(key_M, key_N)
    found_N = key_M[np.minimum(place_N, len(key_M) - 1)] == key_N
    return np.where(found_N, place_N, -1)


def count_keys(key_M: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Return the count of each key among the sorted ``key_M``, int64 (N,)."""
    return np.searchsorted(key_M, key_N, side="right") - np.searchsorted(key_M, key_N)


def drop_duplicates(uids: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return which rows of each shard stay, bool: the first of every uid in the order of shards and rows.

    ``uids`` are uint64 (n, 2), one array for each shard. In addition it takes a byte a row and the memory of
    one bucket.
    """
    num_buckets = max(1, -(-sum(map(len, uids)) // _BUCKET_ROWS))
    keep = [np.ones(len(uid_n2), bool) for uid_n2 in uids]
    for bucket in range(num_buckets):
        rows = [np.flatnonzero(bucket_of(uid_n2, num_buckets) == bucket) for uid_n2 in uids]
        if not any(map(len, rows)):
            continue
        uid_N2 = np.concatenate([uid_n2[row_n] for uid_n2, row_n in zip(uids, rows, strict=True)])
        shard_N = np.repeat(np.arange(len(uids)), [len(row_n) for row_n in rows])
        row_N = np.concatenate(rows)
        later_N = find_firsts(uid_N2, shard_N, row_N) != np.arange(len(row_N))
        for shard, row in zip(shard_N[later_N], row_N[later_N], strict=True):
            keep[shard][row] = False
    return keep
