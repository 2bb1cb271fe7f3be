"""Selection against numpy's sort: ties, signed zeros, denormals, infinities, any chunking.

Shared keys against sets.
"""

import hashlib
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest

from raycomp.core import selection
from raycomp.core.selection import (
    NO_KEY,
    Known,
    KthSearch,
    Threshold,
    count_digit,
    count_keys,
    count_shared,
    drop_duplicates,
    find_keys,
    find_shared,
    format_uids,
    join_keys,
    keep_mask,
    key_images,
    key_texts,
    merge_keys,
    merge_known,
    normalise_text,
    to_keys,
)

DENORMAL = np.float32(1e-45)
CORNERS = np.float32(
    [-np.inf, -3.4e38, -1, -1e-38, -DENORMAL, -0.0, 0, DENORMAL, 2 * DENORMAL, 1e-38, 1, 3.4e38]
)
CORNERS = np.append(CORNERS, np.float32(np.inf))


def draw_uids(rng: np.random.Generator, num: int) -> np.ndarray:
    return rng.integers(0, 2**64, (num, 2), dtype=np.uint64)


def find(search: KthSearch, score: np.ndarray, uid: np.ndarray, cuts: list[int]) -> Threshold:
    """Search over chunks, each reaching the counter as a worker would get it; bounded passes."""
    chunks = list(zip(np.split(score, cuts), np.split(uid, cuts), strict=True))
    for _ in range(selection.NUM_DIGITS + 1):
        if search.done:
            return search.threshold
        sent = pickle.loads(pickle.dumps(search))
        search.advance(sum(count_digit(sent, s, u if search.needs_uid else None) for s, u in chunks))
    raise AssertionError("more passes than digits")


def best_rows(score: np.ndarray, uid: np.ndarray, k: int) -> np.ndarray:
    """The oracle: sort everything by (score descending, uid ascending), mark the first k."""
    ranked = sorted(range(len(score)), key=lambda i: (-float(score[i]), int(uid[i, 0]), int(uid[i, 1])))
    mask = np.zeros(len(score), dtype=bool)
    mask[ranked[:k]] = True
    return mask


def test_sortable_bits_keeps_the_order_of_all_float32():
    rng = np.random.default_rng(0)
    score = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    score = np.concatenate([score[~np.isnan(score)], CORNERS])
    bits = selection.sortable_bits(score)
    order = np.argsort(bits, kind="stable")
    np.testing.assert_array_equal(score[order], np.sort(score))
    score, bits = score[order], bits[order]
    np.testing.assert_array_equal(bits[1:] == bits[:-1], score[1:] == score[:-1])


def test_nan_is_an_error_that_names_the_uid():
    score = np.array([1, np.nan, np.nan], dtype=np.float32)
    uid = np.array([[0, 1], [0xAB, 2], [0, 3]], dtype=np.uint64)
    for refuse in (
        lambda: selection.check_scores(score, uid),
        lambda: count_digit(KthSearch(1), score, uid),
        lambda: keep_mask(Threshold(1, 0), score, uid),
    ):
        with pytest.raises(ValueError, match="score of uid 00000000000000ab0000000000000002 is NaN"):
            refuse()
    with pytest.raises(ValueError, match="row 1 is NaN"):
        selection.sortable_bits(score)
    selection.check_scores(CORNERS, np.zeros((len(CORNERS), 2), np.uint64))


def test_random_trials_equal_a_full_sort():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        num = int(rng.integers(1, 300))
        pools = [CORNERS, CORNERS[5:7], np.float32([0.25]), rng.standard_normal(num).astype(np.float32)]
        score = rng.choice(pools[seed % len(pools)], num)
        if seed % 3:
            uid = draw_uids(rng, num)
        else:  # uids that agree in their first 112 bits or more
            uid = np.stack([np.full(num, 7), rng.permutation(num)], axis=1).astype(np.uint64)
        for k in {0, 1, num // 3, num - 1, num}:
            cuts = sorted(rng.integers(0, num + 1, int(rng.integers(0, 6))).tolist())
            threshold = find(KthSearch(k), score, uid, cuts)
            want = best_rows(score, uid, k)
            assert threshold == find(KthSearch(k), score, uid, [])
            assert threshold.count == k
            assert threshold.value == (score[want].min() if k else None)
            again = Threshold.from_dict(json.loads(json.dumps(threshold.to_dict())))
            pieces = zip(np.split(score, cuts), np.split(uid, cuts), strict=True)
            kept = [keep_mask(again, *piece) for piece in pieces]
            np.testing.assert_array_equal(np.concatenate(kept), want)


def test_what_cannot_be_selected_is_named():
    score, uid = np.zeros(3, np.float32), np.array([[0, 5], [0, 5], [0, 6]], np.uint64)
    with pytest.raises(ValueError, match="uid 00000000000000000000000000000005 occurs 2 times"):
        find(KthSearch(1), score, uid, [])
    assert keep_mask(find(KthSearch(2), score, uid, []), score, uid).tolist() == [True, True, False]
    with pytest.raises(ValueError, match="k=-1: must be at least 0"):
        KthSearch(-1)
    for k, num in ((4, 3), (1, 0)):
        with pytest.raises(ValueError, match=f"k={k}: must be at most the number of rows, {num}"):
            find(KthSearch(k), score[:num], uid[:num], [])
    assert find(KthSearch(0), score[:0], uid[:0], []).to_dict()["bits"] is None
    search = KthSearch(1)
    search.advance(count_digit(search, np.float32([1, 1])))
    with pytest.raises(ValueError, match="counted 3 rows where the one before left 2"):
        search.advance(count_digit(search, np.float32([1, 1, 1])))


def test_datacomp_rule():
    for fraction in [0.0, 0.1, 0.29, 0.3, 0.57, 0.7, 0.99]:
        for num_values in [1, 7, 100_000]:
            rng = np.random.default_rng(3)
            score = rng.integers(0, num_values, 997).astype(np.float32)
            uid = draw_uids(rng, len(score))
            value = -np.sort(-score)[int(len(score) * fraction)]
            threshold = find(selection.kth_datacomp(len(score), fraction), score, uid, [100, 500])
            np.testing.assert_array_equal(keep_mask(threshold, score), score >= value)
            assert (threshold.value, threshold.count) == (value, (score >= value).sum())


def test_uids_both_ways():
    texts = ["00000000000000000000000000000001", "ffffffffffffffff0000000000000000", "0123456789abcdef" * 2]
    uid = selection.parse_uids([text.upper() for text in texts])
    assert uid.dtype == np.uint64
    assert uid.tolist() == [[int(text[:16], 16), int(text[16:], 16)] for text in texts]
    assert selection.format_uids(uid) == texts
    for array in (pa.array(texts), pa.array(texts, pa.large_string())):
        np.testing.assert_array_equal(selection.parse_uids(array[1:]), uid[1:])
        chunked = pa.chunked_array([array[2:], array[:0], array[:1]])
        np.testing.assert_array_equal(selection.parse_uids(chunked), uid[[2, 0]])
    for nothing in ([], pa.array([], pa.string()), pa.chunked_array([], pa.string())):
        assert selection.format_uids(selection.parse_uids(nothing)) == []


def test_a_bad_uid_is_named():
    good = "0" * 32
    for bad in ["", "12", "g" * 32, "0" * 33, "0" * 31 + "\u00e9", "0" * 30 + " 0", None]:
        for uids in ([good, bad, good], pa.array([good, bad, good])):
            with pytest.raises(ValueError, match=f"uid={bad!r}: must be 32 hex digits"):
                selection.parse_uids(uids)


def splitmix64(state: int) -> int:
    """The reference, in Python's whole numbers; its first output for seed 0 is a published vector."""
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_hash_is_splitmix64_chained():
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    uid = draw_uids(np.random.default_rng(4), 100)
    for seed in (0, 1, 2**64 - 1):
        want = [splitmix64(splitmix64(splitmix64(seed) ^ int(a)) ^ int(b)) for a, b in uid]
        assert selection.hash_uids(uid, seed).tolist() == want
    whole = selection.random_scores(uid, 9)
    assert 0 <= whole.min() < whole.max() < 1 and abs(whole.mean() - 0.5) < 0.1
    np.testing.assert_array_equal(selection.random_scores(uid[7:], 9), whole[7:])


def test_the_first_of_every_uid_is_found():
    rng = np.random.default_rng(7)
    for num_uids in (1, 5, 200):
        uid = draw_uids(rng, num_uids)[rng.integers(0, num_uids, 300)]
        ordinal = np.sort(rng.integers(0, 4, 300)).astype(np.int32)
        position = np.concatenate([np.arange(n) for n in np.bincount(ordinal, minlength=4)]).astype(np.int32)
        seen: dict[tuple[int, int], int] = {}
        want = np.array([seen.setdefault(key, row) for row, key in enumerate(map(tuple, uid.tolist()))])
        mixed = rng.permutation(300)
        assert selection.find_firsts(uid, ordinal, position).tolist() == want.tolist()
        got = selection.find_firsts(uid[mixed], ordinal[mixed], position[mixed])
        assert mixed[got].tolist() == want[mixed].tolist()
        bucket = selection.bucket_of(uid, 3)
        for rows in (np.flatnonzero(bucket == b) for b in range(3)):
            got = selection.find_firsts(uid[rows], ordinal[rows], position[rows])
            assert rows[got].tolist() == want[rows].tolist()


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


def hash_of(image: bytes | None) -> str | None:
    return None if image is None else hashlib.sha256(image).hexdigest()


def draw_side(rng: np.random.Generator, num: int) -> tuple[list[bytes | None], list[str | None]]:
    """Draw few different images and texts, so that many repeat; some samples lack one."""
    images = [None if rng.random() < 0.1 else bytes(rng.integers(0, 3, 4).tolist()) for _ in range(num)]
    texts = [None if rng.random() < 0.1 else f"text {rng.integers(40)}" for _ in range(num)]
    return images, texts


def test_counts_are_those_of_loops_over_sets():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        (train, said), (test, asked) = draw_side(rng, int(rng.integers(0, 60))), draw_side(rng, 40)
        known = Known(
            merge_keys([key_images([hash_of(one) for one in train])]), merge_keys([key_texts(said)])
        )
        image_N, text_N = key_images([hash_of(one) for one in test]), key_texts(asked)
        found = count_shared(known, image_N, text_N)
        assert found.num_images == sum(one is not None for one in test)
        assert found.images == sum(one is not None and one in set(train) for one in test)
        assert found.num_texts == len({one for one in asked if one is not None})
        assert found.texts == len({one for one in asked if one is not None and one in set(said)})
        pairs = {pair for pair in zip(train, said, strict=True) if None not in pair}
        known_K = merge_keys([join_keys(key_images([hash_of(one) for one in train]), key_texts(said))])
        is_pair_N = find_shared(known_K, join_keys(image_N, text_N))
        assert is_pair_N.tolist() == [pair in pairs for pair in zip(test, asked, strict=True)]


def test_what_has_no_key_is_shared_with_nothing():
    digest = "ab" * 14 + "0000" + "cd" * 16
    assert key_images([digest]).tobytes().hex() == digest[:32]
    assert find_shared(key_images([digest]), key_images([digest, "ab" * 32])).tolist() == [True, False]
    nothing = key_images([None, None])
    assert (nothing == NO_KEY).all() and not len(merge_keys([nothing]))
    assert not find_shared(nothing, nothing).any()
    assert not find_shared(merge_keys([]), key_images([hash_of(b"a")])).any()
    image = key_images([hash_of(b"a")])
    assert not find_shared(join_keys(image, key_texts([None])), join_keys(image, key_texts(["..."]))).any()
    assert count_shared(Known(nothing, nothing), nothing, key_texts([None, " ", "?!"])) == (0, 0, 0, 0)


def test_spellings_of_one_text_have_one_key():
    for one, other in [
        ("A dog.", "a  dog"),
        ("\u201cA dog\u201d !", "a dog"),
        ("Stra\u00dfe", "STRASSE"),
        ("caf\u00e9", "cafe\u0301"),
        ("\uff21 dog", "a dog"),
        ("a\u00a0dog\n", "a dog"),
        ("- (a dog)...", "a dog"),
        ("\u0130stanbul", "i\u0307stanbul"),
    ]:
        assert normalise_text(one) == normalise_text(other)
        assert key_texts([one]) == key_texts([other])
    for one, other in [("a dog, a cat", "a dog a cat"), ("5 $", "5"), ("don't", "dont"), ("a dog", "a-dog")]:
        assert key_texts([one]) != key_texts([other])


def test_parts_that_are_merged_in_any_order_are_one_side():
    images = [hash_of(bytes([i])) for i in range(50)]
    keys, texts = key_images(images), key_texts([f"text {i}" for i in range(50)])
    parts = [Known(merge_keys([keys[i : i + 20]]), merge_keys([texts[i : i + 20]])) for i in (0, 15, 30)]
    whole = Known(merge_keys([keys]), merge_keys([texts]))
    for some in (parts, parts[::-1], [merge_known(parts[:2]), parts[2]]):
        found = merge_known(some)
        assert (found.image_K == whole.image_K).all() and (found.text_K == whole.text_K).all()
    assert len(whole.image_K) == 50 and (whole.image_K[:-1] < whole.image_K[1:]).all()
