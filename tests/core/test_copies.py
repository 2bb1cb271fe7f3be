"""Matches of hashes, and likeness of thumbnails, against plain loops."""

import numpy as np
import pytest

from raycomp.core import near
from raycomp.core.near import HashIndex, list_boxes, measure_likeness


@pytest.mark.parametrize("bits", [0, 3, 4, 8, 11])
def test_every_match_within_the_bits_is_found_once(bits, monkeypatch):
    monkeypatch.setattr(near, "_PAIRS", 20)
    rng = np.random.default_rng(bits)
    views = rng.integers(0, 2**63, 60).astype(np.uint64)
    rows = [int(views[rng.integers(60)]) for _ in range(80)]
    rows = [
        row ^ sum(1 << int(bit) for bit in rng.choice(64, rng.integers(0, 14), replace=False)) for row in rows
    ]
    expected = {
        (i, j)
        for i, row in enumerate(rows)
        for j, view in enumerate(views)
        if (row ^ int(view)).bit_count() <= bits
    }
    found = HashIndex(views).find(np.array(rows, np.uint64), bits).tolist()
    assert len(found) == len(expected) and {tuple(one) for one in found} == expected


def test_likeness_is_the_correlation():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 256, (2, 20, 256), dtype=np.uint8)
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(one, other, strict=True)]
    assert np.allclose(measure_likeness(one, other), expected)
    assert measure_likeness(one[:1], one[:1] // 2 + 40)[0] > 0.999
    assert measure_likeness(np.full((1, 256), 7, np.uint8), one[:1])[0] == 0


def test_parts_of_a_picture_lie_within_it():
    boxes = list_boxes()
    assert len(boxes) == 1 + 3 * 13 and boxes["whole"] == (0, 0, 1, 1)
    for left, top, right, bottom in boxes.values():
        assert 0 <= left < right <= 1 + 1e-9 and 0 <= top < bottom <= 1 + 1e-9
