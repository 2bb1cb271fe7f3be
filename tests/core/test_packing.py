"""Packing against a slow layout that writes every rule down one position at a time."""

import numpy as np
import torch

from raycomp.core.batches import PackedPass, Segments, cut_segments, may_attend, pack

M = 64


def draw(num: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    length_G = rng.integers(2, 32, num)
    count_G = rng.integers(0, 9, num)
    first_T = np.array([rng.integers(1, n) for n, k in zip(length_G, count_G, strict=True) for _ in range(k)])
    return length_G, count_G, first_T.astype(np.int64)


def see_slowly(segments: Segments, num_captions: int, owner_T: np.ndarray) -> dict:
    """Return, per laid out (part, text, place), the set of (text, place) that it attends to."""
    seen = {}
    for part, text, first, size in zip(
        segments.part_S, segments.text_S, segments.first_S, segments.size_S, strict=True
    ):
        caption = text if text < num_captions else owner_T[text - num_captions]
        for place in range(first, first + size):
            before = {("start", 0)} | {(caption, p) for p in range(1, first)}
            seen[part, text, place] = before | {(text, p) for p in range(first, place + 1)}
    return seen


def see_packed(packed: PackedPass, segments: Segments) -> dict:
    seen = {}
    owner_M = np.full(M, -1)
    start = 1
    for s in packed.segment_S:
        owner_M[start : start + segments.size_S[s]] = s
        start += segments.size_S[s]
    flat = [int(m) for index_RW in packed.rows for m in index_RW.reshape(-1)]
    for index_RW in packed.rows:
        columns = packed.prefix_M[index_RW], packed.begin_M[index_RW], np.arange(index_RW.shape[1])
        mask_RWW = may_attend(*columns)
        assert (mask_RWW == may_attend(*map(torch.from_numpy, columns)).numpy()).all()
        assert (mask_RWW[index_RW == 0] == (columns[2] == 0)).all()
        for index_W, mask_WW in zip(index_RW, mask_RWW, strict=True):
            for m, mask_W in zip(index_W, mask_WW, strict=True):
                if m > 0:
                    keys = [int(k) for k in index_W[mask_W]]
                    assert len(keys) == len(set(keys))
                    names = {(packed.text_M[k], packed.place_M[k]) if k else ("start", 0) for k in keys}
                    assert flat[packed.source_M[m]] == m
                    seen[segments.part_S[owner_M[m]], packed.text_M[m], packed.place_M[m]] = names
    return seen


def test_every_position_sees_what_its_own_text_shows_it():
    for widths in [(), (8, 16, 40, 64)]:
        for seed in range(5):
            length_G, count_G, first_T = draw(30, seed)
            segments = cut_segments(length_G, count_G, first_T, M)
            owner_T = np.repeat(np.arange(30), count_G)
            seen = {}
            for packed in pack(segments, M, widths):
                found = see_packed(packed, segments)
                assert not found.keys() & seen.keys()
                seen |= found
                sizes = segments.size_S[packed.segment_S]
                assert (packed.last_S == np.cumsum(sizes)).all()
                assert packed.last_S[-1] < M
            assert seen == see_slowly(segments, 30, owner_T)
    none = np.zeros(0, np.int64)
    assert list(pack(cut_segments(none, none, none, M), M)) == []


def test_a_given_width_has_rows_of_one_number_and_the_parts_that_need_it():
    length_G, count_G, first_T = draw(500, 9)
    segments, widths = cut_segments(length_G, count_G, first_T, M), (8, 16, 40, 64)
    packs = list(pack(segments, M, widths))
    shapes = [index_RW.shape for packed in packs for index_RW in packed.rows]
    assert len(shapes) == len(packs) and set(shapes) == {(16, 8), (8, 16), (3, 40), (2, 64)}
    for packed, (_, width) in zip(packs, shapes, strict=True):
        size_P = segments.size_P[np.unique(segments.part_S[packed.segment_S])] + 1
        assert size_P.max() <= width and size_P.min() > (0, *widths)[widths.index(width)]
    laid = np.sort(np.concatenate([packed.segment_S for packed in packs]))
    assert (laid == np.arange(len(segments.text_S))).all()
