"""Near-duplicates against plain loops and known answers."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from raycomp.core import near
from raycomp.core.near import HashIndex, list_boxes, measure_likeness


def find_plain(hashes: list[int], bits: int) -> set[tuple[int, int]]:
    return {
        (i, j)
        for i in range(len(hashes))
        for j in range(i + 1, len(hashes))
        if (hashes[i] ^ hashes[j]).bit_count() <= bits
    }


def draw_hashes(seed: int, count: int = 300) -> np.ndarray:
    """Return distinct hashes, many of them some bits from another."""
    rng = np.random.default_rng(seed)
    hashes = [int(value) for value in rng.integers(0, 2**63, count // 3)]
    while len(hashes) < count:
        flips = rng.choice(64, rng.integers(1, 10), replace=False)
        hashes.append(hashes[rng.integers(len(hashes))] ^ sum(1 << int(bit) for bit in flips))
    return np.array(sorted(set(hashes)), np.uint64)


@pytest.mark.parametrize("bits", [0, 3, 7])
def test_every_pair_within_the_distance_is_found(bits, monkeypatch):
    monkeypatch.setattr(near, "_PAIRS", 50)
    hash_U = draw_hashes(seed=bits)
    found = [
        near.find_hash_pairs(hash_U, bits, band, mask) for band in range(near.BANDS) for mask in near.MASKS
    ]
    pairs = {tuple(sorted(pair)) for pair in np.concatenate(found).tolist()}
    assert pairs == find_plain(hash_U.tolist(), bits)


def label_plain(pairs: Iterable[Sequence[int]], count: int) -> list[int]:
    """Return the least row of each row's group."""
    labels = list(range(count))
    for _ in range(count):
        for a, b in pairs:
            labels[a] = labels[b] = min(labels[a], labels[b])
    return labels


def test_groups_are_connected_components():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        pairs = rng.integers(0, 40, (rng.integers(0, 40), 2))
        labels = label_plain(pairs, 40)
        assert near.label_groups(pairs, 40).tolist() == labels
        spanned = near.span_groups(pairs, 40)
        assert label_plain(spanned, 40) == labels and len(spanned) == 40 - len(set(labels))


@pytest.mark.parametrize("rows", [3, 4096])
def test_cosine_pairs_make_the_groups_of_a_loop(rows, monkeypatch):
    monkeypatch.setattr(near, "_ROWS", rows)
    rng = np.random.default_rng(0)
    base = rng.normal(size=(20, 8))
    embedding = base[rng.integers(0, 20, 60)] + 0.1 * rng.normal(size=(60, 8))
    embedding = (embedding / np.linalg.norm(embedding, axis=1, keepdims=True)).astype(np.float32)
    cosine = embedding @ embedding.T
    pairs = [(i, j) for i in range(60) for j in range(i + 1, 60) if cosine[i, j] >= 0.97]
    found = near.find_cosine_pairs(embedding, 0.97)
    assert label_plain(found, 60) == label_plain(pairs, 60)
    assert 0 < len(found) < len(pairs)


def test_centres_and_lists_are_a_function_of_the_rows():
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(400, 16)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    centres = near.compute_centres(embedding, 8, seed=3)
    assert np.array_equal(centres, near.compute_centres(embedding, 8, seed=3))
    lists = near.assign_lists(embedding, centres, 2)
    nearest = np.argsort(-(embedding @ centres.T), axis=1)[:, :2]
    assert np.array_equal(np.sort(lists, axis=1), np.sort(nearest, axis=1))
    assert near.assign_lists(embedding, centres[:1], 3).shape == (400, 1)


def test_nearest_rows_are_those_of_a_sort_and_nearly_those_of_an_inverted_file(monkeypatch):
    embedding = np.random.default_rng(1).normal(size=(300, 8)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    cosine = embedding @ embedding.T
    np.fill_diagonal(cosine, -2)
    wanted = np.argsort(-cosine, axis=1)[:, :3]
    row, found = near.find_nearest(embedding, 3, seed=0)
    assert (row == wanted).all() and np.allclose(found, np.take_along_axis(cosine, wanted, 1), atol=1e-6)
    monkeypatch.setattr(near, "EXACT_ROWS", 10)
    row, _ = near.find_nearest(embedding, 3, seed=0)
    assert (row == wanted).mean() > 0.9 and (row != np.arange(300)[:, None]).all()
    assert near.find_nearest(embedding[:1], 3, seed=0)[0].shape == (1, 0)


@pytest.mark.parametrize("bits", [0, 3, 8, 11])
def test_every_match_within_the_bits_is_found_once(bits, monkeypatch):
    monkeypatch.setattr(near, "_PAIRS", 20)
    hashes = draw_hashes(seed=bits, count=200)
    rows, views = hashes[::2], hashes[1::2]
    expected = {
        (i, j)
        for i, row in enumerate(rows.tolist())
        for j, view in enumerate(views.tolist())
        if (row ^ view).bit_count() <= bits
    }
    found = HashIndex(views).find(rows, bits).tolist()
    assert len(found) == len(expected) and {tuple(one) for one in found} == expected


def test_likeness_is_the_correlation():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 256, (2, 20, 256), dtype=np.uint8)
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(one, other, strict=True)]
    assert np.allclose(measure_likeness(one, other), expected)
    assert measure_likeness(one[:1], one[:1] // 2 + 40)[0] > 0.999
    boxes = list_boxes()
    assert len(boxes) == 1 + 3 * 13 and boxes["whole"] == (0, 0, 1, 1)
    for left, top, right, bottom in boxes.values():
        assert 0 <= left < right <= 1 + 1e-9 and 0 <= top < bottom <= 1 + 1e-9
    assert measure_likeness(np.full((1, 256), 7, np.uint8), one[:1])[0] == 0
