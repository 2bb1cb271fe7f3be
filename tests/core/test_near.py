"""Near-duplicates, shared keys and views of pictures against plain loops and known answers."""

import hashlib
import io
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from PIL import Image
from scipy.fft import dctn

from raycomp.core import near
from raycomp.core.near import (
    NO_KEY,
    HashIndex,
    Known,
    count_shared,
    find_shared,
    hash_view,
    join_keys,
    key_images,
    key_texts,
    list_boxes,
    measure_likeness,
    measure_look,
    measure_sharpness,
    merge_keys,
    merge_known,
    normalise_text,
)
from raycomp.models.images import shrink


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


def draw(seed: int, width: int = 300, height: int = 200) -> Image.Image:
    """Return a smooth picture of random blobs, so that it survives compression."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def test_the_hash_is_that_of_a_plain_transform():
    view = shrink(draw(0))
    grey = np.rint(view @ np.array([0.299, 0.587, 0.114]))
    low = dctn(grey)[:8, :8]
    bits = "".join("1" if value > np.median(low) else "0" for value in low.reshape(-1))
    assert hash_view(view) == int(bits, 2)


def test_copies_have_near_hashes_and_others_far_ones():
    for seed in range(5):
        image, buffer = draw(seed), io.BytesIO()
        image.save(buffer, "JPEG", quality=30)
        own = hash_view(shrink(image))
        copies = [Image.open(buffer).convert("RGB"), image.resize((150, 100)), image.resize((611, 407))]
        assert max((own ^ hash_view(shrink(copy))).bit_count() for copy in copies) <= 6
        others = [hash_view(shrink(draw(100 + other))) for other in range(20)]
        assert min((own ^ other).bit_count() for other in others) > 12


def test_measures_of_known_pictures():
    black, white = np.zeros((32, 32, 3), np.uint8), np.full((32, 32, 3), 255, np.uint8)
    assert measure_look(black, black) == (0, 0, 0)
    assert measure_look(white, white).brightness == pytest.approx(1)
    red_and_green = black.copy()
    red_and_green[:16, :, 0] = red_and_green[16:, :, 1] = 255
    # R - G is +-255, so its deviation is 255 and its mean 0; (R + G) / 2 - B is 127.5 everywhere.
    assert measure_look(red_and_green, black).colourfulness == pytest.approx(255 + 0.3 * 127.5)


def test_sharpness_of_rows_is_that_of_a_loop():
    for height in [1, 2, 3, 4, 7]:
        pixels = np.random.default_rng(height).integers(0, 256, (height, 9, 3), dtype=np.uint8)
        green = pixels[:, :, 1].astype(int)
        found = [
            green[y - 1, x] + green[y + 1, x] + green[y, x - 1] + green[y, x + 1] - 4 * green[y, x]
            for y in range(1, height - 1, 4)
            for x in range(1, 8)
        ]
        assert measure_sharpness(pixels) == pytest.approx(np.var(found) if found else 0)
