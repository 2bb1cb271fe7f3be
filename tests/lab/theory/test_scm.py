"""The toy SCM: maps that invert, edits that do what they say, and Theorems 7-9 where they hold exactly."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from lab.theory import scm
from raycomp.words import ADD, REPLACE, SWAP


@pytest.fixture(scope="module")
def world() -> scm.World:
    return scm.draw_world(seed=3)


@pytest.fixture(scope="module")
def sample(world: scm.World) -> scm.Sample:
    return scm.draw_sample(world, 400, np.random.default_rng(4))


def bags(texts: scm.Texts) -> list[Counter]:
    return [Counter(concept for concept in row if concept >= 0) for row in texts.concept_NK.tolist()]


def test_mixing_inverts():
    rng = np.random.default_rng(0)
    mixing = scm.Mixing.draw(9, rng)
    latent = rng.standard_normal((5, 7, 9))
    observed = mixing.mix(latent)
    assert np.abs(observed - latent).max() > 0.1
    np.testing.assert_allclose(mixing.unmix(observed), latent, atol=1e-12)
    np.testing.assert_allclose(mixing.mix(mixing.unmix(latent)), latent, atol=1e-12)


def test_no_three_concepts_occur_in_two_scenes(world):
    scenes = [frozenset(scene) for scene in world.support_S5.tolist()]
    assert all(len(scene) == 5 for scene in scenes)
    assert max(len(one & two) for one, two in combinations(scenes, 2)) == 2


def test_a_world_too_full_or_too_mirrored_is_refused():
    with pytest.raises(ValueError, match="num_scenes=5000: must be at most about"):
        scm.draw_world(0, num_scenes=5000)
    with pytest.raises(ValueError, match=r"mirrored=1\.5"):
        scm.draw_world(0, mirrored=1.5)


def test_the_same_seed_is_the_same_world():
    one, two, other = (scm.draw_world(seed, 20) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.support_S5, two.support_S5)
    np.testing.assert_array_equal(one.token_map.inner, two.token_map.inner)
    assert (one.support_S5 != other.support_S5).any()


def test_meaning_equals_a_slow_reading(world, sample):
    texts = scm.add(sample.texts, np.random.default_rng(0))
    for row, meaning in zip(texts.concept_NK, scm.read_meaning(world, texts.concept_NK), strict=True):
        side, total = 0, 0
        for concept in row:
            total = total + world.meaning_2VZ[side, concept]
            side = 1 if concept >= scm.NUM_ATTRIBUTES + scm.NUM_OBJECTS else side
        np.testing.assert_allclose(meaning, total, atol=1e-12)


def test_columns_are_read_back(world, sample):
    for texts in (sample.texts, scm.add(sample.texts, np.random.default_rng(0))):
        read_NK = scm.read_concepts(world, scm.observe_texts(world, texts))
        np.testing.assert_array_equal(read_NK, texts.concept_NK)


def test_a_style_hangs_on_the_style_before(world):
    """The correlation of neighbours is 0.8 for the noise and 2 * 0.8 - 1 for the form; 5 s.e. are 0.03."""
    style_NKP = scm.draw_sample(world, 8000, np.random.default_rng(5)).texts.style_NKP
    for k in range(1, 5):
        for part, want in ((0, 0.6), (1, 0.8)):
            got = np.corrcoef(style_NKP[:, k - 1, part], style_NKP[:, k, part])[0, 1]
            assert got == pytest.approx(want, abs=0.05)
    np.testing.assert_allclose(style_NKP[:, :5].var(axis=0), 1, atol=0.1)


def test_swap_keeps_the_bag_and_undoes_itself(sample):
    swapped = scm.swap(sample.texts, np.random.default_rng(1))
    again = scm.swap(swapped, np.random.default_rng(1))
    assert bags(swapped) == bags(sample.texts)
    assert (swapped.concept_NK != sample.texts.concept_NK).any(axis=1).all()
    np.testing.assert_array_equal(again.concept_NK, sample.texts.concept_NK)
    np.testing.assert_array_equal(again.style_NKP, sample.texts.style_NKP)


def test_replace_changes_one_concept_to_another_of_its_class(sample):
    replaced = scm.replace(sample.texts, np.random.default_rng(1))
    bounds = [scm.NUM_ATTRIBUTES, scm.NUM_ATTRIBUTES + scm.NUM_OBJECTS]
    for old, new in zip(sample.texts.concept_NK, replaced.concept_NK, strict=True):
        (at,) = np.flatnonzero(old != new)
        assert new[at] not in old
        assert np.digitize(new[at], bounds) == np.digitize(old[at], bounds)


def test_add_keeps_the_text_as_a_subsequence(sample):
    grown = scm.add(sample.texts, np.random.default_rng(1))
    for old, new in zip(sample.texts.concept_NK, grown.concept_NK, strict=True):
        (extra,) = set(new.tolist()) - set(old.tolist())
        assert 0 <= extra < scm.NUM_ATTRIBUTES
        assert [concept for concept in new if concept != extra] == old[:5].tolist()


def test_on_the_support_all_encoders_agree(world, sample):
    """g* and g** align perfectly: text and image embeddings of a pair are equal up to rounding."""
    column_NKE = scm.observe_texts(world, sample.texts)
    image_ND = scm.encode_images(world, sample.image_NI)
    np.testing.assert_allclose(np.linalg.norm(image_ND, axis=1), 1)
    np.testing.assert_allclose(scm.encode_by_order(world, column_NKE), image_ND, atol=1e-12)
    np.testing.assert_allclose(scm.encode_by_votes(world, column_NKE), image_ND, atol=1e-12)


@pytest.mark.parametrize("op", (SWAP, REPLACE, ADD))
def test_votes_see_no_edit_and_order_sees_every_one(world, sample, op):
    edited = scm.OPERATORS[op](sample.texts, np.random.default_rng(2))
    before_NKE, after_NKE = (scm.observe_texts(world, texts) for texts in (sample.texts, edited))
    np.testing.assert_array_equal(
        scm.encode_by_votes(world, before_NKE), scm.encode_by_votes(world, after_NKE)
    )
    moved_ND = scm.encode_by_order(world, before_NKE) - scm.encode_by_order(world, after_NKE)
    assert np.linalg.norm(moved_ND, axis=1).min() > 0.1


def test_no_encoder_sees_a_synonym_though_the_columns_do(world, sample):
    before_NKE = scm.observe_texts(world, sample.texts)
    after_NKE = scm.observe_texts(world, scm.paraphrase(sample.texts))
    assert np.abs(before_NKE - after_NKE)[:, :5].max(axis=2).min() > 0.1
    for encode in (scm.encode_by_votes, scm.encode_by_order):
        np.testing.assert_array_equal(encode(world, before_NKE), encode(world, after_NKE))


def test_where_scenes_occur_mirrored_votes_take_the_mean_of_both():
    world = scm.draw_world(seed=3, num_scenes=40, mirrored=1.0)
    support_S6 = np.pad(world.support_S5, ((0, 0), (0, 1)), constant_values=-1)
    texts = scm.Texts(support_S6, np.zeros((80, 6, 2)))
    votes_SD = scm.encode_by_votes(world, scm.observe_texts(world, texts))
    meaning_SZ = scm.read_meaning(world, support_S6)
    both = (meaning_SZ[:40] + meaning_SZ[40:]) / 2
    np.testing.assert_allclose(votes_SD, scm.to_sphere(np.concatenate([both, both])), atol=1e-12)
