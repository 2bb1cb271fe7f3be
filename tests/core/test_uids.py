"""Uids as keys: found where they stand, and the first of each kept, against slow loops."""

import numpy as np
import pytest

from raycomp.core.selection import count_keys, drop_duplicates, find_keys, format_uids, to_keys


@pytest.mark.parametrize("rows_per_bucket", [1, 7, 1000])
def test_the_first_of_every_uid_stays(rows_per_bucket, monkeypatch):
    monkeypatch.setattr("raycomp.core.selection._BUCKET_ROWS", rows_per_bucket)
    rng = np.random.default_rng(0)
    shards = [rng.integers(0, 9, (size, 2)).astype(np.uint64) for size in (40, 0, 25, 1)]
    seen: set[str] = set()
    for shard, mask in zip(shards, drop_duplicates(shards), strict=True):
        for uid, stays in zip(format_uids(shard), mask, strict=True):
            assert stays == (uid not in seen)
            seen.add(uid)


def test_keys_are_found_where_they_stand():
    rng = np.random.default_rng(1)
    uid_N2 = rng.integers(0, 3, (30, 2)).astype(np.uint64) << np.uint64(56)  # keys that end in zeros
    key_M = np.sort(to_keys(uid_N2[:10]))
    found_N = find_keys(key_M, to_keys(uid_N2))
    for key, place in zip(to_keys(uid_N2), found_N, strict=True):
        assert place == (list(key_M).index(key) if key in list(key_M) else -1)
    assert count_keys(key_M, to_keys(uid_N2)).tolist() == [list(key_M).count(k) for k in to_keys(uid_N2)]
    assert find_keys(key_M[:0], key_M).tolist() == [-1] * 10
    assert count_keys(key_M[:0], key_M).tolist() == [0] * 10
