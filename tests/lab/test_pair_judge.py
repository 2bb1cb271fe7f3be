"""The trained judge of text alone: against a slow fit, on pairs that it can tell and pairs that it cannot."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from lab.pair_judge import fit_pair_judge, judge_pairs, list_text_features, right_share


def test_the_fit_has_no_slope():
    rng = np.random.default_rng(0)
    feature_TF = rng.normal(0.3, 1, (200, 5))
    weight_F = fit_pair_judge(csr_array(feature_TF), 1e-2)
    slope_F = -(feature_TF / (1 + np.exp(feature_TF @ weight_F))[:, None]).mean(0) + 1e-2 * weight_F
    np.testing.assert_allclose(slope_F, 0, atol=1e-4)
    wide_TF = np.concatenate([np.zeros((200, 3)), feature_TF], axis=1)
    np.testing.assert_allclose(fit_pair_judge(csr_array(wide_TF), 1e-2), [0, 0, 0, *weight_F], atol=1e-4)


def test_a_feature_that_tells_is_found_and_one_that_does_not_is_not():
    rng = np.random.default_rng(1)
    fold_T = rng.integers(0, 5, 4000)
    noise_TF = rng.choice([-1.0, 0.0, 1.0], (4000, 30))
    assert right_share(judge_pairs(csr_array(noise_TF), fold_T)) == pytest.approx(0.5, abs=0.03)
    noise_TF[:, 0] = np.where(rng.random(4000) < 0.8, 1.0, -1.0)
    assert right_share(judge_pairs(csr_array(noise_TF), fold_T)) == pytest.approx(0.8, abs=0.03)


def test_no_pair_is_judged_by_its_own_fold():
    """Every image has a word of its own: what is learned about it helps only where folds split images."""
    image_T = np.repeat(np.arange(200), 4)
    sign_I = np.random.default_rng(2).choice([-1.0, 1.0], 200)
    feature_TF = csr_array((sign_I[image_T], (np.arange(800), image_T)), (800, 200))
    assert right_share(judge_pairs(feature_TF, image_T % 5, (1e-4,))) == 0.5
    assert right_share(judge_pairs(feature_TF, np.arange(800) % 4, (1e-4,))) == 1.0


def test_undecided_pairs_count_half():
    assert right_share(np.array([1.0, 0.0, -1.0, 0.0])) == 0.5
    assert right_share(np.zeros(0)) == 0.5


def test_text_features_change_sign_with_the_pair():
    pairs = [("a red dog on a mat", "a red mat on a dog"), ("a dog", "a big dog")]
    feature_TF = list_text_features(pairs)
    same_TF = list_text_features([pair[::-1] for pair in pairs])
    assert (feature_TF + same_TF).nnz == 0 or abs(feature_TF + same_TF).max() == 0
    assert feature_TF.shape[0] == 2 and feature_TF[[0]].nnz and feature_TF[[1]].nnz
