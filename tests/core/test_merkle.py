"""Trees against the definition of RFC 9162, and every wrong proof is refused."""

import hashlib
from contextlib import suppress

import pytest

from raycomp.core.merkle import (
    choose_bits,
    find_bucket,
    find_path,
    find_root,
    follow_path,
    hash_leaf,
)


def slow_root(leaves: list[bytes]) -> bytes:
    """The recursive definition, section 2.1.1."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hashlib.sha256(b"\1" + slow_root(leaves[:split]) + slow_root(leaves[split:])).digest()


@pytest.mark.parametrize("count", range(35))
def test_roots_and_paths_are_those_of_the_definition(count):
    leaves = [f"row {i}".encode() for i in range(count)]
    hashes = [hash_leaf(leaf) for leaf in leaves]
    assert find_root(hashes) == slow_root(leaves)
    for index in range(count):
        path = find_path(hashes, index)
        assert len(path) <= max(1, count - 1).bit_length()
        assert follow_path(hashes[index], index, count, path) == find_root(hashes)


def test_the_example_of_certificate_transparency():
    """The root of the empty tree and of the first leaves of the RFC's reference implementation."""
    leaves = [bytes.fromhex(one) for one in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")]
    hashes = [hash_leaf(leaf) for leaf in leaves]
    known = {
        0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    }
    assert {count: find_root(hashes[:count]).hex() for count in known} == known


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 20])
def test_a_wrong_proof_leads_elsewhere_or_is_refused(count):
    hashes = [hash_leaf(f"row {i}".encode()) for i in range(count)]
    root = find_root(hashes)
    for index in range(count):
        path = find_path(hashes, index)
        wrong = [(hash_leaf(b"other"), index, path), (hashes[index], (index + 1) % count, path)]
        wrong += [(hashes[index], index, path[:-1]), (hashes[index], index, [*path, root])]
        wrong += [(hashes[index], count, path), (hashes[index], -1, path)]
        if path:
            wrong.append((hashes[index], index, [hash_leaf(b"x"), *path[1:]]))
        for leaf, place, steps in wrong:
            if (leaf, place, steps) == (hashes[index], index, path):
                continue
            with suppress(ValueError):
                assert follow_path(leaf, place, count, steps) != root


def test_buckets_are_ranges_of_uids():
    assert [choose_bits(rows, 10) for rows in (0, 10, 11, 20, 21, 10**9)] == [0, 0, 1, 1, 2, 16]
    uids = sorted(bytes([i, 255 - i]) + bytes(14) for i in range(256))
    for bits in (0, 1, 5, 8):
        buckets = [find_bucket(uid, bits) for uid in uids]
        assert buckets == sorted(buckets) and set(buckets) == set(range(2**bits))
