"""Merkle trees over rows: a short proof that a row is, or is not, in a corpus of a known root.

A tree over leaves is that of RFC 9162 (section 2.1): SHA-256, 0x00 before a leaf, 0x01 before two nodes; the
left part holds the largest power of two of leaves below their number. A corpus is cut into 2^bits buckets by
the first bits of the uids. A bucket's leaves are sorted. The roots of the buckets, each with its number of
leaves, are the leaves of the top tree, whose root is bound with the total.
"""

import hashlib
from collections.abc import Sequence

_LEAF, _NODE, _BUCKET, _CORPUS = b"\0", b"\1", b"\2", b"\3"
_COUNT_BYTES = 8


def hash_leaf(data: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(_LEAF + data).digest()


def _hash_pair(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def find_root(hashes: Sequence[bytes]) -> bytes:
    """Return the root of the tree over hashed leaves; of none, the hash of nothing."""
    level = list(hashes)
    if not level:
        return hashlib.sha256().digest()
    while len(level) > 1:
        pairs = [_hash_pair(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def find_path(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Return the hashes next to the path from a leaf to the root, the lowest first; about log2 of them."""
    level, path = list(hashes), []
    while len(level) > 1:
        other = index ^ 1
        if other < len(level):
            path.append(level[other])
        pairs = [_hash_pair(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level, index = pairs + level[2 * len(pairs) :], index // 2
    return path


def follow_path(leaf: bytes, index: int, count: int, path: Sequence[bytes]) -> bytes:
    """Return the root of a tree of ``count`` leaves that a path leads to from the hashed leaf ``index``.

    Raises ValueError where the path has another length than it must have.
    """
    if not 0 <= index < count:
        raise ValueError(f"leaf {index} of {count}: there is no such leaf")
    left, found = list(path), leaf
    while count > 1:
        if index ^ 1 < count:
            if not left:
                raise ValueError("the path is too short")
            other = left.pop(0)
            found = _hash_pair(other, found) if index % 2 else _hash_pair(found, other)
        index, count = index // 2, (count + 1) // 2
    if left:
        raise ValueError("the path is too long")
    return found


def hash_bucket(count: int, root: bytes) -> bytes:
    """Return the hash of a bucket of ``count`` leaves."""
    return hashlib.sha256(_BUCKET + count.to_bytes(_COUNT_BYTES) + root).digest()


def bind_root(num_rows: int, bits: int, top: bytes) -> bytes:
    """Return the root of a corpus of 2^bits buckets; ``top``: the root over these."""
    return hashlib.sha256(_CORPUS + num_rows.to_bytes(_COUNT_BYTES) + bits.to_bytes(1) + top).digest()


def choose_bits(num_rows: int, most: int) -> int:
    """Return the smallest number of bits with at most ``most`` rows in a bucket on average, at most 16."""
    return next(bits for bits in range(17) if num_rows <= most << bits or bits == 16)


def find_bucket(uid: bytes, bits: int) -> int:
    """Return the bucket of a uid of 16 bytes: its first bits."""
    return int.from_bytes(uid[:2]) >> (16 - bits)
