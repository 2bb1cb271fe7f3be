"""What two sides share, against loops over sets; and when two texts say the same."""

import hashlib

import numpy as np

from raycomp.core.near import (
    NO_KEY,
    Known,
    count_shared,
    find_shared,
    join_keys,
    key_images,
    key_texts,
    merge_keys,
    merge_known,
    normalise_text,
)


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
    nothing = key_images([None, None])
    assert (nothing == NO_KEY).all() and not len(merge_keys([nothing]))
    assert not find_shared(nothing, nothing).any()
    assert not find_shared(merge_keys([]), key_images([hash_of(b"a")])).any()
    image = key_images([hash_of(b"a")])
    assert not find_shared(join_keys(image, key_texts([None])), join_keys(image, key_texts(["..."]))).any()
    assert count_shared(Known(nothing, nothing), nothing, key_texts([None, " ", "?!"])) == (0, 0, 0, 0)


def test_keys_are_the_first_16_bytes_of_the_sha256_even_where_they_end_in_zeros():
    digest = "ab" * 14 + "0000" + "cd" * 16
    assert key_images([digest]).tobytes().hex() == digest[:32]
    assert find_shared(key_images([digest]), key_images([digest, "ab" * 32])).tolist() == [True, False]


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


def test_other_texts_have_other_keys():
    for one, other in [
        ("a dog, a cat", "a dog a cat"),
        ("a dog", "a dogs"),
        ("5 $", "5"),
        ("don't", "dont"),
        ("a dog", "a-dog"),
    ]:
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
